"""Text and figure that `twinsolve check` prints and writes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...twins.laws import Law
from ...twins.relations import ROUNDING_ADVICE
from ..figures import legend, panels, plain, save
from ..tables import Lines, markdown, number
from .checks import DRAWN

_MARKERS = {"clustering": "o", "vision": "s", "laws": "|"}
_COLOURS = {
    "float64": "tab:blue", "float32": "tab:orange", "bfloat16": "tab:green", "float16": "tab:red",
}  # fmt: skip
_SHIFTS = {"float64": 0.2, "float32": -0.2, "bfloat16": 0.0, "float16": 0.1}
_LONGEST = 40  # most twins with a line of their own
_LEFT, _RIGHT = 1e-8, 15  # smaller and larger values are drawn there


def draw_deviations(table: pd.DataFrame, path: Path) -> None:
    """Draw ``deviation / tolerance`` of every row on a logarithmic axis, by family.

    Each twin has a line; if they are many, each family has a band, and the twin closest to its
    tolerance is named.
    """
    shares = share(table).clip(_LEFT, _RIGHT)
    draw = _draw_lines if table.twin.nunique() <= _LONGEST else _draw_bands
    figure = draw(table.assign(share=shares))
    (axes,) = figure.axes
    axes.axvline(1, color="black", linewidth=1)
    axes.axvspan(1, 20, color="tab:red", alpha=0.08)
    axes.set_xscale("log")
    axes.set_xlim(5e-9, 20)
    axes.set_xlabel("deviation / tolerance (zeros at the left edge, broken rows in red)")
    plain(axes, "x")
    legend(figure, "upper center", ncols=4)
    save(figure, path)


def _draw_lines(table: pd.DataFrame) -> Figure:
    names: list[str] = []
    for family, rows in table.groupby("family"):
        names += [f"{_in_words(family).upper()}:", *rows.twin.unique()]
    figure, (axes,) = panels(1, (7, 1.2 + 0.19 * len(names)))
    places = table.twin.map({name: place for place, name in enumerate(names)})
    _draw_marks(axes, table.assign(place=places + table["dtype"].map(_SHIFTS)))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure


def _draw_bands(table: pd.DataFrame) -> Figure:
    bands = dict(iter(table.groupby("family")))
    figure, (axes,) = panels(1, (9, 1.4 + 0.42 * len(bands)))
    right: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    for place, rows in enumerate(bands.values()):
        codes, twins = pd.factorize(rows.twin)
        _draw_marks(axes, rows.assign(place=place - 0.4 + 0.8 * (codes + 0.5) / len(twins)))
        axes.axhline(place - 0.5, color="0.8", linewidth=0.8)
        closest = rows.loc[rows.share.idxmax()]
        words = f"{closest.twin}, {closest.share:.2f}"
        axes.text(1.01, place, words, fontsize=8, **right)
    names = [f"{_in_words(family)}: {rows.twin.nunique()}" for family, rows in bands.items()]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title("family: number of twins", fontsize=9, loc="left")
    axes.text(1.01, -0.75, "closest to its tolerance", fontsize=9, **right)
    return figure


def _in_words(family: object) -> str:
    return str(family).replace("_", " ")


def _draw_marks(axes: Axes, table: pd.DataFrame) -> None:
    for (task, dtype), rows in table.groupby([table.task.fillna("laws"), "dtype"]):
        axes.scatter(
            rows.share,
            rows.place,
            marker=_MARKERS[task],
            color=_COLOURS[dtype],
            alpha=0.6,
            s=14,
            linewidths=1 if task == "laws" else 0,
            label=f"{task}, {dtype}",
        )


_DIGITS = {"clustering": 3, "vision": 2}
_MARGINS = {"clustering": 0.05, "vision": 0.2}  # of ARI and dB
_INFINITE = 1e100  # relative to a solver's answer of zeros
_COLUMNS = "  {:<41} {:<8} {:<11} {:>6} {:>8} {:>8}  {:<9}  {}"


def heading() -> str:
    """Column names of the lines of `twin_lines`."""
    return _COLUMNS.format(
        "twin", "relation", "evidence", "rows", "largest", "of tol.", "verdict", "of case"
    )


def twin_lines(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a line on a twin with its row closest to the tolerance, then a line per failure."""
    first = rows.iloc[0]
    worst = rows.loc[share(rows).idxmax()]
    broken = rows[rows.verdict == "broken"]
    yield _COLUMNS.format(
        first.twin,
        first.relation,
        first.evidence,
        len(rows),
        _number(worst.deviation),
        _number(worst.tolerance),
        f"{len(broken)} broken" if len(broken) else "holds",
        _case(worst),
    ).rstrip()
    exact = set(rows.data[rows["dtype"] == "float64"]) - set(
        broken.data[broken["dtype"] == "float64"]
    )
    places_by_reason: dict[str, list[str]] = {}
    for _, row in broken.iterrows():
        reason = _reason(row, rounding=row.data in exact)
        places_by_reason.setdefault(reason, []).append(f"{row.case} on {row.data} ({row['dtype']})")
    for reason, places in places_by_reason.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"    {places[0]}{more}: {reason}"


def _case(row: pd.Series) -> str:
    return str(row.data if row.data != DRAWN else row.case)


def share(rows: pd.DataFrame) -> pd.Series:
    """Deviations divided by their tolerances; 0 / 0 is 0, and NaN is infinite."""
    shares = (rows.deviation / rows.tolerance).astype(float).fillna(np.inf)
    return shares.where(rows.deviation != 0, 0.0)


def _number(x: float | None) -> str:
    if x is None or not np.isfinite(x):
        return "-"
    return f"{x:.1e}" if x < _INFINITE else "infinite"


def _reason(row: pd.Series, *, rounding: bool) -> str:
    if isinstance(row.why, str):
        return row.why
    if _kind(row.case) == "refused":
        return "the layer takes it, though its laws exclude it; it must raise a ValueError"
    deviation = _number(row.deviation) if np.isfinite(row.deviation) else str(row.deviation)
    reason = f"deviation {deviation}, tolerance {_number(row.tolerance)}"
    if rounding and row["dtype"] == "float32" and row.deviation > row.tolerance:
        reason += f"; {ROUNDING_ADVICE}"
    if row.task_number_solver is None or pd.isna(row.task_number_solver):
        return reason
    numbers = f"{row.task_number_solver:.4f} (solver), {row.task_number_layer:.4f} (layer)"
    return f"{reason}; task number {numbers}"


def coverage(table: pd.DataFrame) -> list[str]:
    """Lines that count what was run, and the verdict."""
    drawn = table.data == DRAWN
    cases = table[drawn].case.map(_kind).value_counts(sort=False)
    kinds = table.drop_duplicates("twin").evidence.value_counts()
    lines = [f"Evidence: {_counts(kinds)} (twins)."]
    if not drawn.all():
        lines.append(f"Data: {_counts(table[~drawn].data.value_counts(sort=False))} (rows).")
        lines += _usefulness(table[~drawn])
    if drawn.any():
        lines.append(f"Laws: {_counts(cases)} (rows).")
    held = (table.verdict == "holds").sum()
    return [*lines, f"{held} of {len(table)} rows hold; {table.twin.nunique()} twins."]


def _kind(case: str) -> str:
    """The law of a case; the laws of all options count as one."""
    return "options" if ": " in case else case.split(",")[0]


def better_than_nothing(table: pd.DataFrame) -> pd.Series:
    """Whether each row's solver beats doing nothing, by 0.05 in ARI or 0.2 dB."""
    margins = table.task.map(_MARGINS).astype(float)
    gain = table.task_number_solver.astype(float) - table.task_number_nothing.astype(float)
    return gain > margins


def _usefulness(table: pd.DataFrame) -> Iterator[str]:
    judged = table[table.task_number_nothing.notna()]
    if len(judged) > 0:
        better = better_than_nothing(judged).groupby(judged.twin).any()
        yield f"{better.sum()} of {len(better)} twins beat doing nothing on at least one data set."


def _counts(counts: pd.Series) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


_ON_DATA = (
    "twin", "relation", "evidence", "equation", "data", "case", "nothing", "solver", "layer",
    "float64", "tol.", "float32", "tol.", "verdict",
)  # fmt: skip
_UNDER_LAWS = ("twin", "cases", "closest case", "dtype", "deviation", "tol.", "verdict")


def summary_lines(table: pd.DataFrame) -> list[str]:
    """Two Markdown tables: a line per twin and data set, and a line per twin for its laws."""
    drawn = table.data == DRAWN
    lines: list[str] = []
    if not drawn.all():
        lines += ["## On data", "", *markdown(_ON_DATA, _on_data(table[~drawn])), ""]
    if drawn.any():
        lines += ["## Under laws", "", *markdown(_UNDER_LAWS, _under_laws(table[drawn]))]
        lines += ["", "The page `docs/layers.md` says what each law says."]
    return lines


def law_lines(laws: Iterable[Law]) -> Lines:
    """The name of each law, and the first sentence of its docstring."""
    said = ((law.__name__, (law.__doc__ or "").partition("\n")[0]) for law in laws)
    return ("law", "what it says"), [(name.replace("_", " "), words) for name, words in said]


def _on_data(table: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Cells by twin and data set, with both dtypes on one line."""
    keys = ["twin", "relation", "evidence", "equation", "data", "case", "task"]
    for (*key, task), rows in table.groupby(keys, sort=False):
        dtypes = rows.set_index("dtype")[["deviation", "tolerance"]]
        cells = dtypes.reindex(["float64", "float32"]).to_numpy(dtype=float).ravel()
        numbers = rows[["task_number_nothing", "task_number_solver", "task_number_layer"]].iloc[0]
        digits = f".{_DIGITS[task]}f"
        yield (*key, *(number(x, digits) for x in numbers), *map(_number, cells), _verdict(rows))


def _under_laws(table: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    for twin, rows in table.groupby("twin", sort=False):
        worst = rows.loc[share(rows).idxmax()]
        numbers = _number(worst.deviation), _number(worst.tolerance)
        yield str(twin), str(len(rows)), worst.case, worst["dtype"], *numbers, _verdict(rows)


def _verdict(rows: pd.DataFrame) -> str:
    return "broken" if (rows.verdict == "broken").any() else "holds"
