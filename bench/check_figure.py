"""Picture of the check: how far every row stays under its tolerance."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

_MARKERS = {"clustering": "o", "vision": "s"}
_COLOURS = {"float64": "tab:blue", "float32": "tab:orange"}


def draw_deviations(table: pd.DataFrame, path: Path) -> None:
    """Draw ``deviation / tolerance`` of every row on a logarithmic axis, a line a twin."""
    twins = list(dict.fromkeys(table.twin))
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(twins)), layout="constrained")
    axes = figure.add_subplot()
    for (task, dtype), rows in table.groupby(["task", "dtype"]):
        ratio = (rows.deviation / rows.tolerance).fillna(np.inf).clip(lower=1e-8, upper=15)
        height = [twins.index(twin) for twin in rows.twin]
        shift = 0.15 if dtype == "float64" else -0.15
        axes.scatter(
            ratio,
            np.array(height) + shift,
            marker=_MARKERS[task],
            color=_COLOURS[dtype],
            alpha=0.6,
            s=22,
            linewidths=0,
            label=f"{task}, {dtype}",
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.axvspan(1, 20, color="tab:red", alpha=0.08)
    axes.text(4.5, len(twins) / 2, "fails", ha="center", va="center", rotation=90, color="tab:red")
    axes.set_xscale("log")
    axes.set_xlabel("deviation / tolerance")
    axes.set_yticks(range(len(twins)), twins)
    axes.invert_yaxis()
    axes.set_xlim(5e-9, 20)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
