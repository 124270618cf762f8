"""Figures of `twinsolve cluster`: coefficients, affinities, and errors by method and step."""

from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import SymmetricalLogLocator
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from ..figures import legend, panels, plain, save
from ..names import split_settings
from .data import DATA
from .steps import without_cut

_QUANTILE = 0.99  # of the sizes, as the end of the colour scale
_WIDTH = 44  # characters in a line of a panel's title
# By the first step of a chain; chains with the same first step get different markers.
_COLOURS = {
    "symmetrize": "tab:blue",
    "keep-mass": "tab:orange",
    "unit-rows": "tab:green",
    "low-rank": "tab:red",
    "svd-power": "tab:purple",
    "softmax-rows": "tab:brown",
    "keep-largest": "tab:pink",
    "nearest-rows": "tab:cyan",
    "scale-rows": "tab:olive",
    "low-rank-transposed": "darkred",
    "softmax-signed-rows": "goldenrod",
    "own affinity": "black",
    "none": "0.5",
}
_MARKERS = "osD^vP"
_NO_CHAIN = {"own affinity": "affinity of the method itself", "none": "clusters without affinity"}
_OF_FILES = ("data_key", "target_key", "transpose", "sep", "decimal", "n_clusters")
_SETTINGS = {
    "n_points": "{:,} points",
    "n_samples": "{} points each",
    "n_subspaces": "{} subspaces",
    "n_manifolds": "{} manifolds",
    "n_features": "{} features",
    "affine": "affine",
}


def describe_data(data: str, width: int = _WIDTH) -> str:
    """A data set in words, in lines of at most `width` characters.

    Examples
    --------
    >>> from twinsolve.bench.clustering.figures import describe_data
    >>> describe_data("mine.mat:transpose=True"), describe_data("digits:n_points=500")
    ('mine.mat', 'Digits of scikit-learn, 500 points')
    """
    base, settings = split_settings(data, "data")
    name = Path(base).name
    if base in DATA:
        name = DATA[base].about.partition(",")[0]
        name = name[0].upper() + name[1:]
    words = [
        _SETTINGS.get(key, key.replace("_", " ") + " {}").format(value)
        for key, value in settings.items()
        if key not in _OF_FILES and value is not False
    ]
    return "\n".join(wrap(", ".join([name, *words]), width))


def describe_features(name: str) -> str:
    """Features in words."""
    rest = name.removeprefix("unit").removeprefix("-") or "raw"
    kind, _, size = rest.rpartition("-") if "-" in rest else (rest, "", "")
    words = {
        "raw": "",
        "2F": "",
        "2F+1": "a constant 1 appended",
        "4n": "four coordinates a cluster",
        "pca": "principal coordinates",
        "fourier": "Fourier coordinates",
        "scattering": "scattering coordinates",
        "relative-scattering": "coordinates of scattering maps relative to their maxima",
    }
    parts = [f"{size} {words.get(kind, kind)}".strip(), "unit norm" * name.startswith("unit")]
    return ", ".join(filter(None, parts)) or "points as they are"


def plot_matrix(axes: Axes, matrix: Any, labels: ArrayLike | None = None) -> None:
    """Draw absolute coefficients or an affinity, with points sorted by their labels.

    Lines separate the labels. White is the smallest value; the colours end at the 99 % quantile of
    larger values.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    matrix : array-like or sparse array of shape (n_samples, n_samples)
    labels : array-like of shape (n_samples,), optional
        None keeps the order of the points.

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
    size = size - size.min()
    on = size[size > 0]
    scale = np.quantile(on, _QUANTILE) if len(on) else 1.0
    axes.imshow(size / scale, vmin=0, vmax=1, cmap="bone_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def draw_matrices(
    matrices: dict[str, tuple[Any, Any]], labels: ArrayLike, path: Path, title: str
) -> None:
    """Draw the coefficients of each method above the affinity of its steps."""
    n = len(matrices)
    figure, axes = panels(2 * n, (3.2, 3.4), columns=n)
    for i, (name, pair) in enumerate(matrices.items()):
        for ax, matrix in zip(axes[[i, n + i]], pair, strict=True):
            plot_matrix(ax, matrix, labels)
        axes[i].set_title(name, fontsize=9, wrap=True)
    axes[0].set_ylabel("sizes of coefficients")
    axes[n].set_ylabel("affinity")
    figure.suptitle(title, fontsize=10, wrap=True)
    save(figure, path)


def draw_errors(table: pd.DataFrame, path: Path) -> None:
    """Draw errors of methods with deviations over seeds, one panel per data set and features."""
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    if chosen.empty:  # without labels, or if all methods failed
        return
    cases = ["data", "features", "method", "steps", "fit_seed", "seed"]
    means = chosen.groupby(cases, sort=False).accuracy.mean().reset_index()
    titles = means.data.map(describe_data) + "\n" + means.features.map(describe_features)
    means = means.assign(panel=titles, error=100 * (1 - means.accuracy))
    words = "clustering error in %: mean and deviation over seeds"
    draw_dots(means, path, value="error", words=words, title="affinity steps")


def draw_dots(
    table: pd.DataFrame,
    path: Path,
    *,
    value: str,
    words: str,
    row: str = "method",
    series: str = "steps",
    scale: str = "linear",
    title: str | None = None,
    note: str = "",
) -> None:
    """Draw means and deviations of a value by row, with colours by series, in panels."""
    cases = list(table.groupby("panel", sort=False))
    rows, every = list(dict.fromkeys(table[row])), list(dict.fromkeys(table[series]))
    apart = min(0.08, 0.8 / len(every))
    figure, axes = panels(len(cases), (5, 0.3 * len(rows) + 2), margin=2, sharey=True)
    for ax, (heading, case) in zip(axes, cases, strict=True):
        for name, group in case.groupby(series, sort=False):
            values = group.groupby(row)[value]
            shift = 0 if name in _NO_CHAIN else apart * (every.index(name) - len(every) / 2)
            ax.errorbar(
                values.mean(),
                np.array([rows.index(found) for found in values.groups]) + shift,
                xerr=values.std(ddof=0),
                markersize=3,
                label=_NO_CHAIN.get(str(name), name),
                **_choose_look(str(name), every),
            )
        ax.set_title(heading, fontsize=9)
        ax.set_xlabel(words)
        ax.set_xscale(scale)
        if scale == "linear" and ax.get_xlim()[0] < 0:  # no percents below 0
            right = max(1.0, ax.get_xlim()[1])
            ax.set_xlim(-0.02 * right, right)
        if scale == "symlog":
            ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        plain(ax)
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    legend(figure, "right upper", fontsize=8, title=title)
    figure.supxlabel(note, fontsize=8, color="0.3")
    save(figure, path)


def _choose_look(name: str, every: list[str]) -> dict[str, str]:
    """Colour by the first step of a chain, and marker among chains with that first step."""
    if _first_step(name) not in _COLOURS:
        return {"fmt": "o", "color": f"C{every.index(name) % 10}"}
    alike = [other for other in every if _first_step(other) == _first_step(name)]
    return {
        "fmt": _MARKERS[alike.index(name) % len(_MARKERS)],
        "color": _COLOURS[_first_step(name)],
    }


def _first_step(chain: str) -> str:
    steps = without_cut(chain)
    return steps if steps in _NO_CHAIN else steps.partition(",")[0].split()[0]
