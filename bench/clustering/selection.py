"""The choice of settings without labels."""

import numpy as np
import pandas as pd

from ...solvers.solution import Array

GROUP = ["data", "features", "method", "steps"]
RULE = (
    "Settings are chosen without labels: for each data set, features, method and chain of affinity "
    "steps, one setting for all trials, with the largest mean of (1 + s) / 2 * H / log k, where s "
    "is the silhouette of the found clusters in the spectral embedding, H the entropy of their "
    "sizes and k their number; 0 where the graph has more than k components. Methods without an "
    "affinity take their first setting."
)


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
