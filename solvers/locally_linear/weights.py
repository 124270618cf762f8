"""Locally linear embedding: weights that reconstruct each point from its neighbours.

Samples are rows: row i of the weights represents point i.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse
from scipy.spatial.distance import cdist

from ..solution import Array, check_integer, check_matrix, check_positive

_BLOCK_ENTRIES = 2**22


def locally_linear_weights(
    X: ArrayLike,
    *,
    n_neighbors: int,
    reg: float = 1e-3,
    queries: ArrayLike | None = None,
) -> csr_array:
    """Weights that reconstruct each point from its nearest neighbours and sum to one.

    Row i solves ::

        minimise |x_i - sum_{j in N_i} c_ij x_j|^2 + reg tr(g) sum_j c_ij^2,   sum_j c_ij = 1

    with ``g_ab = (x_a - x_i) . (x_b - x_i)`` over the `n_neighbors` nearest points N_i, i itself
    excluded; the solution is ``c = h / sum(h)`` with ``(g + reg tr(g) I) h = 1``. The weights are
    signed and invariant to rotation, scaling and translation.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The points, and the neighbours to choose from.
    n_neighbors : int
        K >= 1, smaller than n_samples (or at most n_samples if `queries` are given). Among points
        at equal distance the first are chosen.
    reg : float, default=1e-3
        Regularisation relative to the trace of g, as in scikit-learn; the papers give none. Needed
        wherever ``n_neighbors > n_features``.
    queries : array-like of shape (n_queries, n_features), optional
        Points to reconstruct from the rows of X (out of sample, nothing is excluded). None
        reconstructs the rows of X themselves.

    Returns
    -------
    csr_array of shape (n_samples, n_samples) or (n_queries, n_samples)
        Rows with `n_neighbors` stored entries that sum to 1; indices are sorted. A point whose
        neighbours all coincide with it gets equal weights.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``reg < 0`` or fewer points than neighbours.

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
    X = check_matrix(X, "X", min_rows=2 if queries is None else 1)
    points = X if queries is None else check_matrix(queries, "queries", n_features=X.shape[1])
    most = len(X) - (queries is None)
    n_neighbors = check_integer(n_neighbors, "n_neighbors", minimum=1, maximum=most)
    reg = check_positive(reg, "reg", allow_zero=True)

    size = max(1, _BLOCK_ENTRIES // max(len(X), n_neighbors * X.shape[1]))
    indices = np.empty((len(points), n_neighbors), dtype=np.intp)
    weights = np.empty((len(points), n_neighbors))
    for start in range(0, len(points), size):
        rows = slice(start, min(start + size, len(points)))
        exclude = np.arange(rows.start, rows.stop) if queries is None else None
        indices[rows] = _nearest(points[rows], X, n_neighbors, exclude)
        weights[rows] = _barycentre_weights(points[rows], X, indices[rows], reg)

    indptr = np.arange(0, len(points) * n_neighbors + 1, n_neighbors)
    dtype = np.result_type(X, points)
    return csr_array(
        (weights.ravel().astype(dtype), indices.ravel(), indptr), shape=(len(points), len(X))
    )


def locally_linear_residual(
    X: ArrayLike,
    weights: csr_array,
    *,
    reg: float = 1e-3,
    queries: ArrayLike | None = None,
) -> Array:
    """Relative residual of the optimality conditions of `locally_linear_weights`, a row each.

    With ``m = (g + reg tr(g) I) c`` on the stored neighbours of row i, the weights are optimal iff
    m is constant and c sums to one; the residual is ::

        max( max_a |m_a - mean(m)| / (tr(g) max_a |c_a|),  |sum_a c_a - 1| )

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
        If shapes do not fit, `weights` is not sparse or has an empty row, or ``reg < 0``.

    References
    ----------
    EQUATIONS SE-9.

    Examples
    --------
    >>> from twinsolve.solvers import locally_linear_residual, locally_linear_weights
    >>> X = [[0.0], [1.0], [3.0]]
    >>> C = locally_linear_weights(X, n_neighbors=2)
    >>> bool((locally_linear_residual(X, C) < 1e-12).all())
    True
    """
    X = check_matrix(X, "X").astype(np.float64)
    points = X if queries is None else check_matrix(queries, "queries", n_features=X.shape[1])
    reg = check_positive(reg, "reg", allow_zero=True)
    if not issparse(weights) or weights.shape != (len(points), len(X)):
        raise ValueError(f"weights: must be a sparse array of shape {(len(points), len(X))}")
    weights = csr_array(weights)
    if (np.diff(weights.indptr) == 0).any():
        raise ValueError("weights: every row must have a stored entry")
    residual = np.empty(len(points))
    for i, x in enumerate(points):
        stored = slice(weights.indptr[i], weights.indptr[i + 1])
        c = weights.data[stored].astype(np.float64)
        local = X[weights.indices[stored]] - x
        gram = local @ local.T
        trace = max(np.trace(gram), np.finfo(np.float64).tiny)
        m = gram @ c + reg * trace * c
        spread = np.abs(m - m.mean()).max() / (trace * np.abs(c).max())
        residual[i] = max(spread, abs(c.sum() - 1))
    return residual


def _nearest(points: Array, X: Array, n_neighbors: int, exclude: Array | None) -> Array:
    distances = cdist(points, X)
    if exclude is not None:
        distances[np.arange(len(points)), exclude] = np.inf
    kth = np.partition(distances, n_neighbors - 1, axis=1)[:, n_neighbors - 1, None]
    closer, tied = distances < kth, distances == kth
    room = n_neighbors - closer.sum(axis=1, keepdims=True)
    chosen = closer | (tied & (tied.cumsum(axis=1) <= room))
    return np.nonzero(chosen)[1].reshape(len(points), n_neighbors)


def _barycentre_weights(points: Array, X: Array, indices: Array, reg: float) -> Array:
    local = X[indices].astype(np.float64) - points[:, None, :]
    gram = local @ local.transpose(0, 2, 1)
    trace = np.trace(gram, axis1=1, axis2=2)
    ridge = np.where(trace > 0, reg * trace, 1.0)
    gram += ridge[:, None, None] * np.eye(indices.shape[1])
    try:
        h = np.linalg.solve(gram, np.ones((*indices.shape, 1)))[..., 0]
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "reg: a local Gram matrix is singular (neighbours coincide, or outnumber the "
            "features); use reg > 0"
        ) from error
    return h / h.sum(axis=1, keepdims=True)
