"""The choice of settings, and of a clusterer, without labels."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, hstack
from scipy.stats import entropy
from sklearn.base import clone
from sklearn.metrics import silhouette_score
from sklearn.model_selection import ParameterGrid
from sklearn.preprocessing import normalize

from ..solution import Array, check_dense_or_sparse
from .spectral import EmbeddedGraph, embed_graph

_SAMPLE = 3000
_POWER = 24  # of a score: what its clusters count
_SAME = 1e-12  # distance along a line at which points count as one, relative to the largest


@dataclass(frozen=True)
class ChosenSettings:
    """What `choose_settings` chose.

    Attributes
    ----------
    estimator : estimator
        A fitted clone with the chosen settings.
    settings : dict
        These.
    score : float
        Their `selection_score`.
    scores : tuple of (dict, float)
        All settings that were tried, with their scores.
    """

    estimator: Any
    settings: dict[str, Any]
    score: float
    scores: tuple[tuple[dict[str, Any], float], ...]


def choose_settings(
    estimator: Any, X: ArrayLike, grid: Mapping[str, Iterable[Any]]
) -> ChosenSettings:
    """Fit a clusterer at all settings of a grid, and take the one of highest `selection_score`.

    No labels are used. It is how the estimators of this package choose what they are told to with
    ``"auto"``, and how `twinsolve cluster` chooses among settings.

    Parameters
    ----------
    estimator : estimator
        With ``n_clusters``, and after ``fit`` with ``affinity_matrix_`` and ``labels_``: those of
        this package and of `unrolled.clustering`, but for `KSubspaces`, and
        `sklearn.cluster.SpectralClustering`. It is left as it is.
    X : array-like of shape (n_samples, n_features)
    grid : mapping of str to iterable
        Values to try, by parameter of the estimator. Of equal scores the first counts, in the order
        of `sklearn.model_selection.ParameterGrid`.

    Returns
    -------
    ChosenSettings

    Raises
    ------
    ValueError
        If the estimator makes no affinity or has no such parameter, or a parameter has no values.

    Warns
    -----
    UserWarning
        If there is nothing to choose by, see `arbitrary_choice`.

    References
    ----------
    See `selection_score`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from twinsolve.solvers import OMPSubspaceClustering, choose_settings
    >>> X = load_digits(n_class=3).data[:150]
    >>> model = OMPSubspaceClustering(3, random_state=0)
    >>> choose_settings(model, X, {"n_nonzero": [2, 20]}).settings
    {'n_nonzero': 2}
    """
    chosen: tuple[Any, dict[str, Any], float] = estimator, {}, -1.0
    scores = []
    for settings in ParameterGrid({name: list(values) for name, values in grid.items()}):
        fitted = clone(estimator).set_params(**settings).fit(X)
        score = _score_of_fitted(fitted)
        scores.append((settings, score))
        if score > chosen[2]:
            chosen = fitted, settings, score
    n_clusters, n_points = getattr(estimator, "n_clusters", None), len(chosen[0].labels_)
    if len(scores) > 1 and (reason := arbitrary_choice(chosen[2], n_clusters, n_points)):
        warnings.warn(reason, stacklevel=2)
    return ChosenSettings(*chosen, tuple(scores))


@dataclass(frozen=True)
class ChosenClusterer:
    """What `choose_clusterer` chose.

    Attributes
    ----------
    estimator : estimator
        The fitted clone of the chosen one.
    score : float
        Its `selection_score`.
    scores : ndarray of shape (n_estimators,)
        Those of all, in their order; NaN for one that was given before.
    agreement : ndarray of shape (n_estimators,)
        What decided, as `rank_clusterings` says; NaN for one that was given before.
    ranking : ndarray of int
        Numbers of the estimators, best first, each of several equal ones once.
    """

    estimator: Any
    score: float
    scores: Array
    agreement: Array
    ranking: Array


def choose_clusterer(estimators: Iterable[Any], X: ArrayLike) -> ChosenClusterer:
    """Fit clusterers of any kind, and take the one whose clusters the other good ones confirm.

    That is the one whose clusters agree best with those of all, by the mean adjusted Rand index;
    each counts by the 24th power of its `selection_score`, so that those far below the largest
    hardly do. A single method can score well for a reason of its own, of its affinity steps say;
    that several come to the same clusters so, is less likely. No labels are used. It is the rule of
    ``twinsolve cluster --auto``.

    Parameters
    ----------
    estimators : iterable of estimators
        Such as `choose_settings` takes, with the same ``n_clusters``; they are left as they are. A
        few methods that differ in kind, with a grid each, serve better than many. One with the same
        parameters as another counts once: it would confirm itself.
    X : array-like of shape (n_samples, n_features)

    Returns
    -------
    ChosenClusterer

    Raises
    ------
    TypeError
        If `estimators` are no clusterers.
    ValueError
        If there are no estimators, one makes no affinity, they look for different numbers of
        clusters, or there are fewer distinct points than clusters.

    Warns
    -----
    UserWarning
        If there is nothing to choose by, see `arbitrary_choice`.

    References
    ----------
    See `selection_score` and `rank_clusterings`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from twinsolve.solvers import (
    ...     LocallyLinearSubspaceClustering, OMPSubspaceClustering, choose_clusterer
    ... )
    >>> X = load_digits(n_class=3).data[:150]
    >>> candidates = [OMPSubspaceClustering(3, n_nonzero=n, random_state=0) for n in (2, 20)]
    >>> candidates.append(LocallyLinearSubspaceClustering(3, random_state=0))
    >>> choose_clusterer(candidates, X).ranking
    array([2, 1, 0])
    """
    candidates = _check_candidates(estimators)
    n_clusters = getattr(candidates[0], "n_clusters", None)
    fitted: dict[int, Any] = {}
    for number, estimator in enumerate(candidates):
        if not any(equal_estimators(estimator, candidates[other]) for other in fitted):
            fitted[number] = clone(estimator).fit(X)
    check_distinct(check_dense_or_sparse(X, "X"), n_clusters, "X")
    scores = np.full(len(candidates), np.nan)
    labellings: list[Any] = [None] * len(candidates)
    for number, estimator in fitted.items():
        scores[number], labellings[number] = _score_of_fitted(estimator), estimator.labels_
    ranking, agreement = rank_clusterings(scores, labellings)
    best = ranking[0]
    if reason := arbitrary_choice(scores[best], n_clusters, len(labellings[best])):
        warnings.warn(reason, stacklevel=2)
    return ChosenClusterer(fitted[best], float(scores[best]), scores, agreement, ranking)


def _check_candidates(estimators: Iterable[Any]) -> list[Any]:
    """Return the estimators as a list; refuse none, or different numbers of clusters."""
    if not isinstance(estimators, Iterable):
        name = type(estimators).__name__
        raise TypeError(f"estimators: must be a sequence of clusterers, got {name}")
    found = list(estimators)
    for estimator in found:
        if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
            raise TypeError(f"estimators: must be clusterers with get_params, got {estimator!r}")
    if not found:
        raise ValueError("estimators: must hold at least one")
    numbers = {getattr(estimator, "n_clusters", None) for estimator in found}
    if len(numbers) > 1:
        words = ", ".join(sorted(map(str, numbers)))
        raise ValueError(f"estimators: must have the same n_clusters, got {words}")
    return found


def equal_estimators(first: Any, second: Any) -> bool:
    """Whether two estimators are of one class and have equal parameters."""
    if type(first) is not type(second):
        return False
    own, other = first.get_params(deep=False), second.get_params(deep=False)
    return all(
        value is other[name] or np.array_equal(value, other[name]) for name, value in own.items()
    )


def check_distinct(X: Array | csr_array, n_clusters: int | None, name: str) -> None:
    """Refuse fewer distinct points than clusters: every answer would be as good as another.

    Raises
    ------
    ValueError
        If there are; the message starts with `name`.
    """
    line = np.sort(X @ np.random.default_rng(0).standard_normal(X.shape[1]))
    apart = np.diff(line) > _SAME * np.abs(line).max()
    distinct = 1 + int(apart.sum())
    if n_clusters is not None and distinct < n_clusters:
        raise ValueError(
            f"{name}: has {distinct} distinct point{'s' if distinct > 1 else ''}, fewer than "
            f"n_clusters={n_clusters}: nothing tells the others apart"
        )


def arbitrary_choice(score: float, n_clusters: int | None, n_points: int) -> str:
    """Why the choice of the candidate with this `selection_score` says nothing, if it does not.

    That is so of a single cluster, of clusters of one point each, and where no candidate has a
    score above zero.
    """
    if n_clusters == 1:
        return "n_clusters=1: all points are one cluster, whatever is chosen"
    if n_clusters == n_points:
        return f"n_clusters={n_points} is the number of points: each is one, whatever is chosen"
    if score > 0:
        return ""
    return (
        "no candidate has a score above 0, as where graphs have more parts than there are "
        "clusters: the choice among them is arbitrary"
    )


def rank_clusterings(
    scores: ArrayLike, labellings: Sequence[ArrayLike | None]
) -> tuple[Array, Array]:
    """Rank clusterings by their agreement with all, of which those of large scores count most.

    ::

        agreement_i = sum_j w_j ARI(labels_i, labels_j) / sum_j w_j,   w_j = score_j^24

    Those without a score above zero come last: they are of graphs in too many parts. Of equal
    agreement the larger score counts, then the order given.

    Parameters
    ----------
    scores : array-like of shape (n_clusterings,)
        Such as `selection_score`, in [0, 1]; those without one, NaN, are not ranked.
    labellings : sequence of array-like of int of shape (n_samples,)
        Clusters of the samples; None where there is no score.

    Returns
    -------
    ranking : ndarray of int
        Numbers of the clusterings, best first.
    agreement : ndarray of shape (n_clusterings,)
        NaN where there is no score, and if none is above zero.

    Raises
    ------
    ValueError
        If there are not as many labellings as scores, one with a score is missing, or they are not
        of the same samples.

    References
    ----------
    Hubert and Arabie, "Comparing partitions" (1985). The clustering that agrees best with others
    is their consensus among themselves: Strehl and Ghosh, "Cluster ensembles" (2002). The power is
    of the design set.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import rank_clusterings
    >>> ranking, _ = rank_clusterings([0.89, 0.9, 0.88], [[0, 0, 1], [0, 1, 1], [1, 1, 0]])
    >>> ranking
    array([0, 2, 1])
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(labellings),):
        raise ValueError(f"scores: must be one for each of {len(labellings)} labellings")
    order = np.argsort(-values, kind="stable")[: np.isfinite(values).sum()]
    shapes = {np.shape(labellings[i]) for i in order}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        words = ", ".join(map(str, sorted(shapes)))
        raise ValueError(f"labellings: must be of the same samples, one label each, got {words}")
    agreement = np.full(len(values), np.nan)
    n_whole = int((values[order] > 0).sum())
    if n_whole:
        weights = np.maximum(values[order] / values[order[0]], 0) ** _POWER
        indices = rand_indices([labellings[i] for i in order])
        agreement[order] = indices @ weights / weights.sum()
        best = np.argsort(-agreement[order[:n_whole]].round(12), kind="stable")
        order[:n_whole] = order[best]
    return order, agreement


def rand_indices(labellings: Sequence[ArrayLike | None]) -> Array:
    """Adjusted Rand index of each labelling of the same samples with each."""
    members = [_members(np.asarray(labels)) for labels in labellings]
    n_samples = members[0].shape[0]
    everyone = hstack(members, format="csr")
    first = np.cumsum([0, *(member.shape[1] for member in members)])[:-1]

    def pairs(counts: Any) -> Any:
        return counts * (counts - 1) / 2

    together = np.array(
        [
            np.add.reduceat(pairs((member.T @ everyone).toarray()).sum(axis=0), first)
            for member in members
        ]
    )
    own = np.diag(together)
    largest = (own[:, None] + own) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.outer(own, own) / pairs(np.float64(n_samples))
        return np.where(largest > expected, (together - expected) / (largest - expected), 1.0)


def _members(labels: Array) -> csr_array:
    """Which sample is in which cluster, a column each."""
    clusters = np.unique(labels, return_inverse=True)[1]
    n_samples = len(labels)
    return csr_array((np.ones(n_samples), clusters, np.arange(n_samples + 1)))


def _score_of_fitted(estimator: Any) -> float:
    if not hasattr(estimator, "affinity_matrix_"):
        raise ValueError(
            f"estimator: {type(estimator).__name__} makes no affinity, by which it could be judged"
        )
    n_clusters = getattr(estimator, "n_clusters", None)
    if n_clusters is None:
        n_clusters = len(np.unique(estimator.labels_))
    return selection_score(estimator.affinity_matrix_, estimator.labels_, n_clusters)


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
    if clusters.shape != graph.connected.shape:
        raise ValueError(f"labels: must be one for each of {len(graph.connected)} samples")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("labels: must not hold NaN or infinity")
    if n_clusters == 1:
        return 0.0
    balance = entropy(np.bincount(clusters)) / np.log(n_clusters)
    return float(min(balance, 1.0) * (1 + _silhouette(graph, clusters, n_clusters)) / 2)


def _silhouette(graph: EmbeddedGraph, clusters: Array, n_clusters: int) -> float:
    """Silhouette of the connected points, or of a seeded sample; -1 where there is none."""
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
