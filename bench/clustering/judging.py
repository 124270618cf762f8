"""What clusters are worth by the true ones; outliers, labelled -1, do not count."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ...solvers import clustering_accuracy
from ...solvers.metrics import connectivity, subspace_preserving_error
from ...solvers.solution import Array


def scores_apart(true: Array, found: Array, n_fit: int) -> dict[str, float]:
    """Accuracy of the fitted points and of the others, each by its own match of clusters."""
    return {
        "accuracy_fit": scores(true[:n_fit], found[:n_fit])["accuracy"],
        "accuracy_new": scores(true[n_fit:], found[n_fit:])["accuracy"],
    }


def scores(true: Array, found: Array) -> dict[str, float]:
    """ME-1 over the points that belong to a cluster: all but outliers."""
    known = true >= 0
    true, found = true[known], found[known]
    return {
        "accuracy": clustering_accuracy(true, found),
        "nmi": float(normalized_mutual_info_score(true, found)),
        "ari": float(adjusted_rand_score(true, found)),
    }


def connectivity_of(affinity: Any, labels: Array) -> float:
    """ME-3 among the points that belong to a cluster."""
    known = np.flatnonzero(labels >= 0)
    return connectivity(affinity[known][:, known], labels[known])


def subspace_error_of(coef: Any, labels: Array) -> float:
    """ME-2 over the points that belong to a cluster; what they take from outliers is wrong."""
    known = labels >= 0
    rows = diags_array(known.astype(np.float64)) @ csr_array(coef)
    return subspace_preserving_error(rows, labels) / float(known.mean())
