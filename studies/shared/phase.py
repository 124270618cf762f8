"""Where methods break: error over noise, angle, dimension, density and number of subspaces.

Clustering error in % on generated unions of subspaces, unit rows, at default settings unless named,
with plain |C| + |C|^T and k-means. The unrolled layers are trained on the very points of each draw,
without labels, at gamma 50; ISTA is what they begin as. SSC with more penalty is there to tell
learning from regularisation. Angles are in degrees; density is points per dimension.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.preprocessing import normalize

from shared.pictures import draw_heat_maps
from shared.points import prose, run_seeded
from twinsolve import solvers
from twinsolve.bench.clustering.summary import folded, grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.unrolled import clustering

METHODS: dict[str, Callable[..., Any]] = {
    "SSC, gamma 50": solvers.SparseSubspaceClustering,
    "SSC, gamma 5": partial(solvers.SparseSubspaceClustering, gamma=5.0),
    "ISTA, K = 10": partial(clustering.UnrolledSubspaceClustering, n_layers=10, max_iter=0),
    "unrolled, K = 10": partial(clustering.UnrolledSubspaceClustering, n_layers=10),
    "LSR": solvers.LeastSquaresSubspaceClustering,
    "TSC": solvers.ThresholdingSubspaceClustering,
}
Axis = tuple[str, Sequence[float]]
# What is varied downwards and to the right, and what is held.
GRIDS: dict[str, tuple[Axis, Axis, dict[str, Any]]] = {
    "noise-angle": (
        ("noise", (0.0, 0.2, 0.4, 0.6, 0.8)),
        ("angle", (10, 20, 30, 45, 60)),
        {"n_subspaces": 4, "dimension": 4, "n_features": 30, "n_samples": 40},
    ),
    "dimension-density": (
        ("dimension", (2, 4, 6, 8, 10)),
        ("density", (2, 4, 6, 8, 12)),
        {"n_subspaces": 4, "n_features": 20, "noise": 0.5},
    ),
    "number-noise": (
        ("n_subspaces", (2, 4, 6, 8, 10)),
        ("noise", (0.0, 0.3, 0.6, 0.9, 1.2)),
        {"dimension": 4, "n_features": 30, "n_samples": 25},
    ),
}


def phase_study(grids: Sequence[str] = tuple(GRIDS), *, n_draws: int = 3) -> Study:
    """Clustering error of solved and learned methods over grids of generated data.

    Parameters
    ----------
    grids : sequence of str
        Names among `GRIDS`.
    n_draws : int, default=3
        Draws of each cell.
    """
    jobs = [
        {"grid": grid, "down": down, "right": right}
        for grid in grids
        for down, right in product(GRIDS[grid][0][1], GRIDS[grid][1][1])
    ]
    run = run_seeded(cluster_cell, jobs, n_splits=n_draws)
    figures = {f"{grid}.png": partial(_draw, grid=grid) for grid in grids}
    return Study("phase", prose(__doc__), run, phase_lines, figures)


def cluster_cell(*, grid: str, down: float, right: float, seed: int) -> list[dict[str, Any]]:
    """The error of every method on one draw of one cell."""
    (first, _), (second, _), held = GRIDS[grid]
    settings = held | {first: down, second: right}
    if "angle" in settings:
        settings["angle"] = math.radians(settings["angle"])
    X, y = make_union_of_subspaces(random_state=seed, **settings)
    X, n_clusters = normalize(X), settings["n_subspaces"]
    rows = []
    for name, method in METHODS.items():
        labels = method(n_clusters, random_state=seed).fit_predict(X)
        error = 100 * (1 - solvers.clustering_accuracy(y, labels))
        about = {"grid": grid, "down_name": first, "down": down, "right_name": second}
        rows.append({**about, "right": right, "seed": seed, "method": name, "error": error})
    return rows


def phase_lines(table: pd.DataFrame) -> Lines:
    """Of each grid and method: the mean error, and in how many cells it stays under 5 %."""
    cells = table.groupby(["grid", "method", "down", "right"], sort=False).error.mean()
    return grouped_lines(
        cells.reset_index(),
        ["grid", "method"],
        {
            "grid": "grid",
            "method": "method",
            "mean error, %": folded("error", "mean", ".1f"),
            "cells under 5 %": lambda rows: str((rows.error < 5).sum()),
            "cells": lambda rows: str(len(rows)),
        },
    )


def _draw(table: pd.DataFrame, path: Path, *, grid: str) -> None:
    rows = table[table.grid == grid]
    first = rows.iloc[0]
    words = (_WORDS[first.right_name], _WORDS[first.down_name])
    draw_heat_maps(rows, path, x="right", y="down", words=words)


_WORDS = {
    "angle": "angle between subspaces, degrees",
    "density": "points per dimension",
    "dimension": "dimension of each subspace",
    "n_subspaces": "number of subspaces",
    "noise": "noise-to-signal ratio",
}
