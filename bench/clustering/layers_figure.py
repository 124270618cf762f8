"""Pictures of the learned-against-solved study: gaps by layers, and by time per point."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from .coders import LEARNED, ONE_CALL, REFERENCE
from .splits import shown

_LOWEST, _HIGHEST = 1e-9, 1.0  # gaps outside stand at the edges
_COLOURS = {
    "ISTA": "0.55",
    "FISTA": "0.3",
    "support-adaptive ISTA": "tab:blue",
    "learned steps": "tab:red",
    "learned steps, on D alone": "tab:pink",
    "learned W (coupled)": "tab:orange",
    "learned U, V (adaptive)": "tab:green",
    "learned B, M (LISTA)": "tab:purple",
    REFERENCE: "black",
    ONE_CALL: "black",
}


def draw_gaps(table: pd.DataFrame, path: Path) -> None:
    """Draw the mean gap against the number of layers, a panel a data set."""
    figure, panels = _panels(table)
    for axes, (_, case) in panels:
        for method, runs in case[case.n_iter.notna()].groupby("method", sort=False):
            _line(axes, runs.n_iter, runs, str(method))
        ks = sorted(case.n_iter.dropna().unique())
        axes.set_xscale("log")
        axes.set_xticks(ks, [f"{k:.0f}" for k in ks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("layers K")
    _finish(figure, path)


def draw_times(table: pd.DataFrame, path: Path) -> None:
    """Draw the mean gap against the time per point in batches, the certified solver among them."""
    figure, panels = _panels(table)
    for axes, (_, case) in panels:
        for method, runs in case.groupby("method", sort=False):
            if method != ONE_CALL:
                _line(axes, runs.ratio_batch, runs, str(method))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("time a point in batches / certified at 1e-6")
    _finish(figure, path)


def _panels(table: pd.DataFrame) -> tuple[Figure, list]:
    cases = list(table.groupby(["data", "gamma"], sort=False))
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(4.1 * columns, 3.1 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(cases) :]:
        axes.set_visible(False)
    for i, (axes, ((data, gamma), _)) in enumerate(zip(grid, cases, strict=False)):
        axes.set_title(f"{shown(str(data))}, gamma {gamma:g}", loc="left", fontsize=10)
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if i % columns == 0:
            axes.set_ylabel("mean gap (F - F*) / |x|²")
    return figure, list(zip(grid, cases, strict=False))


def _line(axes: Axes, x: pd.Series, runs: pd.DataFrame, method: str) -> None:
    axes.plot(
        x,
        runs.gap.clip(_LOWEST, _HIGHEST),
        color=_COLOURS[method],
        marker="s" if method in LEARNED else "o",
        linestyle="-" if method in LEARNED or method == REFERENCE else "--",
        markersize=4,
        linewidth=2.2 if method == REFERENCE else 1.4,
        label=method,
    )


def _finish(figure: Figure, path: Path) -> None:
    handles = {
        text: line
        for axes in figure.axes
        for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    note = f"Squares: learned. Gaps outside {_LOWEST:g} to {_HIGHEST:g} are drawn there."
    figure.supxlabel(note, fontsize=8, color="0.3")
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=4, fontsize=9, frameon=False
    )
    figure.savefig(path, dpi=150)
