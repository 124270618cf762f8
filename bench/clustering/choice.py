"""One choice of method, affinity steps and setting together, without labels."""

import numpy as np
import pandas as pd

from ...solvers.clustering.selection import rank_clusterings
from ...solvers.solution import Array
from ..tables import Lines, number
from .steps import cut_of

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


POOL = ("SSC", "EnSC", "LSR", "LRSC")
FIXED = ("EnSC", "gamma=20.0, l1_ratio=0.9", "keep-largest 3")  # best on all of the design set
TITLE = f"One choice of all, without labels among {', '.join(POOL)}, and by labels among all"
CANDIDATE = ["method", "settings", "steps"]
_PROBLEM = ["data", "features", "trial"]


def choice_rule(n_candidates: int) -> str:
    """The rule by which one of so many candidates is chosen."""
    if n_candidates == 1:
        return "There was one candidate, and nothing to choose."
    return (
        "Method, affinity steps and setting are chosen together without labels: of "
        f"{n_candidates} candidates, the one whose clusters agree best with those of all, by the "
        "mean adjusted Rand index, in which each counts by the 24th power of its score."
    )


def of_the_pool(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the methods of `POOL`, by the chains that k-means cuts."""
    return table[table.method.isin(POOL) & (table.steps.map(cut_of) == "k-means")]


def rank_candidates(table: pd.DataFrame, candidates: pd.DataFrame) -> pd.DataFrame:
    """The table with the `agreement` and `rank` of the rows that are candidates.

    Each problem has its own ranks, of which 1 is chosen. The clusters compared are those of the
    first seed, in the column ``labels``.
    """
    table = table.assign(agreement=np.nan, rank=np.nan)
    if "labels" not in table:
        return table
    for _, problem in candidates.groupby(_PROBLEM, sort=False):
        first = problem[problem.seed == problem.seed.min()].drop_duplicates(CANDIDATE)
        order, agreement = rank_clusterings(first.selection_score, first.labels.to_list())
        ranks = pd.Series(np.arange(1, len(order) + 1), first.index[order])
        found = pd.DataFrame(
            {"agreement": agreement, "rank": ranks.reindex(first.index)}
        ).set_index(pd.MultiIndex.from_frame(first[CANDIDATE]))
        rows = found.reindex(pd.MultiIndex.from_frame(problem[CANDIDATE]))
        table.loc[problem.index, ["agreement", "rank"]] = rows.to_numpy()
    return table


def without_labels_of_known(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the clusters found, where the classes of the points are known."""
    if "labels" not in table:
        return table
    kept = table.labels.where(table.accuracy.isna(), None)
    return table.assign(labels=kept) if kept.notna().any() else table.drop(columns="labels")


def whole_choice_lines(table: pd.DataFrame) -> Lines:
    """Of each data set the choice of everything, without labels and by them, and its regret.

    Errors are means over the subsets; the deviations are over these, of means over the seeds, and
    over the seeds, of means over the subsets. The regret is the error beyond that of the choice
    that labels would have made on the same subset.
    """
    headings = (
        "data", "features", "chosen", "candidate", "error %", "over subsets", "over seeds",
        "regret", "largest",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    if "rank" not in table:
        return headings, rows
    known = table[(table.selection != "labels") & table.accuracy.notna()]
    for about, group in known.groupby(["data", "features"], sort=False):
        if (group["rank"] == 1).any():
            rows += [(*map(str, about), *cells) for cells in _choices(group)]
    return headings, rows


def _choices(group: pd.DataFrame) -> list[tuple[str, ...]]:
    errors = group.assign(error=100 * (1 - group.accuracy))
    means = errors.pivot_table(index="trial", columns=CANDIDATE, values="error", sort=False)
    free = errors[errors["rank"] == 1].drop_duplicates("trial").set_index("trial")[CANDIDATE]
    everywhere = means.dropna(axis=1)
    fixed = {"by labels, one for all subsets": everywhere.mean().idxmin()}
    fixed |= {"always the same": FIXED} if FIXED in everywhere else {}
    choices = {
        "without labels": free.apply(tuple, axis=1),
        "by labels, on each subset": means.idxmin(axis=1),
    }
    choices |= {way: pd.Series([one] * len(means), means.index) for way, one in fixed.items()}
    return [(way, *_cells(chosen, errors, means)) for way, chosen in choices.items()]


def _cells(chosen: pd.Series, errors: pd.DataFrame, means: pd.DataFrame) -> tuple[str, ...]:
    keys = pd.MultiIndex.from_arrays([chosen.index, *zip(*chosen, strict=True)])
    every = pd.MultiIndex.from_frame(errors[["trial", *CANDIDATE]])
    rows = errors[every.isin(keys)]
    found = rows.groupby("trial", sort=False).error.mean()
    by_seed = rows.groupby("seed").error.mean()
    regrets = found - means.min(axis=1)[found.index]
    numbers = (
        found.mean(), found.std(ddof=0), by_seed.std(ddof=0), regrets.mean(), regrets.max(),
    )  # fmt: skip
    return (_named(chosen), *(number(value, ".2f") for value in numbers))


def _named(chosen: pd.Series) -> str:
    """The candidate, or where subsets differ, the methods with how often each was chosen."""
    if chosen.nunique() == 1:
        return in_words(*chosen.iloc[0])
    counts = pd.Series([method for method, _, _ in chosen]).value_counts()
    return ", ".join(f"{method} ({count} of {len(chosen)})" for method, count in counts.items())


def in_words(method: str, settings: str, steps: str) -> str:
    """A candidate in one cell."""
    return f"{method}{f' ({settings})' if settings else ''} by {steps}"
