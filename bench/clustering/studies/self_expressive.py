"""The self-expressive network beside the problem that it learns, and beside nearest neighbours."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....solvers import (
    NearestNeighborClustering,
    clustering_accuracy,
    sparse_code,
    sparse_self_expression,
)
from ....solvers.clustering import nearest_rows_affinity, spectral_labels, symmetric_affinity
from ....solvers.metrics import subspace_preserving_error
from ....solvers.sparse_coding import lasso_objective
from ....unrolled.clustering import SelfExpressiveSubspaceClustering
from ...jobs import Job, Options
from ...tables import Lines, number
from ..fitting import edgeless
from ..study import Study, at_hand, of_jobs
from .figures import draw_networks
from .splits import NOISY, shuffled_points

Array = np.ndarray

NETWORK, SOLVED, NEIGHBORS = "SENet", "EnSC, solved", "3-NN of raw points"
_N_NEIGHBORS = 3
_RATIO = 0.9


STEPS = {"|C| + |C|^T": symmetric_affinity, "3-NN of rows of C": nearest_rows_affinity}


def self_expressive_study(
    data: Sequence[str] = (NOISY, "digits"),
    *,
    gamma: float = 200.0,
    n_splits: int = 5,
    n_points: int = 800,
    max_iter: int = 600,
) -> Study:
    """SENet against the elastic net that it is trained on, with the same affinity steps.

    Parameters
    ----------
    data : sequence of str
        Names as `make_problem` knows them; those whose files are missing are left out.
    gamma : float, default=200.0
        As in `SelfExpressiveNetwork`; the solved elastic net is at ``lam = 2 / gamma``.
    n_splits : int, default=5
        Random splits into halves.
    n_points : int, default=800
        Most points of a set, half of them to train on.
    max_iter : int, default=600
        Training steps.
    """

    def jobs(options: Options) -> list[Job]:
        settings = {
            "gamma": gamma,
            "n_points": n_points,
            "max_iter": max_iter,
            "data_home": options.data_home,
        }
        return [
            {"data": name, "seed": options.seed + split, **settings}
            for name in at_hand(data, options.data_home)
            for split in range(n_splits)
        ]

    about = (
        "Objectives are those of gamma/2 |x - c X|^2 + r |c|_1 + (1 - r)/2 |c|^2 with "
        f"r = {_RATIO:g}, relative to the certified optimum, on points trained on and on held-out "
        "ones coded in them. Accuracies match clusters to classes on the points in question; "
        "held-out points take the cluster of smallest residual, those of raw 3-NN its majority. "
        "Times are of training, or of solving all points, held-out ones too, as ratios to the "
        "latter on the same split."
    )
    figures = {"self-expressive.png": draw_networks}
    run = of_jobs(express, jobs, data)
    return Study("self-expressive", about, run, self_expressive_lines, figures)


def express(
    *, data: str, seed: int, gamma: float, n_points: int, max_iter: int, data_home: str | None
) -> list[dict[str, Any]]:
    """Rows of one split: the network and the solver with each affinity step, and raw 3-NN."""
    X, y = shuffled_points(data, seed=seed, data_home=data_home)
    half, n_clusters = min(n_points, len(X)) // 2, len(np.unique(y))
    X, new, y, y_new = X[:half], X[half:n_points], y[:half], y[half:n_points]
    problem: dict[str, Any] = {"lam": 2 / gamma, "l1_ratio": _RATIO}

    start = time.perf_counter()
    network = SelfExpressiveSubspaceClustering(
        n_clusters,
        gamma=gamma,
        l1_ratio=_RATIO,
        max_iter=max_iter,
        affinity=edgeless,
        random_state=seed,
    ).fit(X)
    fitted = time.perf_counter()
    best, best_new = sparse_self_expression(X, **problem), sparse_code(new, X, **problem)
    seconds = {NETWORK: fitted - start, SOLVED: time.perf_counter() - fitted}
    coefs = {
        NETWORK: (network.coef_, network.coefficients(new)),
        SOLVED: (best.coef, best_new.coef),
    }
    rows = []
    for method, (coef, coef_new) in coefs.items():
        about = {
            "method": method,
            "objective_fit": _relative(X, X, coef, best.objective, problem),
            "objective_new": _relative(new, X, coef_new, best_new.objective, problem),
            "nonzeros": coef.nnz / len(X),
            "preserving_error": 100 * subspace_preserving_error(coef, y),
            "seconds": seconds[method],
        }
        for step, affinity in STEPS.items():
            labels = spectral_labels(affinity(coef), n_clusters, random_state=seed)
            labels_new = network.assign(new, coef_new, labels)
            rows.append(about | {"step": step} | _accuracies(labels, labels_new, y, y_new))
    graph = NearestNeighborClustering(n_clusters, n_neighbors=_N_NEIGHBORS, random_state=seed).fit(
        X
    )
    found = _accuracies(graph.labels_, graph.predict(new), y, y_new)
    rows.append({"method": NEIGHBORS, "step": "", **found})
    return [{"data": data, "seed": seed, **row} for row in rows]


def _relative(Y: Array, X: Array, coef: Any, best: Array, problem: dict[str, Any]) -> float:
    return float(lasso_objective(Y, X, coef, **problem).mean() / best.mean())


def _accuracies(labels: Array, labels_new: Array, y: Array, y_new: Array) -> dict[str, float]:
    return {
        "accuracy_fit": 100 * clustering_accuracy(y, labels),
        "accuracy_new": 100 * clustering_accuracy(y_new, labels_new),
    }


def self_expressive_lines(table: pd.DataFrame) -> Lines:
    """A line a data set, method and affinity step: means and deviations over the splits."""
    headings = (
        "data", "method", "affinity", "objective / optimum, trained", "held out", "non-zeros a row",
        "ME-2, %", "accuracy trained, %", "accuracy held out, %", "time / solved",
    )  # fmt: skip
    lines = []
    for (data, method, step), rows in table.groupby(["data", "method", "step"], sort=False):
        numbers = [
            number(rows[name].mean(), form, missing="")
            for name, form in {
                "objective_fit": ".3f",
                "objective_new": ".3f",
                "nonzeros": ".1f",
                "preserving_error": ".1f",
            }.items()
        ]
        accuracies = [
            f"{rows[name].mean():.1f} ± {rows[name].std(ddof=0):.1f}"
            for name in ("accuracy_fit", "accuracy_new")
        ]
        solved = table[(table.data == data) & (table.method == SOLVED)].groupby("seed").seconds
        ratio = (rows.set_index("seed").seconds / solved.first()).median()
        ratio_cell = number(ratio, ".2f", missing="")
        lines.append((str(data), str(method), str(step), *numbers, *accuracies, ratio_cell))
    return headings, lines
