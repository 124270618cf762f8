"""The matrices of this family: symmetric weights K and transition matrices A with row sums 1."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from ..inputs import Array, check_dense_or_sparse, check_row_sums, check_square, rounding_error
from .differences import EPS, weighted_differences

Product = Callable[[Array], Array]


class Weights(NamedTuple):
    """Symmetric nonnegative K, split into its diagonal and its other entries.

    The Laplacian does not depend on the diagonal, whose rounding errors might exceed the other
    entries. The diagonal of a function is unknown: `matrix` is None and `loops` are zero.
    """

    matrix: Any  # K with a zero diagonal
    product: Product  # product with the off-diagonal part of K
    degrees: Array  # (n_tokens, 1), row sums off the diagonal
    loops: Array  # (n_tokens, 1), the diagonal

    def laplacian(self, u: Array) -> Array:
        """``(diag(d) - K) u``; its null space, the constants, is removed from u first."""
        centred = u - u.mean(axis=0)
        return self.degrees * centred - self.product(centred)

    def certified_laplacian(self, u: Array) -> tuple[Array, Array]:
        """``(diag(d) - K) u``, and a bound on its rounding errors; it is sharp if K is stored."""
        if self.matrix is not None:
            return weighted_differences(self.matrix, u)
        size = np.abs(u - u.mean(axis=0))
        return self.laplacian(u), product_rounding(self.degrees * size + self.product(size))


class Transitions(NamedTuple):
    """Nonnegative A with row sums 1; `matrix` is None if only a function is known.

    `excess` holds the deviations from 1 of a function's row sums. The rows of a matrix are rescaled
    to sum to 1, and its diagonal counts as 1 less the other entries.
    """

    matrix: Any
    product: Product
    excess: Array  # (n_tokens, 1)

    def certified_change(self, u: Array) -> tuple[Array, Array]:
        """``A u - u``, and a bound on its rounding errors, which is sharp if A is stored."""
        if self.matrix is not None:
            loss, rounding = weighted_differences(self.matrix, u)
            return -loss, rounding
        size = np.abs(u)
        return self.product(u) - u, product_rounding(self.product(size) + size)


def check_weights(K: Any, n_tokens: int | None = None) -> Weights:
    """Return K as float64 `Weights`, exactly symmetric.

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
            raise ValueError(f"K: must be nonnegative, but a row sum is {float(degrees.min()):.3g}")
        return Weights(None, product, degrees, np.zeros_like(degrees))
    matrix, dtype = _check_square(K, "K", n_tokens)
    loops = matrix.diagonal().reshape(-1, 1).copy()
    matrix = _off_diagonal(matrix) if loops.any() else matrix
    with np.errstate(over="ignore"):
        matrix = _symmetrize(matrix, rounding_error(dtype))
        degrees = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
        if not np.isfinite(degrees + loops).all():
            raise ValueError("K: a row sum overflows; scale K down")
    return Weights(matrix, matrix.__matmul__, degrees, loops)


def _symmetrize(matrix: Any, rounding: float) -> Any:
    """Average K and K.T, if they differ only by rounding.

    Entry (i, j) may differ by rounding errors of the smaller of the row sums i and j. Errors
    relative to the largest entry of K would be too coarse: the only weight of a token may be as
    small as these.
    """
    difference = matrix - matrix.T
    if not (worst := abs(difference).max()):
        return matrix
    degrees = np.asarray(matrix.sum(axis=1)).ravel()
    if issparse(matrix):
        entries = difference.tocoo()
        size, smaller = abs(entries.data), np.minimum(degrees[entries.row], degrees[entries.col])
    else:
        size, smaller = abs(difference), np.minimum.outer(degrees, degrees)
    if (size > rounding * smaller).any():
        raise ValueError(
            f"K: must be symmetric, but K - K.T reaches {worst:.3g}; for directed weights k pass "
            "k + k.T"
        )
    matrix = matrix - difference / 2
    return csr_array(matrix) if issparse(matrix) else matrix


def check_transitions(A: Any, n_tokens: int | None = None) -> Transitions:
    """Return A as float64 `Transitions`; the rows of a matrix are rescaled to sum to 1.

    Raises
    ------
    ValueError
        If A is not square, nonnegative and finite, a row does not sum to 1, or A does not fit the
        tokens. Row sums may deviate from 1 by 1e-6, so that a float32 softmax passes after a cast
        to float64; if A is float32 or a function, by 1.2e-4.
    """
    if callable(A):
        assert n_tokens is not None
        product = _checked_product(A, "A")
        sums = product(np.ones((n_tokens, 1)))
        check_row_sums(sums, np.float32, "A")
        return Transitions(None, product, sums - 1)
    matrix, dtype = _check_square(A, "A", n_tokens)
    sums = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
    check_row_sums(sums, dtype, "A")
    if (sums != 1).any():
        matrix = matrix / sums
        matrix = csr_array(matrix) if issparse(matrix) else matrix
    return Transitions(matrix, matrix.__matmul__, np.zeros_like(sums))


def product_rounding(size: Array) -> Array:
    """Bound on the rounding errors of a product, given the product of absolute values, `size`."""
    return (len(size) + 2) * EPS * size


def _off_diagonal(matrix: Any) -> Any:
    """Copy of a matrix with a zero diagonal."""
    if issparse(matrix):
        entries = matrix.tocoo()
        off_diagonal = entries.row != entries.col
        pairs = entries.row[off_diagonal], entries.col[off_diagonal]
        return csr_array((entries.data[off_diagonal], pairs), shape=matrix.shape)
    matrix = matrix.copy()
    np.fill_diagonal(matrix, 0)
    return matrix


def not_callable(M: Any, name: str) -> Any:
    """Return M unless it is a function."""
    if callable(M):
        raise ValueError(f"{name}: must be a matrix here, dense or sparse, got a function")
    return M


def common_dtype(f: Array, M: Any) -> Any:
    """Return float32 if f is, and M is too or is a function; else float64."""
    single = f.dtype == np.float32 and (callable(M) or getattr(M, "dtype", None) == np.float32)
    return np.float32 if single else np.float64


def _check_square(M: Any, name: str, n_tokens: int | None) -> tuple[Any, Any]:
    """Return a square nonnegative matrix in float64, and its own dtype."""
    checked = check_square(check_dense_or_sparse(M, name), name, n_tokens)
    matrix: Any = checked.astype(np.float64, copy=False)
    if matrix.min() < 0:
        raise ValueError(f"{name}: must be nonnegative, got an entry of {matrix.min():.3g}")
    return matrix, checked.dtype


def _checked_product(function: Product, name: str) -> Product:
    """Wrap a function so that its results are checked."""

    def product(u: Array) -> Array:
        result = np.asarray(function(u), dtype=np.float64)
        if result.shape != u.shape:
            raise ValueError(
                f"{name}: must return the shape of the tokens, {u.shape}, got {result.shape}"
            )
        if not np.isfinite(result).all():
            raise ValueError(f"{name}: its product holds NaN or infinity")
        return result

    return product
