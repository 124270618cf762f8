"""The study of clusters in few lines: what the clusters are worth, and what the solvers cost."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..tables import Lines, number

Cell = str | Callable[[pd.DataFrame], str]  # the name of a column, or what a group of rows says


def lines_of(table: pd.DataFrame, by: Sequence[str], cells: Mapping[str, Cell]) -> Lines:
    """A line for each group of rows that agree in `by`, with the cells by their headings."""
    groups = [group for _, group in table.groupby(list(by), sort=False)]
    return tuple(cells), [tuple(_text(cell, group) for cell in cells.values()) for group in groups]


def _text(cell: Cell, group: pd.DataFrame) -> str:
    return str(group[cell].iloc[0]) if isinstance(cell, str) else cell(group)


def folded(
    column: str, fold: str | Callable[[pd.Series], float], form: str, missing: str = ""
) -> Cell:
    """A number of the group: the mean of a column, its median or what else `fold` makes of it."""
    return lambda rows: number(rows[column].astype(float).agg(fold), form, missing)


REFERENCE = "SSC"
_CASE = ["data", "features", "method", "settings"]
_CLUSTER_HEADINGS = (
    "data", "features", "method", "settings", "steps", "error %", "std", "range", "NMI", "ARI",
    "ME-3", "score",
)  # fmt: skip
_QUALITY_HEADINGS = (
    "data", "features", "method", "settings", "MiB", "objective", "gap mean", "gap max",
    "non-zeros", "ME-2",
)  # fmt: skip
_DISTANCE_HEADINGS = (
    "data", "features", "method", "settings", "distance", "cosine", "support F1", "objective gap",
)  # fmt: skip
_TUNED = " (labels)"
_FAMILIES = ("learned", "solved", "baseline")


def cluster_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain of steps: the error, its spread over seeds, the graph."""
    rows = []
    chosen = table[table.selection != ""]
    groups = chosen.groupby([*_CASE, "steps", "selection"], sort=False)
    for (data, features, method, settings, steps, selection), group in groups:
        name = method + _TUNED if selection == "labels" else method
        about = (data, features, name, settings or "-", steps)
        if "note" in group and group.note.notna().any():
            rows.append((*about, _note(group), *["-"] * (len(_CLUSTER_HEADINGS) - 6)))
            continue
        errors = 100 * (1 - group.groupby(["fit_seed", "seed"]).accuracy.mean())
        spread = "-" if errors.isna().any() else f"{errors.min():.2f} to {errors.max():.2f}"
        rows.append(
            (
                *about,
                number(errors.mean(), ".2f"),
                number(errors.std(ddof=0), ".2f"),
                spread,
                *(_mean(group, column, ".3f") for column in ("nmi", "ari")),
                _mean(group, "connectivity", ".4f"),
                _mean(group, "selection_score", ".3f"),
            )
        )
    return _CLUSTER_HEADINGS, rows


def choice_lines(table: pd.DataFrame) -> Lines:
    """A line for each method, where there are several chains of steps: that of largest score."""
    own = table[table.selection == "label-free"]
    group = ["data", "features", "method"]
    scores = own.groupby([*group, "steps"], sort=False).selection_score.mean().fillna(-np.inf)
    best = scores.groupby(group, sort=False).idxmax()
    if len(best) == len(scores):
        return _CLUSTER_HEADINGS, []
    keys = pd.MultiIndex.from_frame(own[[*group, "steps"]])
    return cluster_lines(own[keys.isin(best)])


def quality_lines(table: pd.DataFrame) -> Lines:
    """A line for each method with a setting that was chosen: cost, certificate, coefficients."""
    fits = _fits(table)
    reference, ratios = _against_reference(fits, "fit_seconds")
    headings = (*_QUALITY_HEADINGS[:4], f"time / {reference}", *_QUALITY_HEADINGS[4:])
    rows = [
        (
            *(data, features, _marked(str(method), group), settings or "-"),
            number(ratios[group.index].median(), ".2f"),
            number(group.memory_mib.median(), ".0f"),
            *(_mean(group, column, ".3g") for column in ("objective", "gap_mean")),
            number(group.gap_max.max(), ".1e"),
            _mean(group, "nonzeros", ".1f"),
            _mean(group, "subspace_error", ".3f"),
        )
        for (data, features, method, settings), group in fits.groupby(_CASE, sort=False)
    ]
    return headings, rows


def distance_lines(table: pd.DataFrame) -> Lines:
    """ME-4 of the methods that approximate a solved problem."""
    fits = _fits(table)
    rows = [
        (
            *(data, features, _marked(str(method), group), settings or "-"),
            *(_mean(group, name, ".3f") for name in ("distance", "cosine", "support_f1")),
            _mean(group, "objective_gap", ".1e"),
        )
        for (data, features, method, settings), group in fits.groupby(_CASE, sort=False)
        if "distance" in group and group.distance.notna().any()
    ]
    return _DISTANCE_HEADINGS, rows


def held_out_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain of steps: fitted points, others, and time for one of these.

    Deviations are over the seeds, of means over the trials.
    """
    table = table.reindex(columns=table.columns.union(["accuracy_new", "new_ms"], sort=False))
    chosen = table[(table.selection == "label-free") & table.accuracy_new.notna()]
    reference, ratios = _against_reference(chosen, "new_ms")
    headings = (
        "data", "features", "method", "settings", "steps", "error fitted %", "error held out %",
        f"time a point held out / {reference}",
    )  # fmt: skip
    rows = []
    for about, group in chosen.groupby([*_CASE, "steps"], sort=False):
        by_seed = group.groupby(["fit_seed", "seed"])
        errors = 100 * (1 - by_seed[["accuracy_fit", "accuracy_new"]].mean())
        cells = [f"{errors[name].mean():.2f} ± {errors[name].std(ddof=0):.2f}" for name in errors]
        rows.append((*map(str, about), *cells, number(ratios[group.index].median(), ".2f")))
    return headings, rows


def _against_reference(table: pd.DataFrame, column: str) -> tuple[str, pd.Series]:
    """The method that times are held against, SSC or else the first, and the ratios to its mean."""
    methods = list(dict.fromkeys(table.method))
    reference = REFERENCE if REFERENCE in methods or not methods else methods[0]
    case = ["data", "features", "trial"]
    own = table[table.method == reference]
    if (own.selection == "label-free").any():
        own = own[own.selection == "label-free"]
    means = own.groupby(case)[column].mean().rename("reference")
    return reference, table[column] / table.join(means, on=case).reference


def _note(group: pd.DataFrame) -> str:
    """Why numbers are missing, and in how many of the trials."""
    missing = group[group.note.notna()]
    of = group.trial.nunique()
    return missing.note.iloc[0] + (f" ({missing.trial.nunique()} of {of} trials)" if of > 1 else "")


def _marked(method: str, group: pd.DataFrame) -> str:
    return method + _TUNED if (group.selection == "labels").all() else method


def _fits(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each fit with a setting that was chosen."""
    fitted = table[(table.selection != "") & table.fit_seconds.notna()]
    return fitted.drop_duplicates([*_CASE, "trial", "fit_seed"]).reset_index(drop=True)


def _mean(group: pd.DataFrame, column: str, form: str) -> str:
    return number(group[column].mean() if column in group else np.nan, form)


def best_lines(table: pd.DataFrame) -> Lines:
    """A line for each chain of steps: the best method of each family, and who is ahead.

    Settings are those chosen without labels; the method among them is the one of smallest error,
    for every family alike. Deviations are over the seeds, of means over the trials; learned is
    ahead beyond the spread where its error is smaller by more than the sum of both deviations. The
    last column counts the trials in which its mean error is the smaller one: these differ by more
    than the seeds do.
    """
    headings = (
        "data", "features", "steps", "best learned", "error %", "best solved", "error %",
        "best baseline", "error %", "learned ahead by", "beyond the spread", "in trials",
    )  # fmt: skip
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    rows = []
    for about, group in chosen.groupby(["data", "features", "steps"], sort=False):
        best = {family: _best(group[group.family == family]) for family in _FAMILIES}
        if best["learned"] is None or best["solved"] is None:
            continue
        (name, learned, spread), (rival, solved, other) = best["learned"], best["solved"]
        by_trial = group.groupby(["trial", "method"]).accuracy.mean().unstack()
        won = int((by_trial[name] > by_trial[rival]).sum())
        cells = [cell for family in _FAMILIES for cell in _cells(best[family])]
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


def _best(group: pd.DataFrame) -> tuple[str, float, float] | None:
    """The method of smallest error with its mean and deviation."""
    if group.empty:
        return None
    errors = 100 * (1 - group.groupby(["method", "fit_seed", "seed"]).accuracy.mean())
    means = errors.groupby("method").mean()
    name = str(means.idxmin())
    return name, float(means[name]), float(errors[name].std(ddof=0))


def _cells(found: tuple[str, float, float] | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (found[0], f"{found[1]:.2f} ± {found[2]:.2f}")
