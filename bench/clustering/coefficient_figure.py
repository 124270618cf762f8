"""Coefficient matrices sorted by class, solved beside learned."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.sparse import csr_array

from ...solvers import sparse_self_expression
from ...solvers.metrics import subspace_preserving_error
from ...solvers.sparse_coding import lam_max, lasso_objective
from ...unrolled.clustering import (
    SelfExpressiveSubspaceClustering,
    UnrolledSubspaceClustering,
)
from .splits import NOISY, at_hand, contents, shown, shuffled_points
from .study import Options, Study, run_jobs

Array = np.ndarray

_N_CLASSES, _A_CLASS = 5, 24
_GAMMA = 200.0
_QUANTILE = 0.99  # of the sizes, where the colour scale of a panel ends


def coefficient_study(
    data: Sequence[str] = (NOISY, "digits", "yaleb-10"), *, max_iter: int = 1000
) -> Study:
    """Pictures of coefficients: two learned methods, each beside the problem that it approaches.

    Parameters
    ----------
    data : sequence of str
        Names as `make_problem` knows them; those whose files are missing are left out.
    max_iter : int, default=1000
        Training steps of the self-expressive network; the unrolled layers take a fifth.
    """

    def run(options: Options) -> pd.DataFrame:
        jobs = [
            {
                "data": name,
                "max_iter": max_iter,
                "seed": options.seed,
                "data_home": options.data_home,
            }
            for name in at_hand(data, options.data_home)
        ]
        content = contents(data, options.data_home)
        return run_jobs(sorted_coefficients, jobs, options, content=content)

    about = (
        "Points of five classes, 24 each. Lasso at the penalty that makes a point's code zero, "
        "over 50, solved and by 10 unrolled layers; the elastic net at 2/200, solved and by a "
        "self-expressive network. Learned ones are trained on these points. A row of the table is "
        "a row of a matrix."
    )
    return Study(
        "coefficients", about, run, coefficient_lines, {"coefficients.png": draw_coefficients}
    )


def sorted_coefficients(
    *, data: str, max_iter: int, seed: int, data_home: str | None
) -> list[dict[str, Any]]:
    """A row for each method and point, the points sorted by class."""
    X, y = shuffled_points(data, seed=seed, data_home=data_home)
    rows = np.concatenate([np.flatnonzero(y == label)[:_A_CLASS] for label in range(_N_CLASSES)])
    X, y = X[rows], y[rows]
    found: list[dict[str, Any]] = []
    for problem, methods in _matrices(X, max_iter, seed):
        best = lasso_objective(X, X, methods[0][1], **problem).mean()
        for name, coef in methods:
            C = csr_array(coef).toarray()
            about = {
                "data": data,
                "method": name,
                "objective_ratio": float(lasso_objective(X, X, C, **problem).mean() / best),
                "nonzeros": float((C != 0).sum(axis=1).mean()),
                "preserving_error": 100 * subspace_preserving_error(C, y),
            }
            found += [
                about | {"label": int(label), "coefficients": [float(f"{c:.3g}") for c in row]}
                for label, row in zip(y, C, strict=True)
            ]
    return found


def _matrices(X: Array, max_iter: int, seed: int) -> list[tuple[dict[str, Any], list]]:
    """Of each problem its penalty, and coefficients by name, the solved ones first."""
    unrolled = UnrolledSubspaceClustering(_N_CLASSES, max_iter=max_iter // 5, random_state=seed)
    network = SelfExpressiveSubspaceClustering(
        _N_CLASSES, gamma=_GAMMA, max_iter=max_iter, random_state=seed
    )
    lasso: dict[str, Any] = {"lam": lam_max(X, X, zero_diagonal=True) / unrolled.gamma}
    net: dict[str, Any] = {"lam": 2 / _GAMMA, "l1_ratio": network.l1_ratio}
    return [
        (
            lasso,
            [
                ("Lasso, solved", sparse_self_expression(X, **lasso).coef),
                ("unrolled, K = 10, learned", unrolled.fit(X).coef_),
            ],
        ),
        (
            net,
            [
                ("elastic net, solved", sparse_self_expression(X, **net).coef),
                ("SENet, learned", network.fit(X).coef_),
            ],
        ),
    ]


def coefficient_lines(table: pd.DataFrame) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line a matrix."""
    headings = ("data", "method", "objective / optimum", "non-zeros a row", "ME-2, %")
    return headings, [
        (
            str(data),
            str(method),
            f"{rows.objective_ratio.iloc[0]:.3f}",
            f"{rows.nonzeros.iloc[0]:.1f}",
            f"{rows.preserving_error.iloc[0]:.1f}",
        )
        for (data, method), rows in table.groupby(["data", "method"], sort=False)
    ]


def draw_coefficients(table: pd.DataFrame, path: Path) -> None:
    """Draw the sizes of the coefficients, a row a data set, a column a method."""
    sets, methods = list(dict.fromkeys(table.data)), list(dict.fromkeys(table.method))
    figure = Figure(
        figsize=(3.1 * len(methods) + 0.5, 3.05 * len(sets) + 0.4), layout="constrained"
    )
    grid = figure.subplots(len(sets), len(methods), squeeze=False)
    for data, panels in zip(sets, grid, strict=True):
        for method, axes in zip(methods, panels, strict=True):
            _draw_matrix(axes, table[(table.data == data) & (table.method == method)])
            if data == sets[0]:
                axes.set_title(f"{method}\n{axes.get_title()}", fontsize=10)
        panels[0].set_ylabel(f"{shown(data)}\npoints, sorted by class", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("points, sorted by class", fontsize=9)
    images = [axes.images[0] for axes in grid.ravel()]
    bar = figure.colorbar(images[0], ax=grid, shrink=0.8, pad=0.02, ticks=[0, 1])
    bar.set_label(f"|c| / the panel's {100 * _QUANTILE:.0f} % quantile", fontsize=9)
    figure.savefig(path, dpi=150)


def _draw_matrix(axes: Axes, rows: pd.DataFrame) -> None:
    size = np.abs(np.array(rows.coefficients.tolist()))
    on = size[size > 0]
    scale = np.quantile(on, _QUANTILE) if len(on) else 1.0
    axes.imshow(size / scale, vmin=0, vmax=1, cmap="magma_r", interpolation="nearest")
    edges = np.flatnonzero(np.diff(rows.label.to_numpy())) + 0.5
    for edge in edges:
        axes.axhline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
        axes.axvline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
    first = rows.iloc[0]
    axes.set_title(
        f"{first.nonzeros:.0f} a row, {first.preserving_error:.0f} % on other classes", fontsize=9
    )
    axes.set_xticks([])
    axes.set_yticks([])
