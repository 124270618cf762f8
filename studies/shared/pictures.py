"""Pictures of the studies: lines, dots, heat maps, matrices and points of a frame."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from twinsolve.bench.clustering.figures import describe_data, plot_matrix
from twinsolve.bench.figures import legend, log_ticks, panels, plain, save

_LEARNED = re.compile("learned|unrolled|SENet")  # drawn as squares
_WIDTH = 36  # of a panel's title
_HIGHEST = 80.0  # % of error at the end of the colour scale
# Of methods, in every figure; others by their order.
_COLOURS = {
    "ISTA": "0.55",
    "FISTA": "0.3",
    "support-adaptive ISTA": "tab:blue",
    "learned steps": "tab:red",
    "learned steps, on D alone": "tab:pink",
    "learned W (coupled)": "tab:orange",
    "learned U, V (adaptive)": "tab:green",
    "learned B, M (LISTA)": "tab:purple",
    "OMP, 5 non-zeros": "tab:blue",
    "LSR, closed form": "tab:cyan",
    "5-NN graph": "tab:green",
    "spectral step": "0.5",
    "EnSC": "0.45",
    "EnSC, solved": "0.45",
    "3-NN of raw points": "tab:green",
    "OMP": "tab:blue",
    "LSR": "tab:cyan",
    "LRSC": "tab:olive",
    "TSC": "tab:brown",
    "unrolled, K = 10": "tab:red",
    "SENet": "tab:orange",
}


def draw_lines(
    table: pd.DataFrame,
    path: Path,
    *,
    x: str,
    y: str,
    words: tuple[str, str],
    reference: str,
    steps: Sequence[str] = (),
    panel: Sequence[str] = ("data",),
    scale: str = "log",
    hollow: str | None = None,
    note: str = "Squares: learned.",
) -> None:
    """Mean of y, with its deviation, against the median of x: a line a method, a point a step.

    The reference is black; `hollow` is a second column drawn hollow at the same x.
    """
    methods = list(dict.fromkeys(table.method))
    cases = list(table.dropna(subset=[x]).groupby(list(panel), sort=False))
    figure, every = panels(len(cases), (4.1, 3.6), columns=3, margin=2.2)
    for axes, (key, case) in zip(every, cases, strict=True):
        for method, runs in case.groupby("method", sort=False):
            points = runs.groupby([*steps] or "method", sort=False, dropna=False)
            at, mean = points[x].median(), points[y].mean()
            learned = _LEARNED.search(str(method))
            style: dict[str, Any] = {
                "color": "black" if method == reference else _colour(method, methods),
                "marker": "s" if learned else "o",
                "linestyle": "-" if learned or method == reference else "--",
                "markersize": 5,
            }
            axes.errorbar(at, mean, points[y].std(ddof=0), capsize=3, label=str(method), **style)
            if hollow:
                axes.plot(at, points[hollow].mean(), markerfacecolor="none", **style)
        log_ticks(axes, "x", sorted(case[x].unique()) if x in steps else None)
        if x not in steps:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.set_yscale(scale)
        axes.set_title("\n".join(map(_titled, panel, key)), loc="left", fontsize=10)
        axes.set_xlabel(words[0])
        plain(axes)
    every[0].set_ylabel(words[1])
    legend(figure, "right upper")
    figure.supxlabel(note, fontsize=8, color="0.3")
    save(figure, path)


def _colour(method: str, methods: list[str]) -> str:
    return _COLOURS.get(method, f"C{methods.index(method) % 10}")


def _titled(name: str, value: object) -> str:
    return (
        describe_data(str(value), _WIDTH)
        if name == "data"
        else f"{name.replace('_', ' ')} {value:g}"
    )


def draw_heat_maps(
    table: pd.DataFrame, path: Path, *, x: str, y: str, words: tuple[str, str]
) -> None:
    """Draw the mean error over draws, a panel a method; its number stands in each cell."""
    methods = list(dict.fromkeys(table.method))
    figure, every = panels(len(methods), (3, 3.2), columns=3, margin=1.1, sharex=True, sharey=True)
    for axes, method in zip(every, methods, strict=True):
        rows = table[table.method == method]
        errors = rows.pivot_table(index=y, columns=x, values="error", aggfunc="mean")
        image = axes.imshow(errors, vmin=0, vmax=_HIGHEST, cmap="viridis", origin="lower")
        for (i, j), value in np.ndenumerate(errors.to_numpy()):
            colour = "white" if value < _HIGHEST / 2 else "black"
            axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(method, fontsize=10)
        axes.set_xticks(range(errors.shape[1]), [f"{value:g}" for value in errors.columns])
        axes.set_yticks(range(errors.shape[0]), [f"{value:g}" for value in errors.index])
    figure.supxlabel(words[0], fontsize=10)
    figure.supylabel(words[1], fontsize=10)
    figure.colorbar(image, ax=every, label="clustering error, %", extend="max", shrink=0.7)
    save(figure, path)


def draw_coefficients(table: pd.DataFrame, path: Path) -> None:
    """Draw the sizes of the coefficients, a row a data set, a column a method."""
    cases = list(table.groupby(["data", "method"], sort=False))
    columns = table.method.nunique()
    figure, every = panels(len(cases), (3.1, 3.15), columns=columns, margin=0.5)
    for place, (axes, ((data, method), rows)) in enumerate(zip(every, cases, strict=True)):
        plot_matrix(axes, rows.coefficients.tolist(), rows.label)
        first = rows.iloc[0]
        shares = f"{first.nonzeros:.0f} a row, {first.preserving_error:.0f} % on other classes"
        axes.set_title(f"{method}\n{shares}", fontsize=9)
        if place % columns == 0:
            axes.set_ylabel(f"{describe_data(data)}\npoints, sorted by class", fontsize=10)
    bar = figure.colorbar(every[0].images[0], ax=every, shrink=0.8, pad=0.02, ticks=[0, 1])
    bar.set_label("|c| / the panel's 99 % quantile", fontsize=9)
    save(figure, path)


def draw_motions(table: pd.DataFrame, path: Path) -> None:
    """Points of the first frame, coloured by true and by found motion; wrong ones are circled.

    Image coordinates, y downwards; a column for each sequence, the truth above.
    """
    sequences = list(table.groupby("sequence", sort=False))
    height = max(table.height / table.width) * 3.4
    n = len(sequences)
    figure, axes = panels(2 * n, (3.4, height + 0.45), columns=n)
    for above, below, (name, points) in zip(axes[:n], axes[n:], sequences, strict=True):
        wrong = points[points.true != points.found]
        _draw_points(above, points, points.true)
        _draw_points(below, points, points.found)
        below.scatter(wrong.x, wrong.y, s=40, facecolors="none", edgecolors="black", linewidths=0.7)
        of = f"{points.true.nunique()} motions, {len(points)} points"
        above.set_title(f"{name}\n{of}", fontsize=9)
        share = 100 * len(wrong) / len(points)
        below.set_title(f"{len(wrong)} wrong ({share:.1f} %)", fontsize=9)
    axes[0].set_ylabel("true")
    axes[n].set_ylabel("found (wrong ones circled)")
    save(figure, path)


def _draw_points(axes: Axes, points: pd.DataFrame, motion: pd.Series) -> None:
    axes.scatter(points.x, points.y, c=motion, cmap="tab10", vmin=0, vmax=9, s=9, linewidths=0)
    axes.set(xlim=(0, points.width.iloc[0]), ylim=(points.height.iloc[0], 0), aspect="equal")
    axes.set(xticks=[], yticks=[], facecolor="0.96")
