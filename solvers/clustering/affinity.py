"""Affinities from coefficients: the steps PP-1 to PP-5. Row i of C represents sample i."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.special import softmax
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from sklearn.utils import gen_batches

from ...validation import check_integer, check_positive
from ..inputs import Array, check_dense_or_sparse, narrow
from ..symmetric import leading_eigh
from .order import in_order_of_samples

_BATCH = 256
_DENSE = 0.2  # share of non-zeros above which sparse products are slower than dense ones


@in_order_of_samples
def keep_l1_mass(coef: ArrayLike | csr_array, mass: float) -> Array | csr_array:
    """Keep the largest entries of each row until they hold a share of the row's l1 norm.

    Let the entries of row c be sorted, ``|c_(1)| >= |c_(2)| >= ...``. The row keeps the first m of
    them, where m is the smallest number with ``sum_{t <= m} |c_(t)| >= mass |c|_1``. The other
    entries become zero.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_rows, n_atoms)
    mass : float
        Share of the norm to keep, in (0, 1]. The paper on sparse subspace clustering takes 0.7 for
        motion segmentation.

    Returns
    -------
    ndarray or csr_array of shape (n_rows, n_atoms)
        Sparse if `coef` is.

    Raises
    ------
    ValueError
        If `mass` is outside (0, 1], or `coef` holds NaN or infinity.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS PP-1.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import keep_l1_mass
    >>> keep_l1_mass([[0.0, 3.0, -6.0, 1.0]], 0.7)
    array([[ 0.,  3., -6.,  0.]])
    """
    if check_positive(mass, "mass") > 1:
        raise ValueError(f"mass: must be in (0, 1], got {mass!r}")
    C = check_dense_or_sparse(coef, "coef").copy()
    for row in np.split(C.data, C.indptr[1:-1]) if isinstance(C, csr_array) else C:
        order = np.argsort(-np.abs(row), kind="stable")
        cumulated = np.cumsum(np.abs(row[order]), dtype=np.float64)
        row[order[1:][cumulated[:-1] >= mass * cumulated[-1:]]] = 0
    if isinstance(C, csr_array):
        C.eliminate_zeros()
    return C


@in_order_of_samples
def keep_largest(coef: ArrayLike | csr_array, n_entries: int) -> Array | csr_array:
    """Keep the largest entries of each row, in absolute value; the others become zero.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_rows, n_atoms)
    n_entries : int
        Number of entries to keep in a row, at least 1. Among equal entries the first are kept.

    Returns
    -------
    ndarray or csr_array of shape (n_rows, n_atoms)
        Sparse if `coef` is.

    Raises
    ------
    ValueError
        If ``n_entries < 1``, or `coef` holds NaN or infinity.

    References
    ----------
    Zhang et al., "Learning a self-expressive network for subspace clustering" (2021), which keeps
    1,000 entries.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import keep_largest
    >>> keep_largest([[0.0, 3.0, -6.0, 1.0]], 2)
    array([[ 0.,  3., -6.,  0.]])
    """
    n_entries = check_integer(n_entries, "n_entries", minimum=1)
    C = check_dense_or_sparse(coef, "coef").copy()
    if isinstance(C, csr_array):
        C.sort_indices()
    for row in np.split(C.data, C.indptr[1:-1]) if isinstance(C, csr_array) else C:
        row[np.argsort(-np.abs(row), kind="stable")[n_entries:]] = 0
    if isinstance(C, csr_array):
        C.eliminate_zeros()
    return C


def scale_by_row_maximum(coef: ArrayLike | csr_array) -> Array | csr_array:
    """Divide each row by its largest absolute entry: ``c_ij / max_l |c_il|``; zero rows stay zero.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_rows, n_atoms)

    Returns
    -------
    ndarray or csr_array of shape (n_rows, n_atoms)
        Sparse if `coef` is.

    Raises
    ------
    ValueError
        If `coef` holds NaN or infinity.

    References
    ----------
    EQUATIONS PP-2. Followed by `symmetric_affinity`, this gives the affinity of the circulated code
    of sparse subspace clustering.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import scale_by_row_maximum
    >>> scale_by_row_maximum([[0.0, -4.0], [0.0, 0.0]])
    array([[ 0., -1.],
           [ 0.,  0.]])
    """
    C = check_dense_or_sparse(coef, "coef")
    largest = abs(C).max(axis=1)
    if isinstance(C, csr_array):
        largest = np.repeat(largest.toarray(), np.diff(C.indptr))
        scaled = C.copy()  # with indices of its own: the answer shares nothing with `coef`
        scaled.data /= np.where(largest > 0, largest, 1)
        return scaled
    return C / np.where(largest > 0, largest, 1)[:, None]


@in_order_of_samples
def unit_rows(coef: ArrayLike | csr_array) -> Array | csr_array:
    """Divide each row by its Euclidean norm: ``c_i / |c_i|``; zero rows stay zero.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_rows, n_atoms)

    Returns
    -------
    ndarray or csr_array of shape (n_rows, n_atoms)
        Sparse if `coef` is.

    Raises
    ------
    ValueError
        If `coef` holds NaN or infinity.

    References
    ----------
    EQUATIONS PP-2b.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import unit_rows
    >>> unit_rows([[3.0, -4.0], [0.0, 0.0]])
    array([[ 0.6, -0.8],
           [ 0. ,  0. ]])
    """
    # Without this, `normalize` would treat tiny rows, below the rounding level of 1, as zero.
    return normalize(scale_by_row_maximum(coef))


def symmetric_affinity(coef: ArrayLike | csr_array) -> Array | csr_array:
    """Affinity ``|C| + |C|^T`` of self-expression coefficients.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)

    Returns
    -------
    ndarray or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative; sparse if `coef` is.

    Raises
    ------
    ValueError
        If `coef` is not square or holds NaN or infinity.

    References
    ----------
    EQUATIONS SE-AFF, PP-2a.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import symmetric_affinity
    >>> symmetric_affinity([[0.0, -1.0], [0.5, 0.0]])
    array([[0. , 1.5],
           [1.5, 0. ]])
    """
    size = abs(_check_square(coef))
    return size + size.T


@in_order_of_samples
def nearest_rows_affinity(coef: ArrayLike | csr_array, *, n_neighbors: int = 3) -> csr_array:
    """Nearest-neighbour graph ``(G + G^T) / 2`` of the rows of coefficients, by angle.

    ``g_ij = 1`` for the `n_neighbors` rows j != i with the largest cosine of ``c_i`` and ``c_j``,
    and 0 otherwise. Rows of zeros have no neighbours.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)
    n_neighbors : int, default=3
        With fewer than ``n_neighbors + 1`` nonzero rows, all other nonzero rows are neighbours.

    Returns
    -------
    csr_array of shape (n_samples, n_samples)
        Symmetric, in [0, 1].

    Raises
    ------
    ValueError
        If `coef` is not square or holds NaN or infinity, or ``n_neighbors < 1``.

    References
    ----------
    Zhang et al., "Learning a self-expressive network for subspace clustering" (2021), which takes
    3 neighbours.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import nearest_rows_affinity
    >>> nearest_rows_affinity([[0.0, 1.0, 0.1], [1.0, 0.0, 0.0], [0.1, 1.0, 0.0]],
    ...                       n_neighbors=1).toarray()
    array([[0. , 0. , 1. ],
           [0. , 0. , 0.5],
           [1. , 0.5, 0. ]])
    """
    C = unit_rows(_check_square(coef))
    n_neighbors = check_integer(n_neighbors, "n_neighbors", minimum=1)
    used = np.flatnonzero(abs(C).sum(axis=1))
    n_neighbors = min(n_neighbors, len(used) - 1)
    if n_neighbors < 1:
        return csr_array(C.shape, dtype=C.dtype)
    if isinstance(C, csr_array) and C.nnz < _DENSE * C.shape[0] ** 2:
        nearest = _nearest_rows(C[used], n_neighbors)
    else:
        points = C[used].toarray() if isinstance(C, csr_array) else C[used]
        search = NearestNeighbors(n_neighbors=n_neighbors).fit(points)
        nearest = search.kneighbors(return_distance=False)
    pairs = np.repeat(used, n_neighbors), used[nearest.ravel()]
    graph = narrow(csr_array((np.ones(nearest.size, C.dtype), pairs), shape=C.shape))
    return 0.5 * (graph + graph.T)


def _nearest_rows(C: csr_array, n: int) -> Array:
    """Return the indices of the n other rows with the largest cosine to each unit row.

    Most pairs of sparse rows share no column and have the cosine 0. Such pairs are considered only
    for rows with fewer than n positive cosines.
    """
    nearest = np.empty((C.shape[0], n), dtype=np.int64)
    transposed = csr_array(C.T)
    for batch in gen_batches(C.shape[0], _BATCH):
        cosines = C[batch] @ transposed
        for i, row in enumerate(range(C.shape[0])[batch]):
            stored = slice(*cosines.indptr[i : i + 2])
            columns, values = cosines.indices[stored], cosines.data[stored].copy()
            values[columns == row] = -np.inf
            if np.count_nonzero(values > 0) < n:
                columns, values = np.arange(C.shape[0]), cosines[[i]].toarray()[0]
                values[row] = -np.inf
            nearest[row] = columns[np.argpartition(-values, n - 1)[:n]]
    return nearest


@in_order_of_samples
def low_rank_affinity(coef: ArrayLike | csr_array, *, power: float = 4.0) -> Array:
    """Affinity of low-rank coefficients, from the angles between their left singular vectors.

    ::

        C = U S V^T (thin SVD),   M = U S^(1/2) with unit rows,   A_ij = |m_i . m_j|^power

    Zero rows of C give zero rows of A. Singular values at rounding level are dropped.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)
    power : float, default=4.0
        Positive. The recipes (EQUATIONS PP-R) take 4 for low-rank representation and 3 for LRSC.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        Symmetric, in [0, 1].

    Raises
    ------
    ValueError
        If `coef` is not square or holds NaN or infinity, or ``power <= 0``.

    References
    ----------
    Liu et al., "Robust Recovery of Subspace Structures by Low-Rank Representation" (2013);
    EQUATIONS PP-3.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import low_rank_affinity
    >>> low_rank_affinity([[2.0, 2.0], [2.0, 2.0]]).round(4)
    array([[1., 1.],
           [1., 1.]])
    """
    C = _check_square(coef)
    power = check_positive(power, "power")
    C = C.toarray() if isinstance(C, csr_array) else C
    U, s, _ = np.linalg.svd(C, full_matrices=False)
    return np.abs(_cosines(U, s)) ** power


@in_order_of_samples
def svd_power_affinity(
    coef: ArrayLike | csr_array, n_clusters: int, *, dimension: int, power: float
) -> Array:
    """Affinity by a truncated SVD and a power, as in the code of EDSC and deep subspace clustering.

    ::

        (C + C^T) / 2 = U S V^T,   M = U_r S_r^(1/2) with unit rows,   r = dimension n_clusters + 1
        B_ij = max(m_i . m_j, 0)^power,   A = (B + B^T) / (2 max B)

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)
    n_clusters : int
    dimension : int
        Dimension of a subspace. If r exceeds `n_samples`, all singular vectors are kept.
    power : float
        Positive. The papers choose `dimension` and `power` for each data set, by its labels.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        Symmetric, in [0, 1].

    Raises
    ------
    ValueError
        If `coef` is not square or holds NaN or infinity, or a number is not positive.

    References
    ----------
    Ji et al., "Efficient Dense Subspace Clustering" (2014) and "Deep Subspace Clustering Networks"
    (2017); EQUATIONS PP-4.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import svd_power_affinity
    >>> svd_power_affinity([[2.0, 2.0], [2.0, 2.0]], 1, dimension=1, power=2.0).round(4)
    array([[1., 1.],
           [1., 1.]])
    """
    C = _check_square(coef)
    rank = 1 + check_integer(dimension, "dimension", minimum=1) * check_integer(
        n_clusters, "n_clusters", minimum=1
    )
    power = check_positive(power, "power")
    C = C.toarray() if isinstance(C, csr_array) else C
    values, vectors = _ends((C + C.T) / 2, rank)
    leading = np.argsort(-np.abs(values), kind="stable")[:rank]
    B = np.maximum(_cosines(vectors[:, leading], np.abs(values[leading])), 0) ** power
    return (B + B.T) / (2 * max(B.max(), np.finfo(B.dtype).tiny))


@in_order_of_samples
def softmax_rows(coef: ArrayLike | csr_array) -> Array:
    """Softmax over each row: ``exp(c_ij) / sum_l exp(c_il)``.

    Zeros count as logits of 0, so the result is dense. For the softmax of ``|C|`` pass ``abs(C)``.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_rows, n_atoms)

    Returns
    -------
    ndarray of shape (n_rows, n_atoms)
        Positive, rows sum to 1.

    Raises
    ------
    ValueError
        If `coef` holds NaN or infinity.

    References
    ----------
    EQUATIONS PP-5.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import softmax_rows
    >>> softmax_rows([[1.0, 1.0]])
    array([[0.5, 0.5]])
    """
    C = check_dense_or_sparse(coef, "coef")
    return softmax(C.toarray() if isinstance(C, csr_array) else C, axis=1)


def _check_square(coef: ArrayLike | csr_array) -> Array | csr_array:
    C = check_dense_or_sparse(coef, "coef")
    if C.shape[0] != C.shape[1]:
        raise ValueError(f"coef: must be square, got shape {C.shape}")
    return C


def _ends(S: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` smallest and largest eigenvalues, ascending, and their eigenvectors.

    Lanczos iterations would be faster, but can miss repeated eigenvalues. Without noise, the
    nonzero eigenvalues of low-rank coefficients are all 1.
    """
    n = len(S)
    if 4 * count >= n:
        return eigh(S)
    (low, low_vectors), (high, high_vectors) = leading_eigh(-S, count), leading_eigh(S, count)
    return np.concatenate([-low, high[::-1]]), np.hstack([low_vectors, high_vectors[:, ::-1]])


def _cosines(U: Array, s: Array) -> Array:
    """Return ``M M^T`` for ``M = U S^(1/2)`` with unit rows, without entries at rounding level."""
    rounding = len(U) * np.finfo(s.dtype).eps
    significant = s > rounding * s.max()
    M = U[:, significant] * np.sqrt(s[significant])
    norms = np.linalg.norm(M, axis=1, keepdims=True)
    M = M / np.where(norms > rounding * np.sqrt(s.max()), norms, np.inf)
    cosines = M @ M.T
    return np.clip(cosines, -1, 1, out=cosines)
