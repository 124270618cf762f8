"""Figures of clusters, of coefficients and of affinities."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import SymmetricalLogLocator
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from ..figures import legend, panels, plain, save

_QUANTILE = 0.99  # of the sizes, where the colour scale ends


def plot_matrix(axes: Axes, matrix: Any, labels: ArrayLike | None = None) -> None:
    """Draw the sizes of coefficients or of an affinity, points sorted by their labels.

    Lines stand between the labels; the colours end at the 99 % quantile of what is not zero.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    matrix : array-like or sparse array of shape (n_samples, n_samples)
    labels : array-like of shape (n_samples,), optional
        None leaves the points in their order.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from twinsolve.bench.clustering.figures import plot_matrix
    >>> axes = Figure().subplots()
    >>> plot_matrix(axes, np.eye(4), [0, 1, 0, 1])
    >>> len(axes.images)
    1
    """
    size = np.abs(matrix.toarray() if issparse(matrix) else np.asarray(matrix))
    if labels is not None:
        order = np.argsort(labels, kind="stable")
        size = size[np.ix_(order, order)]
        for edge in np.flatnonzero(np.diff(np.asarray(labels)[order])) + 0.5:
            axes.axhline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
            axes.axvline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
    on = size[size > 0]
    scale = np.quantile(on, _QUANTILE) if len(on) else 1.0
    axes.imshow(size / scale, vmin=0, vmax=1, cmap="magma_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def draw_matrices(
    matrices: dict[str, tuple[Any, Any]], labels: ArrayLike, path: Path, title: str
) -> None:
    """Draw the coefficients of each method above the affinity that its steps made of them."""
    n = len(matrices)
    figure, axes = panels(2 * n, (3.2, 3.4), columns=n)
    for i, (name, pair) in enumerate(matrices.items()):
        for ax, matrix in zip(axes[[i, n + i]], pair, strict=True):
            plot_matrix(ax, matrix, labels)
        axes[i].set_title(name, fontsize=9)
    axes[0].set_ylabel("coefficients |C|")
    axes[n].set_ylabel("affinity")
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def draw_errors(table: pd.DataFrame, path: Path) -> None:
    """Error of each method with its spread over seeds, a panel for each data set and features."""
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    if chosen.empty:  # no labels to judge by, or nothing but failures
        return
    cases = ["data", "features", "method", "steps", "fit_seed", "seed"]
    means = chosen.groupby(cases, sort=False).accuracy.mean().reset_index()
    means = means.assign(panel=means.data + "\n" + means.features, error=100 * (1 - means.accuracy))
    draw_dots(means, path, value="error", words="error in %, mean and std over seeds")


def draw_dots(
    table: pd.DataFrame,
    path: Path,
    *,
    value: str,
    words: str,
    row: str = "method",
    series: str = "steps",
    scale: str = "linear",
) -> None:
    """Means of a value with their deviations: a row, a colour for each of a series, a panel."""
    cases = list(table.groupby("panel", sort=False))
    rows, colours = list(dict.fromkeys(table[row])), list(dict.fromkeys(table[series]))
    figure, axes = panels(len(cases), (5, 0.3 * len(rows) + 2), margin=2, sharey=True)
    for ax, (title, case) in zip(axes, cases, strict=True):
        for name, group in case.groupby(series, sort=False):
            values = group.groupby(row)[value]
            shift = 0.08 * (colours.index(name) - len(colours) / 2)
            ax.errorbar(
                values.mean(),
                np.array([rows.index(found) for found in values.groups]) + shift,
                xerr=values.std(ddof=0),
                fmt="o",
                markersize=3,
                color=f"C{colours.index(name) % 10}",
                label=name,
            )
        ax.set_title(title, fontsize=8)
        ax.set_xlabel(words)
        ax.set_xscale(scale)
        if scale == "symlog":
            ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        plain(ax)
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    legend(figure, "right upper", fontsize=8)
    save(figure, path)
