"""Choose the settings of a clusterer, or a clusterer, without labels."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from ..inputs import Array, check_dense_or_sparse
from ..notebook import html_facts, html_table, in_words
from .order import reordered, row_order
from .ranking import DIGITS, rank_clusterings
from .score import selection_score, trivial_share

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

    def _repr_html_(self) -> str:
        about = html_facts(
            "ChosenSettings", {"estimator": str(self.estimator), "score": self.score}
        )
        rows = [(in_words(settings), score) for settings, score in self.scores]
        return about + html_table(("settings tried", "score"), rows)


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
        if np.round(score, DIGITS) > np.round(chosen[2], DIGITS):
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

    def _repr_html_(self) -> str:
        best, n = self.ranking[0], len(self.ranking)
        return html_facts(
            "ChosenClusterer",
            {
                "estimator": str(self.estimator),
                "index": f"{best}, among {len(self.scores)} estimators, of which {n} differ",
                "score": self.score,
                "agreement": self.agreement[best],
            },
        )


def choose_clusterer(estimators: Iterable[Any], X: ArrayLike) -> ChosenClusterer:
    """Fit clusterers of any kind, and choose the one whose clusters other good ones confirm.

    The chosen clusters have the largest mean adjusted Rand index with the clusters of all
    estimators. In this mean, the weight of an estimator is the 24th power of its `selection_score`,
    so that scores far below the largest hardly count. A score alone does not choose: one method can
    have high scores for a reason of its own, such as its affinity steps. That several methods find
    the same clusters by chance is less likely. Estimators whose points represent mainly themselves
    count for nothing and come last, see `choose_settings`. No labels are used. It is the rule of
    ``twinsolve cluster --auto``.

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
    array([2, 1, 0])
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
    ranking, agreement = rank_clusterings(scores, labellings)
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
    parameters, others = first.get_params(deep=False), second.get_params(deep=False)
    return all(
        value is others[name] or np.array_equal(value, others[name])
        for name, value in parameters.items()
    )


def check_distinct(X: Array | csr_array, n_clusters: int | None, name: str) -> None:
    """Raise a ValueError for fewer distinct points than clusters: all answers would be equal."""
    line = np.sort(X @ np.random.default_rng(0).standard_normal(X.shape[1]))
    differs = np.diff(line) > _SAME * np.abs(line).max()
    distinct = 1 + int(differs.sum())
    if n_clusters is not None and distinct < n_clusters:
        raise ValueError(
            f"{name}: has {distinct} distinct point{'s' if distinct > 1 else ''}, fewer than "
            f"n_clusters={n_clusters}"
        )


def arbitrary_choice(score: float, n_clusters: int | None, n_points: int) -> str:
    """Return why choosing a candidate with this `selection_score` is arbitrary, or "".

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
        "no candidate has a score above 0, for instance because each graph falls into more groups "
        "than n_clusters, or because points represent mainly themselves: the choice is arbitrary"
    )


def _fit_and_score(
    estimator: Any, X: ArrayLike, order: Array
) -> tuple[Any, float, list[warnings.WarningMessage]]:
    """Fit an estimator; return it, its score, and the warnings of both, which are held back."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fitted = estimator.fit(X)
        return fitted, _score_of_fitted(fitted, order), said


def _warn_again(recorded: list[warnings.WarningMessage]) -> None:
    """Show each of the recorded warnings once."""
    for warning in {str(warning.message): warning for warning in recorded}.values():
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _score_of_fitted(estimator: Any, order: Array) -> float:
    """Return the `selection_score`, or minus the share of the diagonal if that is too large."""
    if not hasattr(estimator, "affinity_matrix_"):
        raise ValueError(
            f"estimator: {type(estimator).__name__} makes no affinity, by which it could be judged"
        )
    affinity = check_dense_or_sparse(estimator.affinity_matrix_, "affinity")
    coef = getattr(estimator, "coef_", affinity)
    pairs = check_dense_or_sparse(coef, "coef") if np.shape(coef) == affinity.shape else affinity
    if share := trivial_share(reordered(pairs, order)):
        return -share
    n_clusters = getattr(estimator, "n_clusters", None)
    if n_clusters is None:
        n_clusters = len(np.unique(estimator.labels_))
    return selection_score(reordered(affinity, order), estimator.labels_[order], n_clusters)
