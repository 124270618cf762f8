"""Pictures of `twinsolve classify`: differences to the plain row, depth, and adaptation."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from ...figures import legend, panels, plain, save
from ..paired import paired_difference
from .study import PLAIN

_CLEAR, _OPEN, _START = "#0072B2", "#999999", "#E69F00"  # of Okabe and Ito


def draw_differences(table: pd.DataFrame, directory: Path) -> None:
    """Draw differences.png: points of each row's interval, and its token cosine."""
    values = table.pivot(index="seed", columns="row", values="top1")
    order = values.mean().drop(PLAIN).sort_values().index
    if order.empty:
        return
    figure, (left, right) = panels(2, (4.5, 1.2 + 0.24 * len(order)), sharey=True)
    cosines = table.groupby("row").token_cosine.mean() if "token_cosine" in table else {}
    _intervals(left, values, order)
    left.set_xlabel("top-1, points to softmax, 95 % interval\n(grey: holds zero)")
    for place, row in enumerate(order):
        if row in cosines:
            right.plot(cosines[row], place, "o", color=_CLEAR)
    if PLAIN in cosines:
        right.axvline(cosines[PLAIN], color="black", linewidth=0.8)
    right.set_xlabel("mean cosine of the last layer's tokens\n(line: softmax)")
    for axes in (left, right):
        plain(axes)
    save(figure, directory / "differences.png")


def draw_adaptation(table: pd.DataFrame, directory: Path) -> None:
    """Draw adaptation.png: accuracy before and after the extra steps, and each row's interval."""
    values = table.pivot(index="seed", columns="row", values="top1")
    means = table.groupby("row")[["plain", "start", "top1"]].mean()
    order = values.mean().drop(PLAIN).sort_values().index
    if order.empty:
        return
    figure, (left, right) = panels(2, (4.5, 1.7 + 0.24 * len(order)), sharey=True)
    for place, row in enumerate(order):
        start, end = means.start[row], means.top1[row]
        left.plot([start, end], [place, place], color=_OPEN, linewidth=1, zorder=1)
        left.plot(start, place, "o", color=_START, label="replaced, 0 steps")
        left.plot(end, place, "o", color=_CLEAR, label="trained on")
    left.axvline(means.plain[PLAIN], color="black", linewidth=0.8, label="trained plain")
    left.set_xlabel("top-1 on test images, %")
    legend(figure, "upper center", ncols=3)
    _intervals(right, values, order)
    right.set_xlabel("top-1, points to softmax trained as long,\n95 % interval (grey: holds zero)")
    for axes in (left, right):
        plain(axes)
    save(figure, directory / "adaptation.png")


def _intervals(axes: Axes, values: pd.DataFrame, order: pd.Index) -> None:
    """Mean difference of each row to the plain one, with its interval."""
    for place, row in enumerate(order):
        apart = paired_difference(values[row], values[PLAIN])
        colour = _CLEAR if abs(apart.mean) > apart.half_width else _OPEN
        axes.errorbar(apart.mean, place, xerr=apart.half_width, fmt="o", color=colour, capsize=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), list(order), fontsize=8)
