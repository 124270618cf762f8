"""The choice of settings without labels."""

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.utils import check_array

from ...solvers.clustering.spectral import leading_eigenvectors
from ...solvers.solution import Array

GROUP = ["data", "features", "method", "steps"]
RULE = (
    "Settings are chosen without labels: for each data set, features, method and chain of affinity "
    "steps, one setting for all trials, with the largest mean of the relative eigengap "
    "(l_{k+1} - l_k) / l_{k+1} of the normalised Laplacian at the number of clusters k, 0 where "
    "the graph has more than k components. Methods without an affinity take their first setting."
)


def selection_score(affinity: Array | csr_array, labels: Array, n_clusters: int) -> float:
    """How clearly a graph falls into `n_clusters` parts; larger is better, 1 at most.

    ``(l_{k+1} - l_k) / l_{k+1}`` with ``l_1 <= l_2 <= ...`` the eigenvalues of the normalised
    Laplacian and k = `n_clusters`; points without neighbours are components of their own. `labels`
    are those found, never those of the data.
    """
    A = check_array(affinity, accept_sparse="csr")
    degree = np.asarray(A.sum(axis=1)).ravel()
    connected = np.flatnonzero(degree > 0)
    k = n_clusters - (len(degree) - len(connected))
    if k < 1 or k >= len(connected):
        return 0.0
    values = 1 - leading_eigenvectors(A[connected][:, connected], k + 1)[0]
    if values[k] <= 1e-12:
        return 0.0
    return float((values[k] - max(values[k - 1], 0)) / values[k])


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
    """Rows of the setting with the best mean in each group; ties go to the first setting."""
    means = table.groupby([*GROUP, "settings"], sort=False)[column].mean()
    best = means.fillna(-np.inf).groupby(GROUP, sort=False).idxmax()
    keys = pd.MultiIndex.from_frame(table[[*GROUP, "settings"]])
    return np.asarray(keys.isin(best))
