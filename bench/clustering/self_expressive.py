"""The self-expressive network beside the problem that it learns, and beside nearest neighbours."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph

from ...solvers import (
    clustering_accuracy,
    lasso_objective,
    sparse_code,
    sparse_self_expression,
    spectral_labels,
    subspace_preserving_error,
    symmetric_affinity,
    unit_rows,
)
from ...solvers.clustering.base import SubspaceClustering
from .point_sets import at_hand, unit_points
from .self_expressive_figure import draw_networks
from .study import Options, Study, run_jobs
from .trained import SelfExpressiveClustering

Array = np.ndarray

NETWORK, SOLVED, NEIGHBORS = "SENet", "EnSC, solved", "3-NN of raw points"
_N_NEIGHBORS = 3
_RATIO = 0.9


def nearest_rows(coef: Array | csr_array) -> csr_array:
    """Affinity of the three nearest neighbours among the unit rows of the coefficients."""
    rows = csr_array(unit_rows(coef))
    return symmetric_affinity(csr_array(kneighbors_graph(rows, _N_NEIGHBORS)))


STEPS = {"|C| + |C|^T": symmetric_affinity, "3-NN of rows of C": nearest_rows}


def self_expressive_study(
    data: Sequence[str] = ("noisy subspaces", "digits"),
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
        Names among `POINT_SETS`.
    gamma : float, default=200.0
        As in `SelfExpressiveNetwork`; the solved elastic net is at ``lam = 2 / gamma``.
    n_splits : int, default=5
        Random splits into halves.
    n_points : int, default=800
        Most points of a set, half of them to train on.
    max_iter : int, default=600
        Training steps.
    """

    def run(options: Options) -> pd.DataFrame:
        settings = {
            "gamma": gamma,
            "n_points": n_points,
            "max_iter": max_iter,
            "data_home": options.data_home,
        }
        jobs = [
            {"data": name, "seed": options.seed + split, **settings}
            for name in at_hand(data, options.data_home)
            for split in range(n_splits)
        ]
        return run_jobs(express, jobs, options)

    about = (
        "Objectives are those of gamma/2 |x - c X|^2 + r |c|_1 + (1 - r)/2 |c|^2 with "
        f"r = {_RATIO:g}, relative to the certified optimum, on points trained on and on held-out "
        "ones coded in them. Accuracies match clusters to classes on the points in question; "
        "held-out points take the cluster of smallest residual, those of raw 3-NN its majority."
    )
    figures = {"self-expressive.png": draw_networks}
    return Study("self-expressive", about, run, self_expressive_lines, figures)


class _Given(SubspaceClustering):
    """Clusters of coefficients that are known already."""

    def __init__(self, n_clusters, coef, new, affinity, random_state):  # type: ignore[no-untyped-def]
        self.n_clusters, self.coef, self.new = n_clusters, coef, new
        self.affinity, self.random_state = affinity, random_state
        self.assign_labels = "kmeans"

    def _represent(self, X: Array) -> Any:
        return self.coef

    def _represent_new(self, X: Array) -> Any:
        return self.new


def express(
    *, data: str, seed: int, gamma: float, n_points: int, max_iter: int, data_home: str | None
) -> list[dict[str, Any]]:
    """Rows of one split: the network and the solver with each affinity step, and raw 3-NN."""
    X, y = unit_points(data, seed=seed, data_home=data_home)
    half, n_clusters = min(n_points, len(X)) // 2, len(np.unique(y))
    X, new, y, y_new = X[:half], X[half:n_points], y[:half], y[half:n_points]
    problem: dict[str, Any] = {"lam": 2 / gamma, "l1_ratio": _RATIO}
    coefs, seconds = {}, {}

    start = time.perf_counter()
    network = SelfExpressiveClustering(
        n_clusters, gamma=gamma, l1_ratio=_RATIO, max_iter=max_iter, random_state=seed
    )
    network._fit_X = X
    fitted = network._represent(X)
    seconds[NETWORK] = time.perf_counter() - start
    coefs[NETWORK] = fitted, network._represent_new(new)

    start = time.perf_counter()
    best, best_new = sparse_self_expression(X, **problem), sparse_code(new, X, **problem)
    seconds[SOLVED] = time.perf_counter() - start
    coefs[SOLVED] = best.coef, best_new.coef

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
            model = _Given(n_clusters, coef, coef_new, affinity, seed).fit(X)
            rows.append(about | {"step": step} | _accuracies(model, new, y, y_new))
    labels = spectral_labels(
        symmetric_affinity(csr_array(kneighbors_graph(X, _N_NEIGHBORS))),
        n_clusters,
        random_state=seed,
    )
    voted = KNeighborsClassifier(_N_NEIGHBORS).fit(X, labels)
    voted.labels_ = labels
    rows.append({"method": NEIGHBORS, "step": ""} | _accuracies(voted, new, y, y_new))
    return [{"data": data, "seed": seed, **row} for row in rows]


def _relative(Y: Array, X: Array, coef: Any, best: Array, problem: dict[str, Any]) -> float:
    return float(lasso_objective(Y, X, coef, **problem).mean() / best.mean())


def _accuracies(model: Any, new: Array, y: Array, y_new: Array) -> dict[str, float]:
    return {
        "accuracy_fit": 100 * clustering_accuracy(y, model.labels_),
        "accuracy_new": 100 * clustering_accuracy(y_new, model.predict(new)),
    }


def self_expressive_lines(table: pd.DataFrame) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line a data set, method and affinity step: means and deviations over the splits."""
    headings = (
        "data", "method", "affinity", "objective / optimum, trained", "held out", "non-zeros a row",
        "ME-2, %", "accuracy trained, %", "accuracy held out, %", "s",
    )  # fmt: skip
    lines = []
    for (data, method, step), rows in table.groupby(["data", "method", "step"], sort=False):
        numbers = [
            "" if rows[name].isna().all() else format(rows[name].mean(), form)
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
        seconds = "" if rows.seconds.isna().all() else f"{rows.seconds.median():.1f}"
        lines.append((str(data), str(method), str(step), *numbers, *accuracies, seconds))
    return headings, lines
