"""The matrices of this family: symmetric weights K, and transition matrices A with row sums 1."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from ..solution import Array, check_dense_or_sparse

Product = Callable[[Array], Array]


class Weights(NamedTuple):
    """Symmetric nonnegative K, split into its diagonal and the rest.

    The Laplacian does not depend on the diagonal, which may be so large that it hides the rest in
    its rounding errors. Of a function the diagonal is unknown: `matrix` is None, `loops` are zero.
    """

    matrix: Any  # K with a zero diagonal
    product: Product  # with K off the diagonal
    degrees: Array  # (n_tokens, 1), row sums off the diagonal
    loops: Array  # (n_tokens, 1), the diagonal

    def laplacian(self, u: Array) -> Array:
        """``(diag(d) - K) u``; constants, its null space, are removed from u first."""
        centred = u - u.mean(axis=0)
        return self.degrees * centred - self.product(centred)


class Transitions(NamedTuple):
    """Nonnegative A with row sums 1; `matrix` is None where only its product is known."""

    matrix: Any
    product: Product


def check_weights(K: Any, n_tokens: int | None = None) -> Weights:
    """Return K as float64 `Weights`; rounding errors of the symmetry are averaged out.

    Raises
    ------
    ValueError
        If K is not square, symmetric, nonnegative and finite, or does not fit the tokens.
    """
    if callable(K):
        assert n_tokens is not None
        product = _checked_product(K, "K")
        degrees = product(np.ones((n_tokens, 1)))
        if (degrees < 0).any():
            raise ValueError("K: must be nonnegative, but a row sum is negative")
        return Weights(None, product, degrees, np.zeros_like(degrees))
    matrix, rounding = _check_square(K, "K", n_tokens)
    loops = matrix.diagonal().reshape(-1, 1).copy()
    matrix = _off_diagonal(matrix) if loops.any() else matrix
    difference = matrix - matrix.T
    if (worst := abs(difference).max()) > rounding * matrix.max():
        raise ValueError(
            f"K: must be symmetric, but K - K.T reaches {worst:.3g}; of directed weights k pass "
            "k + k.T"
        )
    if worst > 0:
        matrix = matrix - difference / 2
    matrix = csr_array(matrix) if issparse(matrix) else matrix
    degrees = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
    return Weights(matrix, matrix.__matmul__, degrees, loops)


def check_transitions(A: Any, n_tokens: int | None = None) -> Transitions:
    """Return A as float64 `Transitions`; rows of float32 are made to sum to 1 in float64.

    Raises
    ------
    ValueError
        If A is not square, nonnegative, finite and of row sums 1, or does not fit the tokens.
    """
    if callable(A):
        assert n_tokens is not None
        product = _checked_product(A, "A")
        _check_sums(product(np.ones((n_tokens, 1))), _rounding(np.float32))
        return Transitions(None, product)
    matrix, rounding = _check_square(A, "A", n_tokens)
    sums = np.asarray(matrix.sum(axis=1))
    _check_sums(sums, rounding)
    if rounding > _rounding(np.float64):
        matrix = matrix / sums[:, None]
        matrix = csr_array(matrix) if issparse(matrix) else matrix
    return Transitions(matrix, matrix.__matmul__)


def _check_sums(sums: Array, rounding: float) -> None:
    if (worst := np.abs(sums - 1).max()) > rounding:
        raise ValueError(f"A: every row must sum to 1, but one is off by {worst:.3g}")


def _off_diagonal(matrix: Any) -> Any:
    if issparse(matrix):
        entries = matrix.tocoo()
        kept = entries.row != entries.col
        pairs = entries.row[kept], entries.col[kept]
        return csr_array((entries.data[kept], pairs), shape=matrix.shape)
    matrix = matrix.copy()
    np.fill_diagonal(matrix, 0)
    return matrix


def not_callable(M: Any, name: str) -> Any:
    """Return M unless it is a function."""
    if callable(M):
        raise ValueError(f"{name}: must be a matrix here, dense or sparse, not a function")
    return M


def common_dtype(f: Array, M: Any) -> Any:
    """Return float32 if f is, and M is too or is a function; else float64."""
    kept = f.dtype == np.float32 and (callable(M) or getattr(M, "dtype", None) == np.float32)
    return np.float32 if kept else np.float64


def _check_square(M: Any, name: str, n_tokens: int | None) -> tuple[Any, float]:
    checked = check_dense_or_sparse(M, name)
    n = checked.shape[0] if n_tokens is None else n_tokens
    if checked.shape != (n, n):
        raise ValueError(f"{name}: must be {n} x {n} to fit the tokens, got {checked.shape}")
    matrix: Any = checked.astype(np.float64, copy=False)
    if issparse(matrix) and not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if matrix.min() < 0:
        raise ValueError(f"{name}: must be nonnegative, smallest entry {matrix.min():.3g}")
    return matrix, _rounding(checked.dtype)


def _rounding(dtype: Any) -> float:
    """Relative error that is taken for rounding: of exponentials of logits up to 1,000 in size."""
    return 1e3 * float(np.finfo(dtype).eps)


def _checked_product(function: Product, name: str) -> Product:
    def product(u: Array) -> Array:
        result = np.asarray(function(u), dtype=np.float64)
        if result.shape != u.shape:
            raise ValueError(f"{name}: returned shape {result.shape} for tokens of {u.shape}")
        if not np.isfinite(result).all():
            raise ValueError(f"{name}: its product holds NaN or infinity")
        return result

    return product
