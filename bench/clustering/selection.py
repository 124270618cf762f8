"""Settings without labels: the rule by which the benchmark chooses among affinities."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import entropy
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import normalize

from ...solvers import spectral_labels
from ...solvers.clustering.spectral import check_affinity, check_n_clusters, leading_eigenvectors
from ...solvers.solution import Array


def selection_score(
    affinity: ArrayLike | csr_array, labels: ArrayLike | None, n_clusters: int
) -> float:
    """Score of an affinity by its own clusters; of several settings, the highest is chosen.

    ::

        (1 + s) / 2 * H / log(n_clusters)

    with s the silhouette of the clusters in the spectral embedding, the unit rows of the leading
    `n_clusters` eigenvectors that the spectral step clusters, and H the entropy of the clusters'
    sizes. The first factor asks for separated clusters; the second is 1 for clusters of equal size,
    and low where one holds nearly all points, which are separated and say nothing. A graph in more
    connected components than clusters scores 0, isolated points not counted: which of them become
    clusters is arbitrary.

    No classes enter: `labels` are the clusters that the affinity itself led to. Scores are meant
    for settings of one method and one chain of affinity steps.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    labels : array-like of int of shape (n_samples,) or None
        Clusters of the samples. None takes `spectral_labels` with seed 0.
    n_clusters : int
        Number of clusters looked for, at least 2.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If `affinity` is not square, symmetric, finite and nonnegative, `labels` are not one for
        each sample, or `n_clusters` is out of range.

    References
    ----------
    Rousseeuw, "Silhouettes" (1987); Ng, Jordan and Weiss, "On Spectral Clustering" (2001).

    Examples
    --------
    >>> from twinsolve.bench.clustering.selection import selection_score
    >>> A = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    >>> selection_score(A, [0, 0, 1, 1], 2)
    1.0
    """
    A = check_affinity(affinity)
    if check_n_clusters(n_clusters, A.shape[0]) < 2:
        raise ValueError(f"n_clusters: must be at least 2, got {n_clusters}")
    labels = spectral_labels(A, n_clusters, random_state=0) if labels is None else labels
    clusters = np.unique(np.asarray(labels), return_inverse=True)[1]
    if clusters.shape != (A.shape[0],):
        raise ValueError(f"labels: must be one for each of {A.shape[0]} samples")
    balance = entropy(np.bincount(clusters)) / np.log(n_clusters)
    return float(min(balance, 1.0) * (1 + _silhouette(A, clusters, n_clusters)) / 2)


def _silhouette(A: Array | csr_array, clusters: Array, n_clusters: int) -> float:
    """Of the connected points; -1 where there is none."""
    part = connected_components(A, directed=False)[1]
    size = np.bincount(part)
    inside = np.flatnonzero(size[part] > 1)
    n_parts, n_found = (size > 1).sum(), len(np.unique(clusters[inside]))
    if n_parts > n_clusters or len(inside) <= n_clusters or n_found < 2:
        return -1.0
    if n_parts == n_clusters:
        embedding = np.eye(len(size))[part[inside]]
    else:
        embedding = normalize(leading_eigenvectors(A[inside][:, inside], n_clusters)[1])
    return float(silhouette_score(embedding, clusters[inside]))
