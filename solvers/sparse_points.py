"""Sparse points, such as TF-IDF, as dense points with the same inner products.

Coefficients, distances and certificates of points depend on their inner products ``X X^T`` alone,
unless a problem looks at single features. So n points of d features become min(n, d) coordinates:
the features themselves, or a factor Z of ``X X^T = Z Z^T``. The factor is exact up to rounding:
``|(Z Z^T - X X^T)_ij| <= n eps |x_i| |x_j|`` or about that, so directions below some 1e-7 of the
points are lost. Memory is ``2 n min(n, d)`` numbers; the factor takes ``n^3 / 3`` operations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from scipy.sparse import csr_array, diags_array, issparse

from .inputs import Array, check_dense_or_sparse

_BLOCK_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The map of sparse points to coordinates, from points on which it was built.

    Parameters
    ----------
    basis : csr_array of shape (rank, n_features), optional
        Unit rows whose products with a point are ``triangle @ coordinates``; None if coordinates
        are features.
    triangle : ndarray of shape (rank, rank), optional
        Only its lower half is read.
    """

    basis: csr_array | None = None
    triangle: Array | None = None

    @classmethod
    def build(cls, X: csr_array) -> "tuple[Coordinates, Array]":
        """Return the map and the coordinates of points, in their dtype.

        Raises
        ------
        MemoryError
            If the coordinates do not fit: names their size.
        """
        n, d = X.shape
        try:
            return (cls(), X.toarray()) if d <= n else cls._factor(X)
        except MemoryError as error:
            raise MemoryError(
                f"X: {n:,} sparse points of {d:,} features take {8 * n * min(n, d) / 2**30:.1f} "
                "GiB as dense coordinates, which do not fit"
            ) from error

    @classmethod
    def _factor(cls, X: csr_array) -> "tuple[Coordinates, Array]":
        """Factor the products of unit rows by Cholesky's method with pivots."""
        units, norms = _unit_rows(X)
        n = len(norms)
        gram = np.empty((n, n), order="F")
        for start in range(0, n, _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            gram[:, rows] = (units @ units[rows].T).toarray()
        lower, pivots, rank, _ = dpstrf(gram, lower=1, overwrite_a=1)
        pivots -= 1
        Z = np.zeros((n, rank + 1), X.dtype)  # the last is for what new points add to the span
        for start in range(0, n, _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            factor = np.tril(lower[rows, :rank], k=start)
            Z[pivots[rows], :rank] = factor * norms[pivots[rows], None]
        return cls(units[pivots[:rank]], lower[:rank, :rank]), Z

    def __call__(self, X: csr_array) -> Array:
        """Coordinates of new points; products with those of `build` are the same."""
        if self.basis is None or self.triangle is None:
            dense: Array = X.toarray()
            return dense
        units, norms = _unit_rows(X)
        products = (self.basis @ units.T).toarray()
        Z = solve_triangular(self.triangle, products, lower=True).T
        rest = (norms > 0) - np.einsum("ij,ij->i", Z, Z)
        Z = np.column_stack([Z, np.sqrt(np.maximum(rest, 0))]) * norms[:, None]
        return Z.astype(X.dtype)


def _unit_rows(X: csr_array) -> tuple[csr_array, Array]:
    """Return rows of norm 1 or 0 in float64, and the norms; squares do not overflow or vanish."""
    X = csr_array(X, dtype=np.float64)
    largest = np.asarray(abs(X).max(axis=1).toarray()).ravel() if X.nnz else np.zeros(X.shape[0])
    scaled = csr_array(diags_array(_reciprocal(largest)) @ X)
    lengths = np.sqrt(np.asarray(scaled.multiply(scaled).sum(axis=1)).ravel())
    return csr_array(diags_array(_reciprocal(lengths)) @ scaled), largest * lengths


def _reciprocal(x: Array) -> Array:
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def dense_points(X: ArrayLike | csr_array, name: str) -> Any:
    """Return sparse points as `Coordinates` give them, and dense ones as they are.

    Raises
    ------
    ValueError
        On NaN or infinity among sparse points.
    """
    return Coordinates.build(check_dense_or_sparse(X, name))[1] if issparse(X) else X


def dense_pair(X: Any, others: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    """Return points, and others that they are compared with or None, in the same coordinates.

    Dense ones stay as they are if no sparse ones are beside them.

    Raises
    ------
    ValueError
        On NaN, infinity or different numbers of features, if one is sparse.
    """
    if not issparse(X) and not issparse(others):
        return X, others
    points = csr_array(check_dense_or_sparse(X, names[0]))
    places, dense = Coordinates.build(points)
    if others is X or others is None:
        return dense, others if others is None else dense
    queries = csr_array(check_dense_or_sparse(others, names[1]))
    if queries.shape[1] != points.shape[1]:
        raise ValueError(
            f"{names[1]}: has {queries.shape[1]} columns, but {points.shape[1]} are needed"
        )
    return dense, places(queries)
