"""Methods by data sets in few lines, whatever the runs that their rows come from."""

import numpy as np
import pandas as pd

from twinsolve.bench.clustering.summary import REFERENCE
from twinsolve.bench.tables import Lines, number

LABEL_FREE, LABELS = "label-free", "labels"
_CASE = ["data", "features"]
_HEADINGS = (
    "method", "family", "error %", "subsets", "seeds", "settings", "steps", "from", "gap max",
    "time", "MiB", "error %, labels", "best run",
)  # fmt: skip


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several runs on the same data; of a method in many, those of the first run.

    Times are ratios to SSC in the same run, or to its first method: machines differ.
    """
    runs = [table.assign(time=_ratios(table), run=i) for i, table in enumerate(tables)]
    rows = pd.concat(runs, ignore_index=True)
    first = rows.groupby([*_CASE, "method"]).run.transform("min")
    return rows[rows.run == first].drop(columns="run")


def overview_lines(table: pd.DataFrame) -> Lines:
    """A line for each method: its error on each data set with the spread over subsets, the mean.

    Settings and steps are those chosen without labels. Methods that lack a data set come last.
    """
    cases = list(dict.fromkeys(table[_CASE].itertuples(index=False, name=None)))
    errors: dict[str, list[tuple[float, str]]] = {}
    for method, rows in _chosen(table, LABEL_FREE).groupby("method", sort=False):
        by_case = dict(list(rows.groupby(_CASE, sort=False)))
        errors[str(method)] = [_error(by_case.get(case)) for case in cases]
    means = {method: float(np.mean([e for e, _ in cells])) for method, cells in errors.items()}
    order = sorted(means, key=lambda method: (np.isnan(means[method]), means[method]))
    lines = [
        (method, *(cell for _, cell in errors[method]), number(means[method], ".2f"))
        for method in order
    ]
    return ("method", *_short(cases), "mean"), lines


def comparison_lines(table: pd.DataFrame) -> dict[tuple[str, str], Lines]:
    """For each data set and features, a line for each method, by its error without labels.

    The error is a mean over the subsets of the data and the seeds of k-means and fits: beside it
    its deviations, over the subsets of means over the seeds, and over the seeds of means over the
    subsets. Settings are chosen without labels, and the steps of largest score; or given, where
    there is no choice. The last two columns choose both with labels: the mean again, and the best
    seed, as the best of many runs would be told.
    """
    found: dict[tuple[str, str], Lines] = {}
    for (data, features), rows in table.groupby(_CASE, sort=False):
        free, tuned = _chosen(rows, LABEL_FREE), _chosen(rows, LABELS)
        lines = []
        for method, group in free.groupby("method", sort=False):
            all_rows = rows[rows.method == method]
            by_labels = tuned[tuned.method == method]
            lines.append((_means(group).mean(), _line(str(method), group, all_rows, by_labels)))
        lines.sort(key=lambda line: (np.isnan(line[0]), line[0]))
        found[str(data), str(features)] = _HEADINGS, [line for _, line in lines]
    return found


def _short(cases: list[tuple[str, str]]) -> list[str]:
    """Names of data sets without their settings, and with features where these tell them apart."""
    bases = [data.partition(":")[0] for data, _ in cases]
    return [
        f"{base}, {features}" if bases.count(base) > 1 else base
        for base, (_, features) in zip(bases, cases, strict=True)
    ]


def _line(
    method: str, group: pd.DataFrame, every: pd.DataFrame, tuned: pd.DataFrame
) -> tuple[str, ...]:
    given = group.selection_score.isna().all() or every.groupby(["settings", "steps"]).ngroups == 1
    seeds = _means(tuned)
    return (
        method,
        group.family.iloc[0],
        number(_means(group).mean(), ".2f", _note(group)),
        number(_means(group, ["trial"]).std(ddof=0), ".2f"),
        number(_means(group).std(ddof=0), ".2f"),
        group.settings.iloc[0] or "-",
        group.steps.iloc[0],
        "given" if given else LABEL_FREE,
        number(group.gap_max.max(), ".0e"),
        number(group.time.median(), ".2f"),
        number(group.memory_mib.median(), ".0f"),
        number(seeds.mean(), ".2f"),
        number(seeds.min(), ".2f"),
    )


def _chosen(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Of each method, rows of the settings so chosen, by the steps chosen in the same way."""
    group, column = [*_CASE, "method"], "selection_score" if by == LABEL_FREE else "accuracy"
    rows = table[table.selection == by]
    means = rows.groupby([*group, "steps"], sort=False)[column].mean().fillna(-np.inf)
    best = means.groupby(group, sort=False).idxmax()
    return rows[pd.MultiIndex.from_frame(rows[[*group, "steps"]]).isin(best)]


def _means(rows: pd.DataFrame, by: list[str] | None = None) -> pd.Series:
    """Errors in %, for each seed unless said otherwise."""
    by = by or ["fit_seed", "seed"]
    return 100 * (1 - rows.groupby(by).accuracy.agg(lambda found: found.mean(skipna=False)))


def _error(rows: pd.DataFrame | None) -> tuple[float, str]:
    if rows is None:
        return np.nan, "-"
    by_subset = _means(rows, ["trial"])
    error = float(_means(rows).mean())
    return error, "-" if np.isnan(error) else f"{error:.2f} ± {by_subset.std(ddof=0):.2f}"


def _note(rows: pd.DataFrame) -> str:
    notes = rows.get("note", pd.Series(dtype=object)).dropna()
    return str(notes.iloc[0]) if len(notes) else "-"


def _ratios(table: pd.DataFrame) -> pd.Series:
    """Seconds of fits over those of SSC on the same trial, without labels chosen."""
    own = table[table.selection == LABEL_FREE]
    reference = REFERENCE if (own.method == REFERENCE).any() else table.method.iloc[0]
    case = [*_CASE, "trial"]
    seconds = own[own.method == reference].groupby(case).fit_seconds.mean().rename("reference")
    ratios: pd.Series = table.fit_seconds / table.join(seconds, on=case).reference
    return ratios
