"""Leading eigenvectors of the normalised affinity of a graph."""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

from ..inputs import Array
from ..symmetric import leading_eigh
from .krylov import EigenPairs, LinearMap, basis_size, residuals_of, search_eigenpairs

_ALL_AT_ONCE = {"sparse": 500, "dense": 2000}  # rows up to which LAPACK is faster than a search
_SPARSE = 0.1  # share of nonzero entries below which a dense graph is treated as sparse
_MADE_DENSE = 4000  # rows up to which LAPACK takes over from a search of a sparse graph


def leading_eigenvectors(A: Array | csr_array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues of ``D^(-1/2) A D^(-1/2)``, descending, and their eigenvectors.

    Every point must have a positive degree. `leading_eigenpairs` says how they are found.
    """
    return leading_eigenpairs(A, k)[:2]


def leading_eigenpairs(A: Array | csr_array, k: int) -> EigenPairs:
    """The k leading eigenpairs of ``D^(-1/2) A D^(-1/2)``, and what is known about them.

    Every point must have a positive degree. LAPACK diagonalises small graphs. In large ones, the
    eigenvectors of eigenvalue 1 are known, one for each connected component, and
    `search_eigenpairs` finds the others. The search is seeded, so that the answer is the same at
    every call. If it fails, LAPACK takes over, but not for a sparse graph of over 4,000 points.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the eigenvectors of such a graph have no certificate.
    """
    if not isinstance(A, csr_array) and np.count_nonzero(A) < _SPARSE * A.size:
        A = csr_array(A)
    A = A.astype(np.float64, copy=False)  # SciPy sums in the precision of the matrix
    degree = A.sum(axis=1)
    scale = 1 / np.sqrt(degree)
    if isinstance(A, csr_array):
        M = diags_array(scale) @ A @ diags_array(scale)
    else:
        M = scale[:, None] * A * scale
    return eigenpairs_of(M, degree, k, lambda: components(A))


def eigenpairs_of(
    M: LinearMap, degree: Array, k: int, find_components: Callable[[], Array]
) -> EigenPairs:
    """`leading_eigenpairs` of a graph with the normalised affinity M, whose products suffice."""
    if _is_small(M, k):
        return _all_at_once(M, k)
    part = find_components()
    n, n_parts = len(part), part.max() + 1
    known = normalize(csr_array((np.sqrt(degree), (np.arange(n), part))), axis=0)
    if k <= n_parts:
        return EigenPairs(np.ones(k), known[:, :k].toarray(), 1.0, 0.0, True)
    pairs = search_eigenpairs(M, k - n_parts, known.todense())  # fewer columns than eigenvectors
    if pairs.certified:
        return pairs
    if n <= _MADE_DENSE or isinstance(M, np.ndarray):
        return _all_at_once(M, k)
    warnings.warn(
        f"affinity: the {k} leading eigenvectors of {n} points have residuals of "
        f"{pairs.error:.1e}, the gap behind them is {pairs.values[-1] - pairs.behind:.1e}, and one "
        "may be missed. Take another number of clusters or more neighbours",
        ConvergenceWarning,
        stacklevel=4,
    )
    return pairs


def _is_small(M: LinearMap, k: int) -> bool:
    """Whether M is so small that all its eigenpairs cost no more than a search for k."""
    n = M.shape[0]
    max_size = _ALL_AT_ONCE["dense" if isinstance(M, np.ndarray) else "sparse"]
    return n <= max_size or 2 * basis_size(k) >= n


def _all_at_once(M: LinearMap, k: int) -> EigenPairs:
    """Return the leading eigenpairs, computed by LAPACK."""
    n = M.shape[0]
    dense = M if isinstance(M, np.ndarray) else M @ np.eye(n)
    values, vectors = leading_eigh(dense, min(k + 1, n))
    error = residuals_of(dense, values[:k], vectors[:, :k]).max()
    behind = values[k] if k < n else -np.inf
    return EigenPairs(values[:k], vectors[:, :k], behind, error, True)


def components(A: Array | csr_array) -> Array:
    """Number of the connected component of each point; components are sorted by first point."""
    if isinstance(A, csr_array):
        return connected_components(A != 0, directed=False)[1]  # a stored zero is no edge
    # Making a dense graph sparse first would cost more than this search.
    part = np.full(len(A), -1)
    for point in range(len(A)):
        if part[point] < 0:
            reached = np.array([point])
            number = part.max() + 1
            while len(reached):
                part[reached] = number
                reached = np.flatnonzero((part < 0) & (A[reached].max(axis=0) > 0))
    return part
