"""The picture of `twinsolve classify`: differences to the plain row, and depth."""

from pathlib import Path

import pandas as pd

from ...figures import panels, plain, save
from ..paired import paired_difference
from .study import PLAIN

_CLEAR, _OPEN = "#0072B2", "#999999"  # of Okabe and Ito


def draw_differences(table: pd.DataFrame, directory: Path) -> None:
    """Draw differences.png: points of each row's interval, and its token cosine."""
    values = table.pivot(index="seed", columns="row", values="top1")
    order = values.mean().drop(PLAIN).sort_values().index
    if order.empty:
        return
    figure, (left, right) = panels(2, (4.5, 1.2 + 0.24 * len(order)), sharey=True)
    cosines = table.groupby("row").token_cosine.mean() if "token_cosine" in table else {}
    for place, row in enumerate(order):
        apart = paired_difference(values[row], values[PLAIN])
        colour = _CLEAR if abs(apart.mean) > apart.half_width else _OPEN
        left.errorbar(apart.mean, place, xerr=apart.half_width, fmt="o", color=colour, capsize=2)
        if row in cosines:
            right.plot(cosines[row], place, "o", color=_CLEAR)
    left.axvline(0, color="black", linewidth=0.8)
    left.set_yticks(range(len(order)), list(order), fontsize=8)
    left.set_xlabel("top-1, points to softmax, 95 % interval\n(grey: holds zero)")
    if PLAIN in cosines:
        right.axvline(cosines[PLAIN], color="black", linewidth=0.8)
    right.set_xlabel("mean cosine of the last layer's tokens\n(line: softmax)")
    for axes in (left, right):
        plain(axes)
    save(figure, directory / "differences.png")
