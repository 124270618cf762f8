"""Scores of affinities by their own clusters, without labels."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.stats import entropy
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import normalize

from ..inputs import Array, check_dense_or_sparse
from .spectral import EmbeddedGraph, embed_graph

_SAMPLE = 3000
_MOST_OWN = 0.5  # share of the coefficients that points may have on themselves


def diagonal_share(coef: ArrayLike | csr_array) -> float:
    """Share of the diagonal in the coefficients: ``sum_i |c_ii| / sum_ij |c_ij|``; 0 without any.

    It is 1 where each point represents itself alone.
    """
    size = abs(check_dense_or_sparse(coef, "coef"))
    return float(size.diagonal().sum() / (size.sum() or 1.0))


def trivial_share(coef: ArrayLike | csr_array) -> float:
    """`diagonal_share` if it is above 1/2, so that points represent mainly themselves, else 0.

    Such coefficients fit the data whatever its clusters are. The half is no tuned number: points
    have more on themselves than on all others together.
    """
    share = diagonal_share(coef)
    return share if share > _MOST_OWN else 0.0


def selection_score(
    affinity: ArrayLike | csr_array, labels: ArrayLike | None, n_clusters: int
) -> float:
    """Score of an affinity by its own clusters; the settings with the highest score are chosen.

    ::

        (1 + s) / 2 * H / log(n_clusters)

    Here s is the silhouette of the clusters in the spectral embedding, that is, among the unit rows
    of the leading `n_clusters` eigenvectors, which the spectral step clusters. H is the entropy of
    the cluster sizes. The first factor rewards separated clusters. The second factor is 1 for
    clusters of equal size, and low if one cluster holds nearly all points, which would be separated
    but useless. A graph with more connected components than clusters (isolated points not counted)
    scores 0, as it is arbitrary which components become clusters. So does a graph whose eigenvalue
    `n_clusters` cannot be told from the next, see `spectral_labels`. With more than 3,000 points,
    the silhouette is computed on a sample.

    No true classes are used: `labels` are the clusters that come from the affinity itself. By
    itself a score compares settings of one method with the same affinity steps. To choose among
    methods, see `rank_clusterings`.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    labels : array-like of int of shape (n_samples,) or None
        Clusters of the samples. None takes `spectral_labels` with seed 0.
    n_clusters : int
        Number of clusters that was asked for.

    Returns
    -------
    float
        In [0, 1]; 0 for a single cluster.

    Raises
    ------
    ValueError
        If `affinity` is not square, symmetric, finite and nonnegative, `labels` does not hold one
        label for each sample, or `n_clusters` is out of range.

    References
    ----------
    Rousseeuw, "Silhouettes" (1987); Ng, Jordan and Weiss, "On Spectral Clustering" (2001).

    Examples
    --------
    >>> from twinsolve.solvers.clustering import selection_score
    >>> A = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    >>> selection_score(A, [0, 0, 1, 1], 2)
    1.0
    """
    graph = embed_graph(affinity, n_clusters)
    return score_of(graph, graph.kmeans(0) if labels is None else labels, n_clusters)


def score_of(graph: EmbeddedGraph, labels: ArrayLike, n_clusters: int) -> float:
    """`selection_score` of the clusters of an embedded graph."""
    values, clusters = np.unique(np.asarray(labels), return_inverse=True)
    if np.shape(labels) != graph.connected.shape:
        raise ValueError(
            f"labels: must hold one label for each of the {len(graph.connected)} samples, got "
            f"shape {np.shape(labels)}"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("labels: must not hold NaN or infinity")
    if n_clusters == 1:
        return 0.0
    balance = entropy(np.bincount(clusters)) / np.log(n_clusters)
    return float(min(balance, 1.0) * (1 + _silhouette(graph, clusters, n_clusters)) / 2)


def _silhouette(graph: EmbeddedGraph, clusters: Array, n_clusters: int) -> float:
    """Return the silhouette of a seeded sample of connected points; -1 if it is arbitrary."""
    clusters = clusters[graph.connected]
    n_parts = len(np.unique(graph.part))
    too_few_clusters = len(clusters) <= n_clusters or len(np.unique(clusters)) < 2
    if graph.tied or n_parts > n_clusters or too_few_clusters:
        return -1.0
    if graph.embedding is None:
        embedding = np.eye(n_parts)[graph.part]
    else:
        embedding = normalize(graph.embedding)
    if len(clusters) > _SAMPLE:
        chosen = np.random.default_rng(0).choice(len(clusters), _SAMPLE, replace=False)
        embedding, clusters = embedding[chosen], clusters[chosen]
        if len(np.unique(clusters)) < 2:
            return -1.0
    return float(silhouette_score(embedding, clusters))
