"""Picture of the check: how far every row stays under its tolerance."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from ..figures import legend, panels, plain, save
from .lines import share

_MARKERS = {"clustering": "o", "vision": "s", "laws": "|"}
_COLOURS = {
    "float64": "tab:blue", "float32": "tab:orange", "bfloat16": "tab:green", "float16": "tab:red",
}  # fmt: skip
_SHIFTS = {"float64": 0.2, "float32": -0.2, "bfloat16": 0.0, "float16": 0.1}
_LONGEST = 40  # lines of a panel


def draw_deviations(table: pd.DataFrame, path: Path) -> None:
    """Draw ``deviation / tolerance`` of every row on a logarithmic axis, a line a twin.

    Twins stand by families, each whole in one of two panels if there are many.
    """
    sizes = table.groupby("family").twin.nunique() + 1
    second = (sizes.cumsum() - sizes / 2 > sizes.sum() / 2) & (sizes.sum() > _LONGEST)
    parts = [part for _, part in table.groupby(table.family.map(second))]
    longest = sizes.groupby(second).sum().max()
    figure, all_axes = panels(len(parts), (7, 1.2 + 0.19 * longest))
    for part, axes in zip(parts, all_axes, strict=True):
        _draw_panel(part, axes, longest)
    legend(figure, "upper center", ncols=4)
    save(figure, path)


def _draw_panel(table: pd.DataFrame, axes: Axes, n_lines: int) -> None:
    names: list[str] = []
    for family, rows in table.groupby("family"):
        axes.axhline(len(names) - 0.5, color="0.8", linewidth=0.8)
        names += [f"{str(family).replace('_', ' ').upper()}:", *rows.twin.unique()]
    places = {name: place for place, name in enumerate(names)}
    for (task, dtype), rows in table.groupby([table.task.fillna("laws"), "dtype"]):
        axes.scatter(
            share(rows).clip(lower=1e-8, upper=15),
            rows.twin.map(places) + _SHIFTS[dtype],
            marker=_MARKERS[task],
            color=_COLOURS[dtype],
            alpha=0.6,
            s=14,
            linewidths=1 if task == "laws" else 0,
            label=f"{task}, {dtype}",
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.axvspan(1, 20, color="tab:red", alpha=0.08)
    axes.set_xscale("log")
    axes.set_xlabel("deviation / tolerance (0 stands at the left, what fails in the red)")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlim=(5e-9, 20), ylim=(n_lines - 0.5, -0.5))
    plain(axes, "x")
