"""The picture of routers beside clusterings, over depth."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ...figures import panels, plain, save
from .report import agreement, attained, residual

_COLOURS = {
    "k-means": "#0072B2", "k-subspaces": "#009E73", "SSC": "#D55E00", "class": "#CC79A7",
    "position": "#E69F00", "router": "black", "router at start": "#999999",
}  # fmt: skip  # of Okabe and Ito


def draw_routers(table: pd.DataFrame, directory: Path) -> None:
    """Draw routers.png: agreement, attained objectives and load; a line of panels for each row."""
    rows = list(table.row.unique())
    figure, axes = panels(3 * len(rows), (4.6, 4.7), columns=3)
    for place, row in enumerate(rows):
        own = table[table.row == row]
        alike, gained, load = axes[3 * place : 3 * place + 3]
        for name in ("k-means", "k-subspaces", "SSC", "class", "position"):
            _draw(alike, agreement(own, "router", name), f"router, {name}", _COLOURS[name])
        start = agreement(own, "router at start", "k-means")
        _draw(alike, start, "router at start, k-means", _COLOURS["router at start"], "--")
        again = agreement(own, "k-means", "k-means again")
        _draw(alike, again, "k-means, k-means again", _COLOURS["router at start"], ":")
        _label(alike, "NMI, %", f"{row}: agreement")
        for name in ("router", "router at start", "SSC"):
            for problem, style in (("centre", "-"), ("subspace", "--")):
                label = f"{name}, {'k-means' if problem == 'centre' else 'k-subspaces'}"
                _draw(gained, attained(own, name, problem), label, _COLOURS[name], style)
        _label(gained, "share of the solver's gain, %", "objectives attained")
        for name in ("router", "router at start", "k-means", "SSC"):
            _draw(load, residual(own, name, "used"), name, _COLOURS[name])
        _label(load, "clusters used, exp of entropy", "evenness")
        for each in (alike, gained, load):
            each.set_ylim(bottom=0)
    save(figure, directory / "routers.png")


def _draw(axes: Axes, values: pd.DataFrame, label: str, colour: str, style: str = "-") -> None:
    """The mean over seeds, and their range."""
    layers = values.index.to_numpy()
    axes.plot(layers, values.mean(axis=1), style, color=colour, label=label, marker="o", ms=3)
    axes.fill_between(layers, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15)


def _label(axes: Axes, what: str, title: str) -> None:
    axes.set_xlabel("layer (band: range of seeds)")
    axes.set_ylabel(what)
    axes.set_title(title, fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
    axes.legend(fontsize=8, frameon=False, handlelength=3.2, **below)
    plain(axes)
