"""Choose settings of a table of clusters, and summarise errors and costs of solvers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from ...solvers.clustering.ranking import rank_clusterings
from ...solvers.inputs import Array
from ..tables import Lines, number
from .steps import cut_of

Cell = str | Callable[[pd.DataFrame], str]  # a column, or a function of a group of rows


def grouped_lines(table: pd.DataFrame, by: Sequence[str], cells: Mapping[str, Cell]) -> Lines:
    """A line for each group of rows with equal values in `by`; `cells` are given by heading."""
    groups = [group for _, group in table.groupby(list(by), sort=False)]
    return tuple(cells), [
        tuple(_read_cell(cell, group) for cell in cells.values()) for group in groups
    ]


def _read_cell(cell: Cell, group: pd.DataFrame) -> str:
    return str(group[cell].iloc[0]) if isinstance(cell, str) else cell(group)


def folded(
    column: str, fold: str | Callable[[pd.Series], float], form: str, missing: str = ""
) -> Cell:
    """A cell that shows the mean, the median or another `fold` of a column over the group."""

    def cell(rows: pd.DataFrame) -> str:
        if column not in rows:
            return missing
        return number(rows[column].astype(float).agg(fold), form, missing)

    return cell


GROUP = ["data", "features", "method", "steps"]
RULE = (
    "Settings are chosen without labels: for each data set, features, method and chain of affinity "
    "steps, one setting for all trials, with the largest mean of (1 + s) / 2 * H / log k, where s "
    "is the silhouette of the found clusters in the spectral embedding, H the entropy of their "
    "sizes and k their number; 0 where the graph has more than k components, and less where points "
    "represent mainly themselves. Methods without an affinity take their first setting."
)


def select_settings(table: pd.DataFrame, *, label_tuned: bool = False) -> pd.DataFrame:
    """Mark rows whose settings are chosen without labels; others get an empty `selection`.

    Parameters
    ----------
    table : DataFrame
        With the columns `GROUP`, ``settings``, ``selection_score`` and ``accuracy``.
    label_tuned : bool, default=False
        Append the rows of the settings with the best mean accuracy, marked ``labels``.
    """
    by_score = _mark_best(table, "selection_score")
    marked = table.assign(selection=np.where(by_score, "label-free", ""))
    if not label_tuned:
        return marked
    by_labels = table[_mark_best(table, "accuracy")].assign(selection="labels")
    return pd.concat([marked, by_labels], ignore_index=True)


def _mark_best(table: pd.DataFrame, column: str) -> Array:
    """Mask of the rows of the setting with the best mean in each group.

    Ties go to the first setting. A setting with a missing value comes last.
    """
    groups = table.groupby([*GROUP, "settings"], sort=False)[column]
    means = groups.mean().where(groups.count() == groups.size())
    best = means.fillna(-np.inf).groupby(GROUP, sort=False).idxmax()
    keys = pd.MultiIndex.from_frame(table[[*GROUP, "settings"]])
    return np.asarray(keys.isin(best))


POOL = ("SSC", "EnSC", "LSR", "LRSC")
FIXED = ("EnSC", "gamma=20.0, l1_ratio=0.9", "keep-largest 3")  # best on the whole design set
TITLE = f"One choice of all, without labels among {', '.join(POOL)}, and by labels among all"
CANDIDATE = ["method", "settings", "steps"]
_PROBLEM = ["data", "features", "trial"]


def choice_rule(n_candidates: int) -> str:
    """The rule by which one of `n_candidates` candidates is chosen."""
    if n_candidates == 1:
        return "There was one candidate, and nothing to choose."
    return (
        "Method, affinity steps and setting are chosen together without labels: of "
        f"{n_candidates} candidates, the one whose clusters agree best with those of all, by the "
        "mean adjusted Rand index, in which each counts by the 24th power of its score."
    )


def rows_of_pool(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the methods of `POOL` whose chains are cut by k-means."""
    return table[table.method.isin(POOL) & (table.steps.map(cut_of) == "k-means")]


def rank_candidates(table: pd.DataFrame, candidates: pd.DataFrame) -> pd.DataFrame:
    """The table with columns `agreement` and `rank`, set in rows that are candidates.

    Candidates are ranked within each problem; rank 1 is the choice. Their clusters of the first
    seed, in the column ``labels``, are compared.
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


def drop_known_labels(table: pd.DataFrame) -> pd.DataFrame:
    """The table without found clusters of points whose classes are known."""
    if "labels" not in table:
        return table
    kept = table.labels.where(table.accuracy.isna(), None)
    return table.assign(labels=kept) if kept.notna().any() else table.drop(columns="labels")


def whole_choice_lines(table: pd.DataFrame) -> Lines:
    """For each data set, the candidates chosen without and by labels, and their regret.

    Errors are means over the subsets. One standard deviation is that over subsets, of means over
    seeds; the other that over seeds, of means over subsets. The regret is the error minus that of
    the choice by labels on the same subset.
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
            rows += [(*map(str, about), *cells) for cells in _choice_rows(group)]
    return headings, rows


def _choice_rows(group: pd.DataFrame) -> list[tuple[str, ...]]:
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
    return [(way, *_choice_cells(chosen, errors, means)) for way, chosen in choices.items()]


def _choice_cells(chosen: pd.Series, errors: pd.DataFrame, means: pd.DataFrame) -> tuple[str, ...]:
    keys = pd.MultiIndex.from_arrays([chosen.index, *zip(*chosen, strict=True)])
    every = pd.MultiIndex.from_frame(errors[["trial", *CANDIDATE]])
    rows = errors[every.isin(keys)]
    found = rows.groupby("trial", sort=False).error.mean()
    by_seed = rows.groupby("seed").error.mean()
    regrets = found - means.min(axis=1)[found.index]
    numbers = (
        found.mean(), found.std(ddof=0), by_seed.std(ddof=0), regrets.mean(), regrets.max(),
    )  # fmt: skip
    return (_name_choice(chosen), *(number(value, ".2f") for value in numbers))


def _name_choice(chosen: pd.Series) -> str:
    """The candidate; if subsets differ, the methods and how often each was chosen."""
    if chosen.nunique() == 1:
        return _name_candidate(*chosen.iloc[0])
    counts = pd.Series([method for method, _, _ in chosen]).value_counts()
    return ", ".join(f"{method} ({count} of {len(chosen)})" for method, count in counts.items())


def _name_candidate(method: str, settings: str, steps: str) -> str:
    """A candidate in words, for one cell."""
    return f"{method}{f' ({settings})' if settings else ''} by {steps}"


REFERENCE = "SSC"
_CASE = ["data", "features", "method", "settings"]
_TUNED = " (labels)"
_FAMILIES = ("learned", "solved", "baseline")
_ABOUT: dict[str, Cell] = {
    "data": "data",
    "features": "features",
    "method": lambda rows: rows.method.iloc[0] + ("", _TUNED)[all(rows.selection == "labels")],
    "settings": lambda rows: rows.settings.iloc[0] or "-",
}
_CLUSTERS: dict[str, Cell] = {
    **_ABOUT,
    "steps": "steps",
    "error %": lambda rows: _describe_failure(rows) or number(_errors(rows).mean(), ".2f"),
    "std": lambda rows: number(_errors(rows).std(ddof=0), ".2f"),
    "range": lambda rows: _format_range(_errors(rows)),
    "NMI": folded("nmi", "mean", ".3f", "-"),
    "ARI": folded("ari", "mean", ".3f", "-"),
    "ME-3": folded("connectivity", "mean", ".4f", "-"),
    "score": folded("selection_score", "mean", ".3f", "-"),
}
_NUMBERS = ("accuracy", "nmi", "ari", "connectivity", "selection_score")


def cluster_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain of steps: error, spread over seeds, and connectivity."""
    chosen = table[table.selection != ""]
    case = [*_CASE, "steps", "selection"]
    if "note" in chosen:  # if a trial failed, the rest gives no mean over all trials
        failed = chosen.groupby(case).note.transform("count") > 0
        chosen = chosen.assign(**{n: chosen[n].mask(failed) for n in _NUMBERS if n in chosen})
    return grouped_lines(chosen, case, _CLUSTERS)


def _errors(rows: pd.DataFrame) -> pd.Series:
    """Error in % of each seed, a mean over the trials."""
    return 100 * (1 - rows.groupby(["fit_seed", "seed"]).accuracy.mean())


def _format_range(errors: pd.Series) -> str:
    return "-" if errors.isna().any() else f"{errors.min():.2f} to {errors.max():.2f}"


def _describe_failure(rows: pd.DataFrame) -> str:
    """Say why numbers are missing, and in how many trials; empty if none is."""
    missing = rows[rows.note.notna()] if "note" in rows else rows[:0]
    if missing.empty:
        return ""
    of = rows.trial.nunique()
    return missing.note.iloc[0] + (f" ({missing.trial.nunique()} of {of} trials)" if of > 1 else "")


def reported_lines(table: pd.DataFrame) -> Lines:
    """A line for each method, of its chain with the largest score; none if all have one chain."""
    own = table[table.selection == "label-free"]
    group = ["data", "features", "method"]
    scores = own.groupby([*group, "steps"], sort=False).selection_score.mean().fillna(-np.inf)
    best = scores.groupby(group, sort=False).idxmax()
    keys = pd.MultiIndex.from_frame(own[[*group, "steps"]])
    return cluster_lines(own[keys.isin(best)] if len(best) < len(scores) else own[:0])


def quality_lines(table: pd.DataFrame) -> Lines:
    """A line for each method with a chosen setting: cost, certificate and coefficients."""
    reference, fits = _add_ratios(_select_fits(table), "fit_seconds")
    cells = _ABOUT | {
        f"time / {reference}": folded("ratio", "median", ".2f", "-"),
        "MiB": folded("memory_mib", "median", ".0f", "-"),
        "objective": folded("objective", "mean", ".3g", "-"),
        "gap mean": folded("gap_mean", "mean", ".3g", "-"),
        "gap max": folded("gap_max", "max", ".1e", "-"),
        "non-zeros": folded("nonzeros", "mean", ".1f", "-"),
        "ME-2": folded("subspace_error", "mean", ".3f", "-"),
    }
    return grouped_lines(fits, _CASE, cells)


def distance_lines(table: pd.DataFrame) -> Lines:
    """A line with ME-4 for each method that approximates a solved problem."""
    fits = _select_fits(table)
    known = fits.reindex(columns=["distance"]).distance.notna()
    cells = _ABOUT | {
        "distance": folded("distance", "mean", ".3f", "-"),
        "cosine": folded("cosine", "mean", ".3f", "-"),
        "support F1": folded("support_f1", "mean", ".3f", "-"),
        "objective gap": folded("objective_gap", "mean", ".1e", "-"),
    }
    return grouped_lines(
        fits[known.groupby([fits[c] for c in _CASE]).transform("any")], _CASE, cells
    )


def held_out_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain: errors of fitted and of held-out points, and time.

    Deviations are over the seeds, of means over the trials.
    """
    table = table.reindex(columns=table.columns.union(["accuracy_new", "new_ms"], sort=False))
    chosen = table[(table.selection == "label-free") & table.accuracy_new.notna()]
    reference, chosen = _add_ratios(chosen, "new_ms")

    def error(rows: pd.DataFrame, points: str) -> str:
        errors = _errors(rows.assign(accuracy=rows[points]))
        return f"{errors.mean():.2f} ± {errors.std(ddof=0):.2f}"

    cells = dict(zip(_CASE, _CASE, strict=True)) | {
        "steps": "steps",
        "error fitted %": partial(error, points="accuracy_fit"),
        "error held out %": partial(error, points="accuracy_new"),
        f"time a point held out / {reference}": folded("ratio", "median", ".2f", "-"),
    }
    return grouped_lines(chosen, [*_CASE, "steps"], cells)


def _add_ratios(table: pd.DataFrame, column: str) -> tuple[str, pd.DataFrame]:
    """The reference method, SSC or else the first, and the table with `ratio` to its mean."""
    methods = list(dict.fromkeys(table.method))
    reference = REFERENCE if REFERENCE in methods or not methods else methods[0]
    case = ["data", "features", "trial"]
    own = table[table.method == reference]
    if (own.selection == "label-free").any():
        own = own[own.selection == "label-free"]
    means = own.groupby(case)[column].mean().rename("reference")
    return reference, table.assign(ratio=table[column] / table.join(means, on=case).reference)


def _select_fits(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each fit with a chosen setting."""
    fitted = table[(table.selection != "") & table.fit_seconds.notna()]
    return fitted.drop_duplicates([*_CASE, "trial", "fit_seed"]).reset_index(drop=True)


def best_lines(table: pd.DataFrame) -> Lines:
    """A line for each chain of steps: the best method of each family, and who is ahead.

    Settings are chosen without labels; the best method of each family is the one of smallest error.
    Deviations are over the seeds, of means over the trials. The learned method is ahead beyond the
    spread if its error is smaller by more than the sum of both deviations. The last column counts
    the trials in which its mean error is the smaller one, as trials differ more than seeds do.
    """
    headings = (
        "data", "features", "steps", "best learned", "error %", "best solved", "error %",
        "best baseline", "error %", "learned ahead by", "beyond the spread", "in trials",
    )  # fmt: skip
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    rows = []
    for about, group in chosen.groupby(["data", "features", "steps"], sort=False):
        best = {family: _find_best(group[group.family == family]) for family in _FAMILIES}
        if best["learned"] is None or best["solved"] is None:
            continue
        (name, learned, spread), (rival, solved, other) = best["learned"], best["solved"]
        by_trial = group.groupby(["trial", "method"]).accuracy.mean().unstack()
        won = int((by_trial[name] > by_trial[rival]).sum())
        cells = [cell for family in _FAMILIES for cell in _best_cells(best[family])]
        ahead = "yes" if solved - learned > spread + other else "no"
        rows.append(
            (
                *map(str, about),
                *cells,
                f"{solved - learned:+.2f}",
                ahead,
                f"{won} of {len(by_trial)}",
            )
        )
    return headings, rows


def _find_best(group: pd.DataFrame) -> tuple[str, float, float] | None:
    """The method of smallest error, with its mean error and deviation."""
    if group.empty:
        return None
    errors = 100 * (1 - group.groupby(["method", "fit_seed", "seed"]).accuracy.mean())
    means = errors.groupby("method").mean()
    name = str(means.idxmin())
    return name, float(means[name]), float(errors[name].std(ddof=0))


def _best_cells(found: tuple[str, float, float] | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (found[0], f"{found[1]:.2f} ± {found[2]:.2f}")
