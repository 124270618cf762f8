"""Rank clusterings by how well they agree."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, hstack

from ..inputs import Array, as_numbers

_POWER = 24  # the weight of a clustering is its score to this power
DIGITS = 12  # of scores and agreements; further ones are rounding


def rank_clusterings(
    scores: ArrayLike, labellings: Sequence[ArrayLike | None]
) -> tuple[Array, Array]:
    """Rank clusterings by their agreement with all clusterings, weighted by scores.

    ::

        agreement_i = sum_j w_j ARI(labels_i, labels_j) / sum_j w_j,   w_j = score_j^24

    with ARI the adjusted Rand index. Clusterings without a score above zero come last: their graphs
    have too many components, or their points represent mainly themselves. Ties in the agreement go
    to the larger score, then to the earlier clustering.

    Parameters
    ----------
    scores : array-like of shape (n_clusterings,)
        Scores up to 1, such as `selection_score`. A clustering with the score NaN is not ranked.
    labellings : sequence of array-like of int of shape (n_samples,)
        Labels of the samples in each clustering; may be None where the score is NaN.

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
    order = np.argsort(-values.round(DIGITS), kind="stable")[: np.isfinite(values).sum()]
    shapes = {np.shape(labellings[i]) for i in order}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        words = ", ".join(map(str, sorted(shapes)))
        raise ValueError(f"labellings: must hold one label for each sample, got shapes {words}")
    agreement = np.full(len(values), np.nan)
    n_scored = int((values[order] > 0).sum())
    if n_scored:
        indices = rand_indices([labellings[i] for i in order])
        weights = np.maximum(values[order] / values[order[0]], 0) ** _POWER
        agreement[order] = indices @ weights / weights.sum()
        best = np.argsort(-agreement[order[:n_scored]].round(DIGITS), kind="stable")
        order[:n_scored] = order[best]
    return order, agreement


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
    n_pairs = np.diag(together)
    largest = (n_pairs[:, None] + n_pairs) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.outer(n_pairs, n_pairs) / pairs(np.float64(n_samples))
        return np.where(largest > expected, (together - expected) / (largest - expected), 1.0)


def _members(labels: Array) -> csr_array:
    """Return the indicator matrix of clusters: row i has a 1 in the column of its cluster."""
    clusters = np.unique(labels, return_inverse=True)[1]
    n_samples = len(labels)
    return csr_array((np.ones(n_samples), clusters, np.arange(n_samples + 1)))
