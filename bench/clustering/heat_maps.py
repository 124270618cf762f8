"""Pictures of phase transitions: a heat map of the error for each method, on one scale."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_HIGHEST = 80.0  # % at the end of the colour scale
_COLUMNS = 3
_WORDS = {
    "angle": "angle between subspaces, degrees",
    "density": "points per dimension",
    "dimension": "dimension of each subspace",
    "n_subspaces": "number of subspaces",
    "noise": "noise-to-signal ratio",
}


def draw_heat_maps(table: pd.DataFrame, path: Path, *, grid: str) -> None:
    """Draw the mean error over draws; its number stands in each cell."""
    rows = table[table.grid == grid]
    methods = list(dict.fromkeys(rows.method))
    columns = min(_COLUMNS, len(methods))
    n_rows = -(-len(methods) // columns)
    figure = Figure(figsize=(3 * columns + 1.1, 3 * n_rows + 0.4), layout="constrained")
    grid_of_axes = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid_of_axes.ravel()[len(methods) :]:
        axes.set_visible(False)
    for axes, method in zip(grid_of_axes.ravel(), methods, strict=False):
        errors = rows[rows.method == method].pivot_table(
            index="down", columns="right", values="error", aggfunc="mean"
        )
        image = axes.imshow(errors, vmin=0, vmax=_HIGHEST, cmap="viridis", origin="lower")
        _number(axes, errors)
        axes.set_title(method, fontsize=10)
        axes.set_xticks(range(errors.shape[1]), [f"{value:g}" for value in errors.columns])
        axes.set_yticks(range(errors.shape[0]), [f"{value:g}" for value in errors.index])
    figure.supylabel(_WORDS[rows.down_name.iloc[0]], fontsize=10)
    figure.supxlabel(_WORDS[rows.right_name.iloc[0]], fontsize=10)
    figure.colorbar(image, ax=grid_of_axes, label="clustering error, %", extend="max", shrink=0.7)
    figure.savefig(path, dpi=150)


def _number(axes: Axes, errors: pd.DataFrame) -> None:
    for (i, j), value in pd.Series(errors.stack().to_numpy(), _places(errors)).items():
        dark = value < _HIGHEST / 2
        axes.text(
            j, i, f"{value:.0f}", ha="center", va="center", fontsize=8,
            color="white" if dark else "black",
        )  # fmt: skip


def _places(errors: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_product([range(size) for size in errors.shape])
