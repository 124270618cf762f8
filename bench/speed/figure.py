"""Picture of the synthetic cases: time a row and memory against the number of rows."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from ...solvers.sparse_coding.row_blocks import MOST_STORED
from .peers import SELF_EXPRESSION_PEERS

_OURS = "black"
_PEERS = dict(zip(SELF_EXPRESSION_PEERS, colormaps["Dark2"].colors, strict=False))  # type: ignore[attr-defined]
_SPACING = 0.055  # of the axis, between labels


class _End(NamedTuple):
    x: float
    y: float
    name: str
    colour: object


def draw_scaling(table: pd.DataFrame, path: Path) -> None:
    """Draw medians with their range on logarithmic axes; nothing if no synthetic case was timed."""
    rows = table[table.case.str.startswith("synthetic") & table.ms_per_row.notna()]
    rows = rows[rows.note == ""]  # at the gap
    if rows.empty:
        return
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_time(left, rows)
    _draw_memory(right, rows)
    figure.savefig(path, dpi=150)


def _draw_time(axes: Axes, rows: pd.DataFrame) -> None:
    ends = []
    for solver, group in rows.groupby("solver", sort=False):
        colour = _PEERS.get(str(solver), _OURS)
        axes.errorbar(
            group.n_rows,
            group.ms_per_row,
            yerr=[group.ms_per_row - group.ms_lowest, group.ms_highest - group.ms_per_row],
            color=colour,
            marker="o",
            markersize=4,
            linewidth=2.5 if colour == _OURS else 1.3,
            capsize=3,
            elinewidth=1.3,
        )
        ends.append(_End(group.n_rows.iloc[-1], group.ms_per_row.iloc[-1], str(solver), colour))
    axes.set_title("Time at a certified gap of 1e-6", loc="left", fontsize=11)
    axes.set_ylabel("milliseconds a row: median and range over rounds")
    _finish(axes, rows, ends)


def _draw_memory(axes: Axes, rows: pd.DataFrame) -> None:
    n = np.unique(rows.n_rows)
    gram = 8 * n**2 / 2**20
    axes.plot(n, gram, color="grey", linestyle="--", linewidth=1.3)
    ends = [_End(n[-1], gram[-1], "an N x N matrix", "grey")]
    known = rows[rows.memory_mib.notna()]
    if len(known):
        axes.plot(known.n_rows, known.memory_mib, color=_OURS, marker="o", linewidth=2.5)
        last = known.iloc[-1]
        ends.append(_End(last.n_rows, last.memory_mib, last.solver, _OURS))
    axes.set_title("Peak memory beyond the input", loc="left", fontsize=11)
    remark = f"The Gram matrix is stored\nup to N = {MOST_STORED:,}."
    axes.text(0.97, 0.05, remark, transform=axes.transAxes, ha="right", fontsize=9)
    axes.set_ylabel("MiB")
    _finish(axes, rows, ends)


def _finish(axes: Axes, rows: pd.DataFrame, ends: list[_End]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    n = np.unique(rows.n_rows)
    axes.set_xticks(n, [f"{count:,}" for count in n])
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=9)
    axes.set_xlabel("rows N, in 200 dimensions")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, ends)


def _label(axes: Axes, ends: list[_End]) -> None:
    """Names beside the axes at the height of the lines' ends, pushed apart."""
    to_axes = axes.transScale + axes.transLimits
    heights = [to_axes.transform((end.x, end.y)) for end in ends]
    lowest = -np.inf
    for (x, y), end in sorted(zip(heights, ends, strict=True), key=lambda pair: pair[0][1]):
        lowest = max(y, lowest + _SPACING)
        axes.annotate(
            end.name,
            xy=(x, y),
            xytext=(1.04, lowest),
            xycoords="axes fraction",
            color=end.colour,
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.6, "shrinkB": 4},
        )
