"""Reads what a run, a twin or a test says of a published claim, and weighs it."""

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from result_values import RESULTS, find_rows, find_table, read_summary, read_tables

from twinsolve.bench import tables
from twinsolve.bench.comparison import trained_alike
from twinsolve.bench.vision.classification.measures import CLEAN, hits
from twinsolve.bench.vision.classification.report import (
    Paired,
    Verdict,
    baselines_of,
    judge,
    paired_difference,
)
from twinsolve.bench.vision.segmentation import report as segmentation

_OF_TOKENS = ("token_cosine", "log10_condition")
_LN_10 = float(np.log(10))
_RATIOS = {2.0: "twice", 0.5: "half"}
Row = dict[str, Any]


class Difference(NamedTuple):
    """A mean difference, half of its interval (or NaN), the verdict of its table, its format."""

    mean: float
    half: float
    words: str
    form: str = ".2f"


def read_ours(ours: Row, effect: float | None) -> tuple[str, str | None]:
    """Write our number, and what it says of the claim; None where it says nothing by itself.

    `ours` names a ``twin`` of the check, a ``test``, or a ``run``. Of a run it has a pattern to
    ``find`` in the summary, a ``row`` to compare with its baseline, or a ``column`` of the table,
    of a ``model`` to compare with another one where it has this name.
    """
    if "twin" in ours:
        return _read_twin(ours["twin"])
    if "test" in ours:
        return "a test", "holds"
    if "find" in ours:
        return f"{_read_pattern(ours['run'], ours['find'])} {ours['unit']}", None
    if "row" in ours:
        cell, verdict = _write_difference(ours, effect)
    else:
        cell, verdict = (_compare_networks if "model" in ours else _read_columns)(ours)
    return f"{cell} {ours['unit']}", verdict


def _read_twin(name: str) -> tuple[str, str]:
    """Write the largest deviation of a twin on data in float64, beside its tolerance."""
    rows = find_rows(find_table(["check"], ["float64", "tol."]), [name])
    worst = rows.loc[rows.float64.astype(float).idxmax()]
    error, tolerance = worst["float64"], worst["tol."]
    holds = float(error) <= float(tolerance)
    return f"{error} (tolerance {tolerance})", "holds" if holds else "does not hold"


def _write_difference(ours: Row, effect: float | None) -> tuple[str, str]:
    """Write a difference with its interval, and what it says of the claim."""
    return _write_weighed(find_difference(ours), ours["claimed"], effect)


def _write_weighed(difference: Difference, claimed: str, effect: float | None) -> tuple[str, str]:
    mean, half, words, form = difference
    width = "" if np.isnan(half) else f" ± {half:{form}}"
    verdict = weigh(difference, claimed, effect)
    if verdict == "inconclusive" and width:
        verdict += f" at{width}"
        if words.startswith("equal"):
            verdict += f", {words} point"
    return f"{mean:+{form}}{width}", verdict


def find_difference(ours: Row) -> Difference:
    """Return the difference of a row to its baseline, or to the row ``against``.

    It is read from the summary if ``table`` names a heading of it. Otherwise it is computed from
    `table.json`: its verdict is corrected for all rows, but not if ``against`` is given, which is
    a row of the same run or of ``against_run``.
    """
    run, row = ours["run"], ours["row"]
    if "table" in ours:
        return _read_difference(run, ours["table"], row, ours.get("column", "verdict"))
    measure = ours["measure"]
    margin, form = (0.0, ".3f") if measure.endswith(_OF_TOKENS) else (1.0, ".2f")
    if "against" in ours:
        apart = _compute_differences(_read_both(ours), measure, {row: ours["against"]})
        verdict = judge(apart, margin)[row]
    else:
        verdict = _judge_all(run, measure, margin)[row]
    half = verdict.apart.half_width if verdict.apart.determined else np.nan
    return Difference(verdict.apart.mean, half, verdict.words, form)


def _read_both(ours: Row) -> pd.DataFrame:
    """Read the rows of a run, or its row beside that of another run on the same data and seeds."""
    table = read_table(ours["run"])
    if "against_run" not in ours:
        return table
    other = read_table(ours["against_run"])
    return pd.concat([table[table.row == ours["row"]], other[other.row == ours["against"]]])


@cache
def _judge_all(run: str, measure: str, margin: float) -> dict[str, Verdict]:
    """Return the verdict on each row of a run, corrected for all of them."""
    table = read_table(run)
    if measure.startswith("miou"):
        verdicts = judge(segmentation.differences(table), margin)
        return {row: verdict for (row, name), verdict in verdicts.items() if name == measure}
    return judge(_compute_differences(table, measure, baselines_of(table)), margin)


def _compute_differences(
    table: pd.DataFrame, measure: str, baselines: dict[str, str]
) -> dict[str, Paired]:
    """Pair accuracies by seed and image, log losses by seed and stretch, the rest by seed.

    Measures of tokens are compared between rows that were trained alike alone.
    """
    if measure.startswith("miou"):
        apart = segmentation.differences(table, baselines)
        return {row: apart[row, measure] for row in baselines}
    condition = CLEAN if measure == "top1" else measure
    if measure in table and isinstance(table[measure].iloc[0], list):  # log losses by stretch
        values = {
            row: pd.DataFrame(-100 * np.stack([*own[measure]]), index=own.seed)
            for row, own in table.groupby("row")
        }
    elif measure not in table or condition == CLEAN:
        values = {row: hits(table, row, condition) for row in {*baselines, *baselines.values()}}
    else:
        values = dict(table.pivot(index="seed", columns="row", values=measure).items())
    if measure in _OF_TOKENS:
        baselines = {row: to for row, to in baselines.items() if trained_alike(table, row, to)}
    return {row: paired_difference(values[row], values[to]) for row, to in baselines.items()}


def _read_difference(run: str, heading: str, row: str, column: str) -> Difference:
    """Read the line of a row from the table under a heading of a summary.

    The difference stands two columns before its verdict. A ``column`` of a condition has no
    verdict: it puts differences that are neither ahead nor behind in brackets.
    """
    table = next(x for x in read_tables(run) if x.section.iloc[0].startswith(heading))
    cells = find_rows(table, [row]).iloc[0]
    cell = cells.iloc[table.columns.get_loc(column) - (2 if column == "verdict" else 0)]
    mean, _, half = cell.strip("()").partition(" ± ")
    words = "ahead" if float(mean) > 0 else "behind"
    if column == "verdict" or cell[0] == "(":
        words = cells.get("verdict", "inconclusive")
    digits = len(mean.partition(".")[2])
    return Difference(float(mean), float(half or "nan"), words, f".{digits}f")


def rate_note(ours: Row) -> str:
    """Say if a row was trained at another learning rate, or for other steps, than its baseline.

    The table "Part by part" compares with the row before, which no column names.
    """
    untrained = ours.get("measure", "").startswith("start")
    if "row" not in ours or untrained or ours.get("table") == "Part by part":
        return ""
    table = _read_both(ours)
    if "learning_rate" not in table or "row" not in table:
        return ""
    to = ours.get("against") or baselines_of(table).get(ours["row"])
    told = []
    for name, words in (("learning_rate", "the rate"), ("n_steps", "the steps")):
        values = table.groupby("row")[name].first() if name in table else {}
        if ours["row"] in values and to in values and values[ours["row"]] != values[to]:
            ratio = float(values[ours["row"]] / values[to])
            told.append(f"{_RATIOS.get(round(ratio, 3), f'{ratio:.3g} times')} {words}")
    return f", at {' and '.join(told)}" if told else ""


def weigh(difference: Difference, claimed: str, effect: float | None) -> str:
    """Say whether a claim of ``more``, ``less``, ``no less`` or a change ``within`` a limit holds.

    ``more`` and ``less`` hold if the corrected p is at most 0.05 and the interval reaches the
    published effect. They hold in direction if it does not, or if no effect is known. They do not
    hold if the difference is opposite, or if the interval ends before the effect; one that is not
    determined ends nowhere. A limit, 1 unless published, holds if the whole interval is within it,
    and does not if all of it is outside. ``no less`` has this limit on one side alone.
    """
    mean, half, words, _ = difference
    if claimed == "no less" and not np.isnan(half):
        if mean - half >= -1:
            return "holds"
        return "does not hold" if mean + half < -1 else "inconclusive"
    if claimed == "within":
        limit = abs(effect or 1)
        if abs(mean) + half <= limit:
            return "holds"
        return "does not hold" if abs(mean) - half > limit else "inconclusive"
    clear = words in ("ahead", "behind")
    if np.isnan(half) and not clear:
        return "inconclusive"
    along = mean if claimed == "more" else -mean
    reached = effect is not None and along + half >= abs(effect)
    if clear and along > 0:
        return "holds" if reached else "holds in direction"
    return "does not hold" if clear or (effect is not None and not reached) else "inconclusive"


@cache
def read_table(run: str) -> pd.DataFrame:
    """Read the rows of a run, which are packed if there are many."""
    path = RESULTS / run / "table.json"
    return tables.read_table(path if path.exists() else path.with_name("rows.json.gz"))


def _compare_networks(ours: Row) -> tuple[str, str]:
    """Write the mean over layers of a column of two networks, and in how many layers it agrees.

    Networks of several seeds are named ``-seed-`` and their seed. Their means are paired by it, and
    their difference, corrected for all networks of the run, counts where some layers disagree.
    """
    table, claimed, form = _read_where(ours), ours["claimed"], ours["format"]
    parts = table.model.str.partition("-seed-")
    values = table.assign(row=parts[0], seed=parts[2]).pivot(
        index=["seed", "layer"], columns="row", values=ours["column"]
    ).dropna() * (_LN_10 if ours.get("natural") else 1)
    own, other = (values[ours[name]].to_numpy() for name in ("model", "against"))
    agree = own < other if claimed == "less" else own > other
    told = f"{'lower' if claimed == 'less' else 'higher'} in {agree.sum()} of {len(agree)} layers"
    by_seed = values.groupby("seed").mean()
    difference, verdict = f"{own.mean() - other.mean():+{form}}", _weigh_layers(agree)
    if len(by_seed) > 1:
        to = by_seed.pop(ours["against"])
        found = judge({row: paired_difference(by_seed[row], to) for row in by_seed}, 0.0)
        apart, words = found[ours["model"]].apart, found[ours["model"]].words
        each = Difference(apart.mean, apart.half_width, words, form)
        difference, weighed = _write_weighed(each, claimed, None)
        verdict = weighed if verdict == "inconclusive" else verdict
    return f"{other.mean():{form}} to {own.mean():{form}} ({difference}), {told},", verdict


def _read_where(ours: Row) -> pd.DataFrame:
    """Read the rows of a run that have one of the values ``where`` names for a column."""
    table = read_table(ours["run"])
    for name, wanted in ours.get("where", {}).items():
        table = table[table[name].isin(wanted)]
    return table


def _read_columns(ours: Row) -> tuple[str, str | None]:
    """Write the means of a column by layer, or by ``by``, and those of a second column.

    The claim that a column is ``above 0`` counts its values, and ``rank`` correlates two columns.
    Columns of decimal logarithms become ``natural``.
    """
    columns = [ours["column"], *([ours["beside"]] if "beside" in ours else [])]
    table = _read_where(ours)
    if ours.get("natural"):
        table = table.assign(**{name: _LN_10 * table[name] for name in columns})
    if ours.get("claimed") == "above 0":
        known = table.dropna(subset=columns)
        above, by_network = known[columns[0]] > 0, known.groupby("model")[columns[0]].mean()
        return f"above 0 in {above.sum()} of {len(above)}", weigh_networks(above, by_network)
    if ours.get("rank"):
        pairs = table[columns].dropna()
        rank = pairs.corr("spearman").iloc[0, 1]
        return f"rank correlation {rank:.2f} over {len(pairs)}", None
    means = table.dropna(subset=columns).groupby(ours["by"], sort=ours["by"] == "layer")[columns]
    values = [means.mean()[column].tolist() for column in columns]
    cells = [", ".join(tables.number(x, ours["format"]) for x in own) for own in values]
    verdict = _weigh_values(values, ours.get("claimed"))
    if ours["by"] == "layer" and ours.get("claimed") in ("rises", "falls") and "model" in table:
        known = table.dropna(subset=columns).sort_values("layer").groupby("model")[columns[0]]
        change = known.last() - known.first()
        along = change if ours["claimed"] == "rises" else -change
        verdict = weigh_networks(along > 0, along)
    return " against ".join(cells), verdict


def _weigh_values(values: list[list[float]], claimed: str | None) -> str | None:
    """Compare two columns layer by layer, or the last value of one column with its first."""
    if claimed is None:
        return None
    if claimed == "equal":
        return "holds" if len(set(values[0])) == 1 else "does not hold"
    first, second = values if len(values) == 2 else ([values[0][-1]], [values[0][0]])
    sign = 1 if claimed in ("more", "rises") else -1
    return _weigh_layers(np.array([sign * (x - y) for x, y in zip(first, second, strict=True)]) > 0)


def _weigh_layers(agree: Any) -> str:
    """Say whether a claim holds in all, some or none of the layers of a network."""
    if agree.all():
        return "holds in direction"
    return "inconclusive" if agree.any() else "does not hold"


def weigh_networks(agree: Any, along: "pd.Series[float]") -> str:
    """Say whether a claim holds: everywhere, or by means of several networks, above 0 along it."""
    verdict = _weigh_layers(agree)
    if verdict != "inconclusive" or len(along) < 2:
        return verdict
    words = judge({"": paired_difference(along)}, 0.0)[""].words
    return {"ahead": "holds in direction", "behind": "does not hold"}.get(words, verdict)


def _read_pattern(run: str, pattern: str) -> str:
    """Read what the groups of a pattern match in the summary of a run."""
    match = re.search(pattern, read_summary(run), re.M)
    if match is None:
        raise ValueError(f"find: must match the summary of {run}, got {pattern!r}")
    return " against ".join(match.groups())
