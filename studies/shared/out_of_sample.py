"""Fit on some points, apply to others: solving for new points against a forward pass.

Every method at its default settings and with |C| + |C|^T, fitted on half of the points; SENet by
300 training steps. The others are predicted by the cluster whose points leave the smallest
residual, TSC's by neighbours. Accuracy matches clusters to classes on the points in question. Gaps
of held-out coefficients are (F - F*) / |x|^2 of the method's own l1 problem against a certified
bound; the others are closed forms, greedy or no minimisers. Times are ratios to SSC's: of the fit
on the same split, and of predict in the same rounds, of 10 single points or of 1,000 at once.
Accuracies are means and standard deviations over splits.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from shared.pictures import draw_lines
from shared.points import NOISY, halves, prose, run_seeded, with_deviation, with_times
from twinsolve import solvers
from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.summary import folded, grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.solvers.clustering import symmetric_affinity
from twinsolve.solvers.clustering.base import SubspaceClustering
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.unrolled import clustering

Array = np.ndarray
Penalty = tuple[Any, float]  # lam and l1_ratio of new points

REFERENCE = "SSC"
METHODS: dict[str, Callable[..., SubspaceClustering]] = {
    REFERENCE: solvers.SparseSubspaceClustering,
    "EnSC": solvers.ElasticNetSubspaceClustering,
    "OMP": solvers.OMPSubspaceClustering,
    "LSR": solvers.LeastSquaresSubspaceClustering,
    "LRSC": solvers.LowRankSubspaceClustering,
    "TSC": solvers.ThresholdingSubspaceClustering,
    "unrolled, K = 10": partial(clustering.UnrolledSubspaceClustering, n_layers=10),
    "SENet": partial(
        clustering.SelfExpressiveSubspaceClustering, max_iter=300, affinity=symmetric_affinity
    ),
}


def out_of_sample_study(
    data: Sequence[str] = (NOISY, "digits", "yaleb-10", "coil20"),
    *,
    n_splits: int = 5,
    n_points: int = 600,
    rounds: int = 3,
    batch: int = 1000,
) -> Study:
    """Accuracy, gap and time of held-out points, solved and learned.

    Parameters
    ----------
    data : sequence of str
        Names as `find_data` knows them; those whose files are missing are left out.
    n_splits : int, default=5
        Random splits into halves.
    n_points : int, default=600
        Most points of a set, half of them to fit on.
    rounds : int, default=3
        Times that every method is timed, in turns.
    batch : int, default=1000
        New points at once; they repeat where there are fewer.
    """
    settings = {"n_points": n_points, "rounds": rounds, "batch": batch}
    jobs = [{"data": name, **settings} for name in data]
    run = run_seeded(predict_held_out, jobs, data, n_splits)
    return Study(
        "out-of-sample", prose(__doc__), run, out_of_sample_lines, {"out-of-sample.png": _draw}
    )


_draw = partial(
    draw_lines,
    x="ratio_batch",
    y="accuracy_new",
    hollow="accuracy_fit",
    words=("time a held-out point / SSC", "accuracy, %"),
    reference=REFERENCE,
    scale="linear",
    note="In batches. Filled: held out. Hollow: fitted. Squares: learned. Bars: deviation.",
)


def predict_held_out(
    *, data: Data, seed: int, n_points: int, rounds: int, batch: int
) -> list[dict[str, Any]]:
    """A row for each method on one split."""
    split = halves(data, n_points, seed=seed)
    models: list[SubspaceClustering] = []
    rows: list[dict[str, Any]] = []
    for name, method in METHODS.items():
        start = time.perf_counter()
        model = method(split.n_clusters, random_state=seed).fit(split.X)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "data": data.name,
                "seed": seed,
                "method": name,
                "fit_s": seconds,
                **split.accuracies(model.labels_, model.predict(split.new)),
                "gap": held_out_gap(model, split.X, split.new),
                "ratio_fit": seconds / rows[0]["fit_s"] if rows else 1.0,
            }
        )
        models.append(model)
    return with_times(rows, [model.predict for model in models], split.new, 0, rounds, batch)


def held_out_gap(model: SubspaceClustering, X: Array, new: Array) -> float:
    """Mean of ``(F - F*) / |x|^2`` of the coefficients of new points; NaN without an l1 problem."""
    penalty = _penalty(model, X, new)
    if penalty is None:
        return float("nan")
    lam, ratio = penalty
    coef = model.coefficients(new)
    best = solvers.sparse_code(new, X, lam=lam, l1_ratio=ratio, tol=1e-9)
    norms = (new**2).sum(axis=1)
    excess = lasso_objective(new, X, coef, lam=lam, l1_ratio=ratio) - best.objective
    return float(np.maximum(excess / norms + best.gap, 0).mean())


def _penalty(model: SubspaceClustering, X: Array, new: Array) -> Penalty | None:
    match model:
        case solvers.SparseSubspaceClustering() | clustering.UnrolledSubspaceClustering():
            return lam_max(new, X) / model.gamma_, 1.0
        case solvers.ElasticNetSubspaceClustering():
            return lam_max(new, X) / (model.gamma_ * model.l1_ratio), model.l1_ratio
        case clustering.SelfExpressiveSubspaceClustering():
            return 2 / model.gamma, model.l1_ratio
    return None


def out_of_sample_lines(table: pd.DataFrame) -> Lines:
    """A line a data set and method: means and deviations over the splits."""
    cells = {
        "data": "data",
        "method": "method",
        "accuracy fitted, %": with_deviation("accuracy_fit"),
        "accuracy held out, %": with_deviation("accuracy_new"),
        "gap held out": folded("gap", "mean", ".1e"),
        "fit / SSC": folded("ratio_fit", "median", ".2f"),
        "predict single / SSC": folded("ratio_single", "median", ".2f"),
        "predict batch / SSC": folded("ratio_batch", "median", ".2f"),
    }
    return grouped_lines(table, ["data", "method"], cells)
