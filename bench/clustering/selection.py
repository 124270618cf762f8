"""The choice of settings without labels."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.stats import entropy
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import normalize

from ...solvers.clustering.spectral import (
    EmbeddedGraph,
    embed_graph,
)
from ...solvers.solution import Array

_SAMPLE = 3000

GROUP = ["data", "features", "method", "steps"]
RULE = (
    "Settings are chosen without labels: for each data set, features, method and chain of affinity "
    "steps, one setting for all trials, with the largest mean of (1 + s) / 2 * H / log k, where s "
    "is the silhouette of the found clusters in the spectral embedding, H the entropy of their "
    "sizes and k their number; 0 where the graph has more than k components. Methods without an "
    "affinity take their first setting."
)


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
    clusters is arbitrary. Of more than 3,000 points a sample gives the silhouette.

    No classes enter: `labels` are the clusters that the affinity itself led to. Scores are meant
    for settings of one method and one chain of affinity steps.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    labels : array-like of int of shape (n_samples,) or None
        Clusters of the samples. None takes `spectral_labels` with seed 0.
    n_clusters : int
        Number of clusters looked for.

    Returns
    -------
    float
        In [0, 1]; 0 for a single cluster.

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
    graph = embed_graph(affinity, n_clusters)
    return score_of(graph, graph.kmeans(0) if labels is None else labels, n_clusters)


def score_of(graph: EmbeddedGraph, labels: ArrayLike, n_clusters: int) -> float:
    """`selection_score` of the clusters of an embedded graph."""
    clusters = np.unique(np.asarray(labels), return_inverse=True)[1]
    if clusters.shape != graph.connected.shape:
        raise ValueError(f"labels: must be one for each of {len(graph.connected)} samples")
    if n_clusters == 1:
        return 0.0
    balance = entropy(np.bincount(clusters)) / np.log(n_clusters)
    return float(min(balance, 1.0) * (1 + _silhouette(graph, clusters, n_clusters)) / 2)


def select_settings(table: pd.DataFrame, *, label_tuned: bool = False) -> pd.DataFrame:
    """Mark the rows of the settings chosen without labels; others have an empty `selection`.

    Parameters
    ----------
    table : DataFrame
        With the columns `GROUP`, ``settings``, ``selection_score`` and ``accuracy``.
    label_tuned : bool, default=False
        Append the rows of the settings with the best mean accuracy, marked ``labels``.
    """
    by_score = _chosen(table, "selection_score")
    marked = table.assign(selection=np.where(by_score, "label-free", ""))
    if not label_tuned:
        return marked
    by_labels = table[_chosen(table, "accuracy")].assign(selection="labels")
    return pd.concat([marked, by_labels], ignore_index=True)


def _chosen(table: pd.DataFrame, column: str) -> Array:
    """Rows of the setting with the best mean in each group; ties go to the first setting.

    A setting that lacks a number comes after all that do not.
    """
    groups = table.groupby([*GROUP, "settings"], sort=False)[column]
    means = groups.mean().where(groups.count() == groups.size())
    best = means.fillna(-np.inf).groupby(GROUP, sort=False).idxmax()
    keys = pd.MultiIndex.from_frame(table[[*GROUP, "settings"]])
    return np.asarray(keys.isin(best))


def _silhouette(graph: EmbeddedGraph, clusters: Array, n_clusters: int) -> float:
    """Of the connected points, or a seeded sample of them; -1 where there is none."""
    clusters = clusters[graph.connected]
    n_parts = len(np.unique(graph.part))
    if n_parts > n_clusters or len(clusters) <= n_clusters or len(np.unique(clusters)) < 2:
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
