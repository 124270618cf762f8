"""Picture of the check: how far every row stays under its tolerance."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .lines import share

_MARKERS = {"clustering": "o", "vision": "s", "laws": "|"}
_COLOURS = {"float64": "tab:blue", "float32": "tab:orange", "bfloat16": "tab:green"}
_SHIFTS = {"float64": 0.15, "float32": -0.15, "bfloat16": 0.0}
_LONGEST = 40  # lines of a panel


def draw_deviations(table: pd.DataFrame, path: Path) -> None:
    """Draw ``deviation / tolerance`` of every row on a logarithmic axis, a line a twin.

    Twins stand by families; many of them fill two panels.
    """
    panels = list(_panels(table))
    longest = max(panel.twin.nunique() + panel.family.nunique() for panel in panels)
    figure = Figure(figsize=(7 * len(panels), 1.2 + 0.19 * longest), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, ax in zip(panels, axes, strict=True):
        _draw_panel(panel, ax, longest)
    handles = {
        text: dot for ax in axes for dot, text in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=4, fontsize=9, frameon=False
    )
    figure.savefig(path, dpi=130)


def _panels(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Whole families; those that begin in the second half of all lines go to the second panel."""
    sizes = table.groupby("family").twin.nunique() + 1
    second = (sizes.cumsum() - sizes / 2 > sizes.sum() / 2) & (sizes.sum() > _LONGEST)
    for chosen in (~second, second):
        if chosen.any():
            yield table[table.family.isin(sizes.index[chosen])]


def _draw_panel(table: pd.DataFrame, axes: Axes, n_lines: int) -> None:
    lines: dict[str, int] = {}
    place = 0
    for family, rows in table.groupby("family"):
        label = str(family).replace("_", " ")
        axes.text(6e-9, place, label, va="center", fontsize=8, weight="bold", color="0.3")
        axes.axhline(place - 0.5, color="0.8", linewidth=0.8)
        for twin in dict.fromkeys(rows.twin):
            place += 1
            lines[twin] = place
        place += 1
    for (task, dtype), rows in table.groupby([table.task.fillna("laws"), "dtype"]):
        axes.scatter(
            share(rows).clip(lower=1e-8, upper=15),
            np.array([lines[twin] for twin in rows.twin]) + _SHIFTS[dtype],
            marker=_MARKERS[task],
            color=_COLOURS[dtype],
            alpha=0.6,
            s=14,
            linewidths=1 if task == "laws" else 0,
            label=f"{task}, {dtype}",
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.axvspan(1, 20, color="tab:red", alpha=0.08)
    axes.text(4.5, n_lines / 2, "fails", ha="center", va="center", rotation=90, color="tab:red")
    axes.set_xscale("log")
    axes.set_xlabel("deviation / tolerance (0 stands at the left)")
    axes.set_yticks(list(lines.values()), list(lines), fontsize=7)
    axes.set_ylim(n_lines - 0.5, -0.5)
    axes.set_xlim(5e-9, 20)
    axes.grid(axis="x", alpha=0.3)
