"""Self-expression by orthogonal matching pursuit."""

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ..solution import Array, check_integer, check_matrix, check_positive

_BLOCK_ENTRIES = 2**22
# Relative size at which a correlation, and the distance of an atom to the support's span, is zero.
_NO_CORRELATION = 1e-13
_DEPENDENT = 1e-10


def omp_self_expression(X: ArrayLike, *, n_nonzero: int, tol: float = 0.0) -> csr_array:
    """Orthogonal matching pursuit coefficients: each row of X from a few greedily chosen others.

    Row i starts from ``r = x_i`` and repeats: add the unused row ``j != i`` with the largest
    ``|x_j . r|`` to the support S, then ``c = argmin |x_i - sum_{j in S} c_j x_j|^2`` and
    ``r = x_i - c X``, until S has `n_nonzero` entries or ``|r| <= tol``, or until no row left is
    correlated with r beyond rounding.

    The rows are not normalised: scale them to unit norm for the usual method. The correlations of a
    block of rows are one matrix product, the supports are kept orthogonalised, and memory is
    O(block * (n_samples + n_nonzero * n_features) + non-zeros).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    n_nonzero : int
        Most non-zeros in a row, from 1 to ``n_samples - 1``.
    tol : float, default=0.0
        Norm of the residual at which a row stops, >= 0.

    Returns
    -------
    csr_array of shape (n_samples, n_samples)
        Its diagonal is zero and its indices are sorted. Zero rows stay empty.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, `n_nonzero` out of range or ``tol < 0``.

    References
    ----------
    Dyer, Sankaranarayanan and Baraniuk (2013); You, Robinson and Vidal (2016); EQUATIONS CL-9.

    Examples
    --------
    >>> from twinsolve.solvers import omp_self_expression
    >>> omp_self_expression([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], n_nonzero=2).toarray()
    array([[0. , 0.5, 0. ],
           [2. , 0. , 0. ],
           [0. , 0. , 0. ]])
    """
    X = check_matrix(X, "X", min_rows=2)
    n = len(X)
    n_nonzero = check_integer(n_nonzero, "n_nonzero", minimum=1, maximum=n - 1)
    tol = check_positive(tol, "tol", allow_zero=True)
    points = np.ascontiguousarray(X, dtype=np.float64)
    most = min(n_nonzero, X.shape[1])
    size = max(1, _BLOCK_ENTRIES // (n + (most + 1) * X.shape[1]))
    blocks = [
        _pursue(points, np.arange(start, min(start + size, n)), most, tol)
        for start in range(0, n, size)
    ]
    support, values, counts = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    stored = np.arange(most) < counts[:, None]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    coef = csr_array((values[stored].astype(X.dtype), support[stored], indptr), shape=(n, n))
    coef.sort_indices()
    return coef


def _pursue(X: Array, rows: Array, most: int, tol: float) -> tuple[Array, Array, Array]:
    """Support, coefficients and number of atoms of each of `rows`."""
    norms = np.linalg.norm(X, axis=1)
    basis = np.empty((len(rows), most, X.shape[1]))
    triangle = np.zeros((len(rows), most, most))
    support = np.empty((len(rows), most), dtype=np.intp)
    counts = np.zeros(len(rows), dtype=np.intp)
    residual = X[rows]
    active = np.flatnonzero(norms[rows] > tol)
    for _ in range(most):
        if len(active) == 0:
            break
        correlation = residual[active] @ X.T
        grown = _grow(
            X, norms, rows, tol, active, correlation, residual, basis, triangle, support, counts
        )
        active = active[grown]
    return support, _coefficients(X[rows], basis, triangle, counts), counts


@njit(nogil=True, cache=True)
def _grow(X, norms, rows, tol, active, correlation, residual, basis, triangle, support, counts):
    """One atom more for each active row; returns which rows go on."""
    go_on = np.zeros(active.size, np.bool_)
    for a in range(active.size):
        b = active[a]
        k, r, size = counts[b], residual[b], norms[rows[b]]
        scores = np.abs(correlation[a])
        scores[rows[b]] = -1.0
        for i in range(k):
            scores[support[b, i]] = -1.0
        new = np.argmax(scores)
        if scores[new] <= _NO_CORRELATION * norms[new] * size:
            continue
        q = basis[b, k]
        q[:] = X[new]
        for _ in range(2):
            for i in range(k):
                shared = np.dot(basis[b, i], q)
                triangle[b, i, k] += shared
                q -= shared * basis[b, i]
        distance = np.sqrt(np.dot(q, q))
        if distance <= _DEPENDENT * norms[new]:
            continue
        triangle[b, k, k] = distance
        q /= distance
        r -= np.dot(q, r) * q
        support[b, k] = new
        counts[b] = k + 1
        go_on[a] = np.sqrt(np.dot(r, r)) > tol
    return go_on


@njit(nogil=True, cache=True)
def _coefficients(signals, basis, triangle, counts):
    """Back substitution in ``triangle c = basis signal``."""
    values = np.zeros(basis.shape[:2])
    for b in range(len(signals)):
        for i in range(counts[b] - 1, -1, -1):
            value = np.dot(basis[b, i], signals[b])
            for j in range(i + 1, counts[b]):
                value -= triangle[b, i, j] * values[b, j]
            values[b, i] = value / triangle[b, i, i]
    return values
