"""The self-expressive network beside the problem that it learns, and beside nearest neighbours.

Objectives are those of gamma/2 |x - c X|^2 + r |c|_1 + (1 - r)/2 |c|^2 with r = 0.9, relative to
the certified optimum, on points trained on and on held-out ones coded in them. Accuracies match
clusters to classes on the points in question; held-out points take the cluster of smallest
residual, those of raw 3-NN its majority. Times are of training, or of solving all points, held-out
ones too, as ratios to the latter on the same split.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shared.points import NOISY, halves, prose, run_seeded, with_deviation
from twinsolve import solvers
from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.figures import describe_data, draw_dots
from twinsolve.bench.clustering.fitting import make_empty_affinity
from twinsolve.bench.clustering.summary import folded, grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.solvers.clustering import nearest_rows_affinity, spectral_labels, symmetric_affinity
from twinsolve.solvers.metrics import subspace_preserving_error
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.unrolled.clustering import SelfExpressiveSubspaceClustering

Array = np.ndarray

NETWORK, SOLVED, NEIGHBORS = "SENet", "EnSC, solved", "3-NN of raw points"
_RATIO, _GAMMA = 0.9, 200.0  # as in `SelfExpressiveNetwork`; the solved lam is 2 / gamma


STEPS = {"|C| + |C|^T": symmetric_affinity, "3-NN of rows of C": nearest_rows_affinity}


def self_expressive_study(
    data: Sequence[str] = (NOISY, "digits"),
    *,
    n_splits: int = 5,
    n_points: int = 800,
    max_iter: int = 600,
) -> Study:
    """SENet against the elastic net that it is trained on, with the same affinity steps.

    Parameters
    ----------
    data : sequence of str
        Names as `find_data` knows them; those whose files are missing are left out.
    n_splits : int, default=5
        Random splits into halves.
    n_points : int, default=800
        Most points of a set, half of them to train on.
    max_iter : int, default=600
        Training steps.
    """
    settings = {"n_points": n_points, "max_iter": max_iter}
    jobs = [{"data": name, **settings} for name in data]
    run = run_seeded(express, jobs, data, n_splits)
    figures = {"self-expressive.png": _draw}
    return Study("self-expressive", prose(__doc__), run, self_expressive_lines, figures)


def express(*, data: Data, seed: int, n_points: int, max_iter: int) -> list[dict[str, Any]]:
    """Rows of one split: the network and the solver with each affinity step, and raw 3-NN."""
    split = halves(data, n_points, seed=seed)
    X, new, n_clusters = split.X, split.new, split.n_clusters
    problem: dict[str, Any] = {"lam": 2 / _GAMMA, "l1_ratio": _RATIO}
    start = time.perf_counter()
    network = SelfExpressiveSubspaceClustering(
        n_clusters, gamma=_GAMMA, l1_ratio=_RATIO, max_iter=max_iter, affinity=make_empty_affinity,
        random_state=seed,
    ).fit(X)  # fmt: skip
    fitted = time.perf_counter()
    best = solvers.sparse_self_expression(X, **problem)
    best_new = solvers.sparse_code(new, X, **problem)
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
            "preserving_error": 100 * subspace_preserving_error(coef, split.y),
            "seconds": seconds[method],
        }
        for step, affinity in STEPS.items():
            labels = spectral_labels(affinity(coef), n_clusters, random_state=seed)
            found = split.accuracies(labels, network.assign(new, coef_new, labels))
            rows.append(about | {"step": step} | found)
    graph = solvers.NearestNeighborClustering(n_clusters, n_neighbors=3, random_state=seed).fit(X)
    found = split.accuracies(graph.labels_, graph.predict(new))
    rows.append({"method": NEIGHBORS, "step": "", **found})
    return [{"data": data.name, "seed": seed, **row} for row in rows]


def _relative(Y: Array, X: Array, coef: Any, best: Array, problem: dict[str, Any]) -> float:
    return float(lasso_objective(Y, X, coef, **problem).mean() / best.mean())


def self_expressive_lines(table: pd.DataFrame) -> Lines:
    """A line a data set, method and affinity step: means and deviations over the splits."""
    case = ["data", "seed"]
    solved = table[table.method == SOLVED].groupby(case).seconds.first().rename("solved")
    table = table.join(solved, on=case).assign(ratio=lambda rows: rows.seconds / rows.solved)
    cells = {
        "data": "data",
        "method": "method",
        "affinity": "step",
        "objective / optimum, trained": folded("objective_fit", "mean", ".3f"),
        "held out": folded("objective_new", "mean", ".3f"),
        "non-zeros a row": folded("nonzeros", "mean", ".1f"),
        "ME-2, %": folded("preserving_error", "mean", ".1f"),
        "accuracy trained, %": with_deviation("accuracy_fit"),
        "accuracy held out, %": with_deviation("accuracy_new"),
        "time / solved": folded("ratio", "median", ".2f"),
    }
    return grouped_lines(table, ["data", "method", "step"], cells)


def _draw(table: pd.DataFrame, path: Path) -> None:
    """Accuracies on both halves, a row for each method with its affinity."""
    names = {"accuracy_fit": "trained on", "accuracy_new": "held out"}
    about = {"panel": table.data.map(describe_data), "name": table.method + "\n" + table.step}
    both = table.assign(**about).melt(["panel", "name"], list(names), "points")
    both = both.replace({"points": names})
    words = "accuracy in %, mean and std over splits"
    draw_dots(both, path, value="value", words=words, row="name", series="points")
