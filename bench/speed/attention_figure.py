"""Picture of the operators: time and memory as multiples of scaled dot-product attention."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter

from .attention import FORMS
from .attention_race import REFERENCE

_COLOURS = ("tab:blue", "tab:orange", "tab:green")


def draw_attention(table: pd.DataFrame, path: Path) -> None:
    """Draw training times against the reference's, and memory growth; nothing if not timed."""
    timed = table[table.training_ratio.notna() & (table.operator != REFERENCE)]
    grown = table[table.memory_exponent.notna() & (table.operator != REFERENCE)]
    if timed.empty:
        return
    last = timed[(timed.form == "fused") & (timed.case == timed.case.iloc[-1])]
    names = list(last.sort_values("training_ratio").operator)
    figure = Figure(figsize=(11, 1.8 + 0.3 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    _draw_times(left, timed, names)
    _draw_growth(right, grown, names)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    figure.savefig(path, dpi=150)


def _draw_times(axes: Axes, timed: pd.DataFrame, names: list[str]) -> None:
    for (case, rows), colour in zip(timed.groupby("case", sort=False), _COLOURS, strict=False):
        for form in FORMS:
            part = rows[(rows.form == form) & rows.operator.isin(names)]
            if part.empty:
                continue
            _dots(axes, part.training_ratio, part, names, colour, f"{case}, {form}")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    ticks = [t for t in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if _within(t, axes)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.set_xticklabels([f"{t:g}" for t in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time, forward and backward, as a multiple of scaled_dot_product_attention")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _dots(
    axes: Axes, values: pd.Series, rows: pd.DataFrame, names: list[str], colour: str, label: str
) -> None:
    """One dot an operator, hollow for the explicit form."""
    filled = colour if label.endswith("fused") else "none"
    heights = [names.index(name) for name in rows.operator]
    axes.scatter(values, heights, s=30, label=label, facecolors=filled, edgecolors=colour)


def _within(tick: float, axes: Axes) -> bool:
    low, high = axes.get_xlim()
    return low <= tick <= high


def _draw_growth(axes: Axes, grown: pd.DataFrame, names: list[str]) -> None:
    for form in FORMS:
        part = grown[(grown.form == form) & grown.operator.isin(names)]
        _dots(axes, part.memory_exponent, part, names, "black", form)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("peak memory grows as N to the power of")
    axes.grid(alpha=0.3)
