"""Locally linear embedding: weights that reconstruct each point from its neighbours.

Samples are rows: row i of the weights represents point i.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from ...validation import check_integer, check_positive
from ..inputs import Array, check_dense_or_sparse, check_matrix, narrow
from ..kernels.compiled import jit, jit_reordered
from ..kernels.workers import spread
from ..sparse_points import dense_pair
from .neighbors import nearest

_ROWS = 2048
_EQUAL_WEIGHTS = 1e100  # regularisation that makes all weights equal without overflow


def locally_linear_weights(
    X: ArrayLike,
    *,
    n_neighbors: int | None = None,
    reg: float = 1e-3,
    queries: ArrayLike | None = None,
    graph: csr_array | None = None,
    n_jobs: int | None = None,
) -> csr_array:
    """Weights that reconstruct each point from its nearest neighbours and sum to one.

    Row i solves ::

        minimise |x_i - sum_{j in N_i} c_ij x_j|^2 + reg tr(g) sum_j c_ij^2,   sum_j c_ij = 1

    with N_i the neighbours of point i, without i itself, and their local Gram matrix
    ``g_ab = (x_a - x_i) . (x_b - x_i)``. The solution is ``c = h / sum(h)`` with
    ``(g + reg tr(g) I) h = 1``. Weights may be negative. They are invariant to rotation, scaling
    and translation.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
        The points, from which neighbours are also chosen.
    n_neighbors : int, optional
        Number of nearest neighbours, at least 1 and smaller than n_samples (with `queries`, at most
        n_samples). Among points at equal distance the first are chosen.
    reg : float, default=1e-3
        Regularisation relative to the trace of g, as in scikit-learn; the papers have none. It is
        needed if ``n_neighbors > n_features``.
    queries : array-like or sparse array of shape (n_queries, n_features), optional
        Points to reconstruct from the rows of X, none of which is excluded. None reconstructs the
        rows of X themselves.
    graph : sparse array of shape (n_samples, n_samples) or (n_queries, n_samples), optional
        Neighbours, in place of `n_neighbors`: the stored entries of row i are the neighbours of
        point i, whatever their values, even zeros. Rows may have different numbers of entries.
        Without `queries` the diagonal is ignored. scikit-learn's `kneighbors_graph` returns such a
        graph.
    n_jobs : int, optional
        Number of threads; None is 1, unless in a `joblib.parallel_config`. The weights do not
        depend on it. scikit-learn's exhaustive search (more than 15 features) uses the number of
        OpenMP threads instead.

    Returns
    -------
    csr_array of shape (n_samples, n_samples) or (n_queries, n_samples)
        Each row has an entry for each neighbour and sums to 1; indices are sorted. If all
        neighbours of a point coincide with it, the weights are equal.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``reg < 0``, fewer points than neighbours, none or both of
        `n_neighbors` and `graph`, a row of the graph without neighbours, or a local system that is
        singular in floating point.

    References
    ----------
    Roweis and Saul (2000); EQUATIONS SE-9, and QK-LLE for `queries`.

    Examples
    --------
    >>> from twinsolve.solvers import locally_linear_weights
    >>> C = locally_linear_weights([[0.0], [1.0], [3.0]], n_neighbors=2, reg=1e-9)
    >>> C.toarray().round(3)
    array([[ 0.   ,  1.5  , -0.5  ],
           [ 0.667,  0.   ,  0.333],
           [-2.   ,  3.   ,  0.   ]])
    """
    X, queries = dense_pair(X, queries, ("X", "queries"))
    X = check_matrix(X, "X", min_rows=2 if queries is None else 1)
    points = X if queries is None else check_matrix(queries, "queries", n_features=X.shape[1])
    reg = check_positive(reg, "reg", allow_zero=True)
    if graph is not None and n_neighbors is None:
        indptr, indices = _read_pattern(graph, (len(points), len(X)), exclude_self=queries is None)
    elif graph is None and n_neighbors is not None:
        max_neighbors = len(X) - (queries is None)
        n_neighbors = check_integer(n_neighbors, "n_neighbors", minimum=1, maximum=max_neighbors)
        chosen = nearest(points, X, n_neighbors, exclude_self=queries is None, n_jobs=n_jobs)
        indptr, indices = np.arange(0, chosen.size + 1, n_neighbors), chosen.ravel()
    else:
        raise ValueError(
            "n_neighbors: give either n_neighbors or graph, got "
            + ("neither" if graph is None else "both")
        )
    data = _barycentre_weights(points, X, indptr, indices, reg, n_jobs)
    data = data.astype(np.result_type(X, points), copy=False)
    return narrow(csr_array((data, indices, indptr), shape=(len(points), len(X))))


def locally_linear_residual(
    X: ArrayLike, weights: csr_array, *, reg: float = 1e-3, queries: ArrayLike | None = None
) -> Array:
    """Relative residual of the optimality conditions of `locally_linear_weights`, for each row.

    Let ``m = (g + reg tr(g) I) c`` on the stored neighbours of row i. The weights c are optimal iff
    m is constant and c sums to one. The residual is ::

        max( max_a |m_a - mean(m)| / ((1 + reg) tr(g) max_a |c_a|),  |sum_a c_a - 1| )

    where the first term is 0 if all c_a are 0.

    Parameters
    ----------
    X, reg, queries
        As given to `locally_linear_weights`.
    weights : csr_array of shape (n_samples, n_samples) or (n_queries, n_samples)
        The weights to certify; their stored entries name the neighbours.

    Returns
    -------
    ndarray of shape (n_rows,)

    Raises
    ------
    ValueError
        If shapes do not fit, `weights` is not sparse, not finite or has an empty row, or
        ``reg < 0``.

    References
    ----------
    EQUATIONS SE-9.

    Examples
    --------
    >>> from twinsolve.solvers import locally_linear_weights
    >>> from twinsolve.solvers.locally_linear import locally_linear_residual
    >>> X = [[0.0], [1.0], [3.0]]
    >>> C = locally_linear_weights(X, n_neighbors=2)
    >>> bool((locally_linear_residual(X, C) < 1e-12).all())
    True
    """
    X, queries = dense_pair(X, queries, ("X", "queries"))
    X = check_matrix(X, "X").astype(np.float64)
    points = X if queries is None else check_matrix(queries, "queries", n_features=X.shape[1])
    reg = check_positive(reg, "reg", allow_zero=True)
    if not issparse(weights) or weights.shape != (len(points), len(X)):
        raise ValueError(
            f"weights: must be a sparse array of shape {(len(points), len(X))}, got "
            f"{type(weights).__name__} of shape {getattr(weights, 'shape', None)}"
        )
    weights = check_dense_or_sparse(weights, "weights")
    empty = np.flatnonzero(np.diff(weights.indptr) == 0)
    if len(empty):
        raise ValueError(f"weights: every row must have a stored entry, row {empty[0]} has none")
    residual = np.empty(len(points))
    for i, x in enumerate(points):
        stored = slice(weights.indptr[i], weights.indptr[i + 1])
        c = weights.data[stored].astype(np.float64)
        local = X[weights.indices[stored]] - x
        local /= max(np.abs(local).max(), np.finfo(np.float64).tiny)
        gram = local @ local.T
        trace = max(np.trace(gram), np.finfo(np.float64).tiny)
        relative = c / max(np.abs(c).max(), np.finfo(np.float64).tiny)
        m = (gram @ relative / trace + reg * relative) / (1 + reg)
        residual[i] = max(np.abs(m - m.mean()).max(), abs(c.sum() - 1))
    return residual


def _read_pattern(
    graph: csr_array, shape: tuple[int, int], exclude_self: bool
) -> tuple[Array, Array]:
    """Return row pointers and sorted column indices of the stored entries."""
    if not issparse(graph) or graph.shape != shape:
        raise ValueError(
            f"graph: must be a sparse array of shape {shape}, got {type(graph).__name__} of shape "
            f"{getattr(graph, 'shape', None)}"
        )
    pattern = csr_array(graph, copy=True)
    pattern.sum_duplicates()
    rows, columns = np.repeat(np.arange(shape[0]), np.diff(pattern.indptr)), pattern.indices
    if exclude_self:
        rows, columns = rows[rows != columns], columns[rows != columns]
    counts = np.bincount(rows, minlength=shape[0])
    if (counts == 0).any():
        raise ValueError(f"graph: row {counts.argmin()} has no neighbours")
    return np.concatenate([[0], counts.cumsum()]), columns.astype(np.intp)


def _barycentre_weights(
    points: Array, X: Array, indptr: Array, indices: Array, reg: float, n_jobs: int | None
) -> Array:
    """Return the weights of the stored entries, computed in threads."""
    X, points = X.astype(np.float64, copy=False), points.astype(np.float64, copy=False)
    reg = min(reg, _EQUAL_WEIGHTS)
    tasks = [
        (points[start : start + _ROWS], X, indptr[start : start + _ROWS + 1], indices, reg)
        for start in range(0, len(points), _ROWS)
    ]
    weights: Array = np.concatenate(list(spread(_solve_rows, tasks, n_jobs)))
    if np.isnan(weights).any():
        raise ValueError(
            "reg: a local Gram matrix is singular (neighbours coincide or outnumber the features, "
            "or a query equals a neighbour); use a larger reg > 0"
        )
    return weights


@jit
def _solve_rows(points: Array, X: Array, indptr: Array, indices: Array, reg: float) -> Array:
    """Weights of one point after another; NaN if a local system is singular."""
    max_neighbors, first = 0, indptr[0]
    for i in range(len(points)):
        max_neighbors = max(max_neighbors, indptr[i + 1] - indptr[i])
    local, gram = np.empty((max_neighbors, X.shape[1])), np.empty((max_neighbors, max_neighbors))
    weights = np.ones(indptr[-1] - first)
    for i in range(len(points)):
        start, stop = indptr[i], indptr[i + 1]
        neighbors, h = indices[start:stop], weights[start - first : stop - first]
        largest = _subtract(points[i], X, neighbors, local)
        if largest > 0.0:
            _fill_gram(local, gram, largest, reg, len(neighbors))
            _solve(gram, h)
        h /= h.sum()
    return weights


@jit
def _subtract(point: Array, X: Array, indices: Array, local: Array) -> float:
    """Fill `local` with the neighbours relative to the point; return its largest magnitude."""
    largest = 0.0
    for a in range(len(indices)):
        for d in range(len(point)):
            local[a, d] = X[indices[a], d] - point[d]
            largest = max(largest, abs(local[a, d]))
    return largest


@jit
def _fill_gram(local: Array, gram: Array, unit: float, reg: float, n: int) -> None:
    """Fill the lower half of ``g + reg tr(g) I``, in a unit of length with squares in range."""
    trace = 0.0
    for a in range(n):
        for d in range(local.shape[1]):
            local[a, d] /= unit
        for b in range(a + 1):
            gram[a, b] = _dot(local[a], local[b])
        trace += gram[a, a]
    for a in range(n):
        gram[a, a] += reg * trace


@jit_reordered
def _dot(x: Array, y: Array) -> float:
    total = 0.0
    for d in range(len(x)):
        total += x[d] * y[d]
    return total


@jit
def _solve(gram: Array, h: Array) -> None:
    """Overwrite h by ``gram^-1 h``, and the lower half of gram by its factors L D L^T.

    h becomes NaN if a pivot shrinks to the rounding level of its diagonal entry.
    """
    n = len(h)
    column, least = np.empty(n), np.empty(n)
    for j in range(n):
        least[j] = n * 2.0**-52 * gram[j, j]
    for j in range(n):
        if gram[j, j] <= least[j]:
            h[:] = np.nan
            return
        inverse = 1 / gram[j, j]
        for a in range(j + 1, n):
            column[a] = gram[a, j]
            gram[a, j] *= inverse
            h[a] -= gram[a, j] * h[j]
            for b in range(j + 1, a + 1):
                gram[a, b] -= gram[a, j] * column[b]
        h[j] *= inverse
    for j in range(n - 1, -1, -1):
        for b in range(j):
            h[b] -= gram[j, b] * h[j]
