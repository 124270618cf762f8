"""Figures of motion segmentation: clusters over the points of a frame, and errors by recipe."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown")
_WIDTH = 3.4  # inches of a panel


def draw_motions(table: pd.DataFrame, path: Path) -> None:
    """Points of the first frame, coloured by true and by found motion; wrong ones are circled.

    Image coordinates, y downwards; a column for each sequence, the truth above.
    """
    sequences = list(table.groupby("sequence", sort=False))
    height = max(rows.height.iloc[0] / rows.width.iloc[0] for _, rows in sequences) * _WIDTH
    figure = Figure(figsize=(_WIDTH * len(sequences), 2 * height + 0.9), layout="constrained")
    axes = figure.subplots(2, len(sequences), squeeze=False)
    for (above, below), (name, points) in zip(axes.T, sequences, strict=True):
        wrong = points[points.true != points.found]
        _draw_points(above, points, "true")
        _draw_points(below, points, "found")
        below.scatter(wrong.x, wrong.y, s=40, facecolors="none", edgecolors="black", linewidths=0.7)
        above.set_title(
            f"{name}\n{points.true.nunique()} motions, {len(points)} points", fontsize=9
        )
        share = 100 * len(wrong) / len(points)
        below.set_title(f"{len(wrong)} wrong ({share:.1f} %)", fontsize=9)
    axes[0, 0].set_ylabel("true")
    axes[1, 0].set_ylabel("found (wrong ones circled)")
    figure.savefig(path, dpi=130)


def _draw_points(axes: Axes, points: pd.DataFrame, labels: str) -> None:
    for motion, group in points.groupby(labels):
        colour = _COLOURS[int(motion) % len(_COLOURS)]
        axes.scatter(group.x, group.y, s=9, color=colour, linewidths=0)
    axes.set_xlim(0, points.width.iloc[0])
    axes.set_ylim(points.height.iloc[0], 0)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor("0.96")


def draw_motion_errors(table: pd.DataFrame, path: Path) -> None:
    """Mean error of each recipe over all sequences, on 2 and on 3 motions, the best on top."""
    errors = table.pivot_table(index="recipe", columns="n_motions", values="error", aggfunc="mean")
    order = table.groupby("recipe").error.mean().sort_values().index
    errors, lines = errors.loc[order], np.arange(len(order))
    figure = Figure(figsize=(7, 1.2 + 0.27 * len(order)), layout="constrained")
    axes = figure.subplots()
    for number, marker, colour in ((2, "o", "tab:blue"), (3, "s", "tab:orange")):
        if number in errors:
            label = f"{number} motions"
            axes.scatter(errors[number], lines, marker=marker, color=colour, s=24, label=label)
    total = table.groupby("recipe").error.mean()[order]
    axes.scatter(total, lines, marker="|", color="black", s=120, linewidths=2, label="all")
    for line, value in zip(lines, total, strict=True):
        axes.annotate(
            f"{value:.2f}", (1.0, line), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(lines, order, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    axes.set_xlim(left=0)
    axes.set_xticks([0, 0.5, 1, 2, 5, 10, 20, 40], ["0", "0.5", "1", "2", "5", "10", "20", "40"])
    axes.set_xlabel("mean clustering error in %; at the right over all sequences")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
