"""Choose the settings of a clusterer, or a clusterer, without labels."""

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

from ..solution import Array, as_numbers, check_dense_or_sparse
from .order import reordered, row_order
from .spectral import EmbeddedGraph, embed_graph

_SAMPLE = 3000
_POWER = 24  # the weight of a clustering is its score to this power
_MOST_OWN = 0.5  # share of the coefficients that points may have on themselves
_DIGITS = 12  # of scores and agreements; further ones are rounding
_SAME = 1e-12  # relative distance along a line up to which points count as one


@dataclass(frozen=True)
class ChosenSettings:
    """Result of `choose_settings`.

    Attributes
    ----------
    estimator : estimator
        A fitted clone with the chosen settings.
    settings : dict
        The chosen settings.
    score : float
        The `selection_score` of the chosen settings, or -d, see `choose_settings`.
    scores : tuple of (dict, float)
        All settings of the grid, with their scores.
    """

    estimator: Any
    settings: dict[str, Any]
    score: float
    scores: tuple[tuple[dict[str, Any], float], ...]


def choose_settings(
    estimator: Any, X: ArrayLike, grid: Mapping[str, Iterable[Any]]
) -> ChosenSettings:
    """Fit a clusterer at all settings of a grid, and choose those of highest `selection_score`.

    Settings at which points represent mainly themselves come last, however high their score, as
    such coefficients tell nothing. These are settings whose `diagonal_share` d is above 1/2, and
    their score is -d. Scores are taken in the order of `row_order`, so that the choice does not
    depend on the order of the samples if the clusters do not.

    No labels are used. The estimators of this package choose parameters set to ``"auto"`` in this
    way, and so does `twinsolve cluster`.

    Parameters
    ----------
    estimator : estimator
        It must have ``n_clusters``, and after ``fit`` also ``affinity_matrix_`` and ``labels_``.
        The estimators of this package (except `KSubspaces`), those of `unrolled.clustering` and
        `sklearn.cluster.SpectralClustering` do. The estimator itself is not changed.
    X : array-like of shape (n_samples, n_features)
    grid : mapping of str to iterable
        Values to try for each parameter of the estimator. Among equal scores, the first in the
        order of `sklearn.model_selection.ParameterGrid` wins.

    Returns
    -------
    ChosenSettings

    Raises
    ------
    ValueError
        If the estimator makes no affinity or lacks a parameter of the grid, or a parameter has no
        values.

    Warns
    -----
    UserWarning
        If the choice is arbitrary, see `arbitrary_choice`. Warnings of estimators that are not
        chosen are left out.

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
    chosen: tuple[Any, dict[str, Any], float] = estimator, {}, -np.inf
    scores = []
    warned: list[warnings.WarningMessage] = []
    order = row_order(check_dense_or_sparse(X, "X"))
    for settings in ParameterGrid({name: list(values) for name, values in grid.items()}):
        fitted, score, said = _fit_and_score(clone(estimator).set_params(**settings), X, order)
        scores.append((settings, score))
        if np.round(score, _DIGITS) > np.round(chosen[2], _DIGITS):
            chosen, warned = (fitted, settings, score), said
    _warn_again(warned)
    n_clusters, n_points = getattr(estimator, "n_clusters", None), len(chosen[0].labels_)
    if len(scores) > 1 and (reason := arbitrary_choice(chosen[2], n_clusters, n_points)):
        warnings.warn(reason, stacklevel=2)
    return ChosenSettings(*chosen, tuple(scores))


@dataclass(frozen=True)
class ChosenClusterer:
    """Result of `choose_clusterer`.

    Attributes
    ----------
    estimator : estimator
        A fitted clone of the chosen estimator.
    score : float
        The score of the chosen estimator.
    scores : ndarray of shape (n_estimators,)
        The score of each estimator, as in `choose_settings`; NaN for one that equals an earlier
        estimator.
    agreement : ndarray of shape (n_estimators,)
        The agreement of each estimator, which decides the choice, see `rank_clusterings`; NaN for
        one that equals an earlier estimator.
    ranking : ndarray of int
        Indices of the estimators, best first; of equal estimators only the first.
    """

    estimator: Any
    score: float
    scores: Array
    agreement: Array
    ranking: Array


def choose_clusterer(estimators: Iterable[Any], X: ArrayLike) -> ChosenClusterer:
    """Fit clusterers of any kind, and choose the one whose clusters other good ones confirm.

    The chosen clusters have the largest mean adjusted Rand index with the clusters of all
    estimators. In this mean all methods have the same weight. A method is a class of estimators
    with one `affinity`. It divides its weight among its estimators by the 24th power of their
    `selection_score`, so that scores far below its largest hardly count. Scores of different
    methods are not compared: one can have high scores for a reason of its own, such as its affinity
    steps. That several methods find the same clusters by chance is less likely. Estimators whose
    points represent mainly themselves count for nothing and come last, see `choose_settings`. No
    labels are used. It is the rule of ``twinsolve cluster --auto``.

    Parameters
    ----------
    estimators : iterable of estimators
        Estimators as in `choose_settings`, with the same ``n_clusters``. They are not changed. A
        few methods of different kinds, each with a grid of settings, serve better than many. Equal
        estimators count once, as they would confirm each other.
    X : array-like of shape (n_samples, n_features)

    Returns
    -------
    ChosenClusterer

    Raises
    ------
    TypeError
        If `estimators` are no clusterers.
    ValueError
        If there are no estimators, one makes no affinity, their ``n_clusters`` differ, or there are
        fewer distinct points than clusters.

    Warns
    -----
    UserWarning
        If the choice is arbitrary, see `arbitrary_choice`. Warnings of estimators that are not
        chosen are left out.

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
    array([2, 0, 1])
    """
    candidates = _check_candidates(estimators)
    n_clusters = getattr(candidates[0], "n_clusters", None)
    points = check_dense_or_sparse(X, "X")
    check_distinct(points, n_clusters, "X")
    order = row_order(points)
    fitted: dict[int, Any] = {}
    warned: dict[int, list[warnings.WarningMessage]] = {}
    scores = np.full(len(candidates), np.nan)
    labellings: list[Any] = [None] * len(candidates)
    for number, estimator in enumerate(candidates):
        if any(equal_estimators(estimator, candidates[other]) for other in fitted):
            continue
        model, scores[number], warned[number] = _fit_and_score(clone(estimator), X, order)
        fitted[number], labellings[number] = model, model.labels_
    methods = [(type(one), getattr(one, "affinity", None)) for one in candidates]
    ranking, agreement = rank_clusterings(scores, labellings, methods)
    best = ranking[0]
    _warn_again(warned[best])
    if reason := arbitrary_choice(scores[best], n_clusters, len(labellings[best])):
        warnings.warn(reason, stacklevel=2)
    return ChosenClusterer(fitted[best], float(scores[best]), scores, agreement, ranking)


def _check_candidates(estimators: Iterable[Any]) -> list[Any]:
    """Return the estimators as a list, if there are some and their n_clusters are equal."""
    if not isinstance(estimators, Iterable):
        name = type(estimators).__name__
        raise TypeError(f"estimators: must be a sequence of clusterers, got {name}")
    candidates = list(estimators)
    for estimator in candidates:
        if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
            raise TypeError(f"estimators: must be clusterers with get_params, got {estimator!r}")
    if not candidates:
        raise ValueError("estimators: must hold at least one, got none")
    numbers = {getattr(estimator, "n_clusters", None) for estimator in candidates}
    if len(numbers) > 1:
        words = ", ".join(sorted(map(str, numbers)))
        raise ValueError(f"estimators: must have the same n_clusters, got {words}")
    return candidates


def equal_estimators(first: Any, second: Any) -> bool:
    """Whether two estimators have the same class and equal parameters."""
    if type(first) is not type(second):
        return False
    own, other = first.get_params(deep=False), second.get_params(deep=False)
    return all(
        value is other[name] or np.array_equal(value, other[name]) for name, value in own.items()
    )


def check_distinct(X: Array | csr_array, n_clusters: int | None, name: str) -> None:
    """Refuse fewer distinct points than clusters, for which all answers are equally good.

    Raises
    ------
    ValueError
        In this case; the message starts with `name`.
    """
    line = np.sort(X @ np.random.default_rng(0).standard_normal(X.shape[1]))
    apart = np.diff(line) > _SAME * np.abs(line).max()
    distinct = 1 + int(apart.sum())
    if n_clusters is not None and distinct < n_clusters:
        raise ValueError(
            f"{name}: has {distinct} distinct point{'s' if distinct > 1 else ''}, fewer than "
            f"n_clusters={n_clusters}"
        )


def arbitrary_choice(score: float, n_clusters: int | None, n_points: int) -> str:
    """Reason why choosing the candidate with this `selection_score` is arbitrary, else "".

    The choice is arbitrary if there is one cluster, if each cluster is one point, and if no
    candidate has a score above zero.
    """
    if n_clusters == 1:
        return "n_clusters=1: all points are one cluster, whatever is chosen"
    if n_clusters == n_points:
        return (
            f"n_clusters={n_points} is the number of points: each point is a cluster, whatever is "
            "chosen"
        )
    if score > 0:
        return ""
    return (
        "no candidate has a score above 0, for instance because each graph has more connected "
        "components than n_clusters, or because points represent mainly themselves: the choice is "
        "arbitrary"
    )


def rank_clusterings(
    scores: ArrayLike,
    labellings: Sequence[ArrayLike | None],
    methods: Sequence[Any] | None = None,
) -> tuple[Array, Array]:
    """Rank clusterings by their agreement with all clusterings, weighted by scores.

    ::

        agreement_i = sum_j w_j ARI(labels_i, labels_j) / sum_j w_j
        w_j = score_j^24 / sum of score_l^24 over the clusterings l of the method of j

    with ARI the adjusted Rand index. Scores are compared within a method alone. Clusterings without
    a score above zero come last: their graphs have too many components, or their points represent
    mainly themselves. Ties in the agreement go to the larger share of the best score of its method,
    then to the earlier clustering.

    Parameters
    ----------
    scores : array-like of shape (n_clusterings,)
        Scores up to 1, such as `selection_score`. A clustering with the score NaN is not ranked.
    labellings : sequence of array-like of int of shape (n_samples,)
        Labels of the samples in each clustering; may be None where the score is NaN.
    methods : sequence of hashable, optional
        The method of each clustering. None is one method for all.

    Returns
    -------
    ranking : ndarray of int
        Indices of the clusterings, best first.
    agreement : ndarray of shape (n_clusterings,)
        NaN where the score is NaN, and everywhere if no score is above zero.

    Raises
    ------
    ValueError
        If scores and labellings differ in number, a clustering with a score has no labels, or the
        labellings differ in length.

    References
    ----------
    Hubert and Arabie, "Comparing partitions" (1985). Strehl and Ghosh, "Cluster ensembles" (2002),
    take the clustering that agrees best with the others as a consensus. The power was chosen on the
    design set.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import rank_clusterings
    >>> ranking, _ = rank_clusterings([0.89, 0.9, 0.88], [[0, 0, 1], [0, 1, 1], [1, 1, 0]])
    >>> ranking
    array([0, 2, 1])
    """
    values = as_numbers(scores, "scores", np.float64)
    if values.shape != (len(labellings),):
        raise ValueError(
            f"scores: must hold one score for each of the {len(labellings)} labellings, got shape "
            f"{values.shape}"
        )
    share, weights = _share_by_method(values, methods or [None] * len(values))
    order = np.argsort(-share.round(_DIGITS), kind="stable")[: np.isfinite(values).sum()]
    shapes = {np.shape(labellings[i]) for i in order}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        words = ", ".join(map(str, sorted(shapes)))
        raise ValueError(f"labellings: must hold one label for each sample, got shapes {words}")
    agreement = np.full(len(values), np.nan)
    n_scored = int((values[order] > 0).sum())
    if n_scored:
        indices = rand_indices([labellings[i] for i in order])
        agreement[order] = indices @ weights[order] / weights[order].sum()
        best = np.argsort(-agreement[order[:n_scored]].round(_DIGITS), kind="stable")
        order[:n_scored] = order[best]
    return order, agreement


def _share_by_method(scores: Array, methods: Sequence[Any]) -> tuple[Array, Array]:
    """Scores above zero as shares of the best of their method, and the weights of clusterings."""
    share, weights = scores.copy(), np.zeros(len(scores))
    for method in dict.fromkeys(methods):
        own = np.array([other == method for other in methods]) & (scores > 0)
        if own.any():
            share[own] /= scores[own].max()
            weights[own] = share[own] ** _POWER / (share[own] ** _POWER).sum()
    return share, weights


def rand_indices(labellings: Sequence[ArrayLike | None]) -> Array:
    """Matrix of the adjusted Rand indices between all pairs of labellings."""
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
    """Indicator matrix of the clusters: row i has a 1 in the column of its cluster."""
    clusters = np.unique(labels, return_inverse=True)[1]
    n_samples = len(labels)
    return csr_array((np.ones(n_samples), clusters, np.arange(n_samples + 1)))


def _fit_and_score(
    estimator: Any, X: ArrayLike, order: Array
) -> tuple[Any, float, list[warnings.WarningMessage]]:
    """Fit the estimator; return it, its score, and the warnings of both, which are not shown."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fitted = estimator.fit(X)
        return fitted, _score_of_fitted(fitted, order), said


def _warn_again(said: list[warnings.WarningMessage]) -> None:
    """Show each of the recorded warnings once."""
    for one in {str(one.message): one for one in said}.values():
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _score_of_fitted(estimator: Any, order: Array) -> float:
    """`selection_score` of a fitted clusterer, or -d where its points represent themselves."""
    if not hasattr(estimator, "affinity_matrix_"):
        raise ValueError(
            f"estimator: {type(estimator).__name__} makes no affinity, by which it could be judged"
        )
    affinity = check_dense_or_sparse(estimator.affinity_matrix_, "affinity")
    coef = getattr(estimator, "coef_", affinity)
    if own := trivial_share(coef if np.shape(coef) == affinity.shape else affinity):
        return -own
    n_clusters = getattr(estimator, "n_clusters", None)
    if n_clusters is None:
        n_clusters = len(np.unique(estimator.labels_))
    return selection_score(reordered(affinity, order), estimator.labels_[order], n_clusters)


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
    scores 0, as it is arbitrary which components become clusters. With more than 3,000 points, the
    silhouette is computed on a sample.

    No true classes are used: `labels` are the clusters that come from the affinity itself. Compare
    scores only between settings of one method with the same affinity steps.

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
    """Silhouette of the connected points or a seeded sample of them; -1 if it is undefined."""
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
