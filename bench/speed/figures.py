"""Pictures of the commands below `twinsolve speed`."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from ...solvers.sparse_coding.row_blocks import MOST_STORED
from ..figures import log_ticks, panels, plain, save
from .attention import FORMS, REFERENCE
from .contest import OURS
from .peers import SELF_EXPRESSION_PEERS

_OURS = "black"
_PEERS = dict(zip(SELF_EXPRESSION_PEERS, colormaps["Dark2"].colors, strict=False))  # type: ignore[attr-defined]
_PACKAGES = {OURS: _OURS, "opencv": "tab:blue", "scikit-image": "tab:red"}
_CASES = ("tab:blue", "tab:orange", "tab:green")
_SPACING = 0.055  # of the axis, between labels


class _End(NamedTuple):
    x: float
    y: float
    name: str
    colour: object


def draw_scaling(table: pd.DataFrame, directory: Path) -> None:
    """Draw scaling.png: medians with their range; nothing if no synthetic case was timed."""
    rows = table[table.case.str.startswith("synthetic") & table.ms_per_row.notna()]
    rows = rows[rows.note == ""]  # at the gap
    if rows.empty:
        return
    figure, (left, right) = panels(2, (5.5, 4.8), width_ratios=(1.15, 1))
    _draw_time(left, rows)
    _draw_memory(right, rows)
    save(figure, directory / "scaling.png")


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
    log_ticks(axes, "x", np.unique(rows.n_rows))
    log_ticks(axes, "y")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    axes.set_xlabel("rows N, in 200 dimensions")
    plain(axes)
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


def draw_quality(table: pd.DataFrame, directory: Path) -> None:
    """Draw quality.png of the case set12, PSNR against time; nothing if it was not timed."""
    rows = table[(table.case == "set12") & table.ms.notna()]
    rows = rows.assign(ms=rows.ms / rows.inputs)
    if rows.empty:
        return
    figure, (axes,) = panels(1, (9, 5))
    for row in rows.itertuples():
        colour = _PACKAGES[str(row.package)]
        axes.plot(row.ms, row.psnr, "o", color=colour)
        axes.annotate(
            str(row.method),
            (row.ms, row.psnr),
            xytext=(6, _nudge(row, rows)),
            textcoords="offset points",
            color=colour,
            fontsize=8,
            verticalalignment="center",
        )
    lowest, highest = rows.ms.min(), rows.ms.max()
    log_ticks(axes, "x", [t for t in 10.0 ** np.arange(-1, 6) if lowest / 1.5 < t < highest * 3])
    axes.set_xlim(lowest / 1.5, highest * (highest / lowest) ** 0.35)
    axes.set_xlabel("milliseconds an image")
    axes.set_ylabel("mean PSNR, dB")
    axes.set_title("Set12, noise of 25 grey levels", loc="left", fontsize=11)
    plain(axes)
    save(figure, directory / "quality.png")


def _nudge(row: Any, rows: pd.DataFrame) -> float:
    """Points up or down by which a label keeps clear of close neighbours'."""
    near = rows[(rows.psnr - row.psnr).abs().lt(0.05) & (rows.ms / row.ms).between(0.2, 5)]
    return 10.0 * (near.psnr.lt(row.psnr).sum() - (len(near) - 1) / 2)


def draw_attention(table: pd.DataFrame, directory: Path) -> None:
    """Draw times.png: training against the reference, and memory growth; nothing if not timed."""
    timed = table[table.training_ratio.notna() & (table.operator != REFERENCE)]
    grown = table[table.memory_exponent.notna() & (table.operator != REFERENCE)]
    if timed.empty:
        return
    last = timed[(timed.form == "fused") & (timed.case == timed.case.iloc[-1])]
    names = list(last.sort_values("training_ratio").operator)
    figure, (left, right) = panels(
        2, (5.5, 1.8 + 0.3 * len(names)), sharey=True, width_ratios=(2, 1)
    )
    for (case, rows), colour in zip(timed.groupby("case", sort=False), _CASES, strict=False):
        _dots(left, "training_ratio", rows, names, colour, f"{_shown_case(str(case))}, ")
    _dots(right, "memory_exponent", grown, names, _OURS)
    left.set_xscale("log")
    low, high = left.get_xlim()
    ticks = [t for t in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if low <= t <= high]
    left.set_xticks(ticks, [f"{t:g}" for t in ticks])
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("time, forward and backward, as a multiple of scaled_dot_product_attention")
    left.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    right.set_xlabel("peak memory grows as N to the power of")
    for axes in (left, right):
        axes.axvline(1, color="black", linewidth=1)
        plain(axes)
    left.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    left.invert_yaxis()
    save(figure, directory / "times.png")


def _shown_case(case: str) -> str:
    """A case, such as tokens-1024, in words."""
    kind, _, size = case.rpartition("-")
    return f"{int(size):,} tokens" + " of images" * (kind == "images") if size.isdigit() else case


def _dots(
    axes: Axes, column: str, rows: pd.DataFrame, names: list[str], colour: str, case: str = ""
) -> None:
    """One dot an operator, hollow for the explicit form."""
    for form in FORMS:
        part = rows[(rows.form == form) & rows.operator.isin(names)]
        if part.empty:
            continue
        heights = [names.index(name) for name in part.operator]
        filled = colour if form == "fused" else "none"
        label = case + form
        axes.scatter(part[column], heights, s=30, label=label, facecolors=filled, edgecolors=colour)
