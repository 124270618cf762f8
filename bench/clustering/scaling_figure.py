"""Picture of time against the number of points, on logarithmic axes."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

_UNIT = "SSC, certified"
_STYLES = {
    _UNIT: ("black", "o-"),
    "OMP, 5 non-zeros": ("tab:blue", "o-"),
    "LSR, closed form": ("tab:cyan", "o-"),
    "unrolled, K = 10": ("tab:red", "s-"),
    "5-NN graph": ("tab:green", "o-"),
    "spectral step": ("0.5", "o--"),
}


def draw_scaling(table: pd.DataFrame, path: Path) -> None:
    """Draw medians; learned layers as squares, the spectral step dashed."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    smallest = table.n_points.min()
    unit = table[(table.method == _UNIT) & (table.n_points == smallest)].seconds.iloc[0]
    for method, rows in table.groupby("method", sort=False):
        colour, style = _STYLES[str(method)]
        axes.plot(
            rows.n_points, rows.seconds / unit, style, color=colour, markersize=5, label=str(method)
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted(table.n_points.unique())
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("points N")
    axes.set_ylabel(f"time of all points, one thread,\nover {_UNIT}, at N = {smallest:,}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    figure.savefig(path, dpi=150)
