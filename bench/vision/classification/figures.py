"""Pictures of `twinsolve classify`: differences to the plain row, the path, and adaptation."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from ...figures import legend, panels, plain, save
from ..paired import Verdict, judge
from .report import differences, steps_of_path
from .study import PATH, PLAIN

_CLEAR, _OPEN, _START = "#0072B2", "#999999", "#E69F00"  # of Okabe and Ito
_INTERVAL = "(95 % interval; grey: neither ahead nor behind)"


def draw_differences(table: pd.DataFrame, directory: Path) -> None:
    """Draw differences.png: intervals and token cosines of the rows, or of the steps of a path."""
    apart = differences(table)
    if set(PATH) <= set(table.row):
        _draw_path(table, directory)
    elif apart:
        order = sorted(apart, key=lambda row: apart[row].mean)
        figure, (left, right) = panels(2, (4.5, 1.2 + 0.24 * len(order)), sharey=True)
        _draw_intervals(left, judge(apart), order)
        left.set_xlabel(f"top-1, points to {PLAIN}\n{_INTERVAL}")
        _draw_cosines(right, table, order)
        save(figure, directory / "differences.png")


def _draw_path(table: pd.DataFrame, directory: Path) -> None:
    """Top-1, the difference that each part makes, and cosines, in the order of the path.

    Rows that are no step of it come below a line, compared with the plain row.
    """
    beside = [row for row in table.row.unique() if row not in (*PATH, PLAIN)]
    order = [*reversed(beside), *reversed(PATH)]
    to_plain = judge(differences(table))
    figure, axes = panels(3, (3.9, 1.3 + 0.26 * len(order)), sharey=True)
    left, middle, right = axes
    for place, row in enumerate(order):
        seeds = table[table.row == row].top1
        left.plot(seeds, [place] * len(seeds), "o", color=_CLEAR, alpha=0.4, markersize=4)
        left.plot(seeds.mean(), place, "|", color="black", markersize=13)
    left.set_xlabel("top-1, %\n(a dot a seed, a bar their mean)")
    left.tick_params(axis="y", labelsize=8)
    plain(left)
    verdicts = judge(steps_of_path(table)) | {row: to_plain[row] for row in beside}
    _draw_intervals(middle, verdicts, order)
    below = f"\n(below the line: to {PLAIN})" if beside else ""
    middle.set_xlabel(f"top-1, points to the row before{below}\n{_INTERVAL}")
    _draw_cosines(right, table, order)
    for own in axes if beside else ():
        own.axhline(len(beside) - 0.5, color="black", linewidth=0.8)
    save(figure, directory / "differences.png")


def draw_adaptation(table: pd.DataFrame, directory: Path) -> None:
    """Draw adaptation.png: accuracy before and after the extra steps, and each row's interval."""
    apart = differences(table)
    if not apart:
        return
    order = sorted(apart, key=lambda row: apart[row].mean)
    means = table.groupby("row")[["plain", "start", "top1"]].mean()
    figure, (left, right) = panels(2, (4.5, 1.7 + 0.24 * len(order)), sharey=True)
    for place, row in enumerate(order):
        start, end = means.start[row], means.top1[row]
        left.plot([start, end], [place, place], color=_OPEN, linewidth=1, zorder=1)
        left.plot(start, place, "o", color=_START, label="replaced, 0 steps")
        left.plot(end, place, "o", color=_CLEAR, label="trained on")
    left.axvline(means.plain[PLAIN], color="black", linewidth=0.8, label="trained plain")
    left.set_xlabel("top-1 on test images, %")
    plain(left)
    legend(figure, "upper center", ncols=3)
    _draw_intervals(right, judge(apart), order)
    right.set_xlabel(f"top-1, points to {PLAIN} trained as long\n{_INTERVAL}")
    save(figure, directory / "adaptation.png")


def _draw_intervals(axes: Axes, verdicts: Mapping[str, Verdict], order: list[str]) -> None:
    """Mean differences with their intervals, from below, coloured by their verdicts."""
    for row, verdict in verdicts.items():
        colour = _CLEAR if verdict.words in ("ahead", "behind") else _OPEN
        half = verdict.apart.half_width if verdict.apart.determined else None
        axes.errorbar(
            verdict.apart.mean, order.index(row), xerr=half, fmt="o", color=colour, capsize=2
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), order, fontsize=8)
    plain(axes)


def _draw_cosines(axes: Axes, table: pd.DataFrame, order: list[str]) -> None:
    cosines = table.groupby("row").token_cosine.mean() if "token_cosine" in table else {}
    for place, row in enumerate(order):
        if row in cosines:
            axes.plot(cosines[row], place, "o", color=_CLEAR)
    if PLAIN in cosines:
        axes.axvline(cosines[PLAIN], color="black", linewidth=0.8)
    axes.set_xlabel(f"mean cosine of the last layer's tokens\n(line: {PLAIN})")
    plain(axes)
