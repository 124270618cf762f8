"""Fit on some points, apply to others: solving for new points against a forward pass."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ....solvers import (
    ElasticNetSubspaceClustering,
    LeastSquaresSubspaceClustering,
    LowRankSubspaceClustering,
    OMPSubspaceClustering,
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
    clustering_accuracy,
    sparse_code,
)
from ....solvers.clustering import symmetric_affinity
from ....solvers.clustering.base import SubspaceClustering
from ....solvers.sparse_coding import lam_max, lasso_objective
from ....unrolled.clustering import (
    SelfExpressiveSubspaceClustering,
    UnrolledSubspaceClustering,
)
from ...jobs import Job, Options
from ...tables import Lines, number
from ...timing import ms_per_point
from ..study import Study, at_hand, of_jobs
from .figures import draw_out_of_sample
from .splits import NOISY, shuffled_points

Array = np.ndarray
Penalty = tuple[Any, float]  # lam and l1_ratio of new points

REFERENCE = "SSC"
METHODS: dict[str, Callable[..., SubspaceClustering]] = {
    REFERENCE: SparseSubspaceClustering,
    "EnSC": ElasticNetSubspaceClustering,
    "OMP": OMPSubspaceClustering,
    "LSR": LeastSquaresSubspaceClustering,
    "LRSC": LowRankSubspaceClustering,
    "TSC": ThresholdingSubspaceClustering,
    "unrolled, K = 10": partial(UnrolledSubspaceClustering, n_layers=10),
    "SENet": partial(SelfExpressiveSubspaceClustering, max_iter=300, affinity=symmetric_affinity),
}
_SINGLE = 10


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
        Names as `make_problem` knows them; those whose files are missing are left out.
    n_splits : int, default=5
        Random splits into halves.
    n_points : int, default=600
        Most points of a set, half of them to fit on.
    rounds : int, default=3
        Times that every method is timed, in turns.
    batch : int, default=1000
        New points at once; they repeat where there are fewer.
    """

    def jobs(options: Options) -> list[Job]:
        settings = {
            "n_points": n_points,
            "rounds": rounds,
            "batch": batch,
            "data_home": options.data_home,
        }
        return [
            {"data": name, "seed": options.seed + split, **settings}
            for name in at_hand(data, options.data_home)
            for split in range(n_splits)
        ]

    about = (
        "Every method at its default settings and with |C| + |C|^T, fitted on half of the points; "
        "SENet by 300 training steps. The others are predicted by the cluster whose points leave "
        "the smallest residual, TSC's by neighbours. Accuracy matches clusters to classes on the "
        "points in question. Gaps of held-out coefficients are (F - F*) / |x|^2 of the method's "
        "own l1 problem against a certified bound; the others are closed forms, greedy or no "
        "minimisers. Times are ratios to SSC's: of the "
        "fit on the same split, and of predict in the same rounds, of 10 single points or of "
        f"{batch:,} at once. Accuracies are means and standard deviations over splits."
    )
    figures = {"out-of-sample.png": draw_out_of_sample}
    run = of_jobs(predict_held_out, jobs, data)
    return Study("out-of-sample", about, run, out_of_sample_lines, figures)


def predict_held_out(
    *, data: str, seed: int, n_points: int, rounds: int, batch: int, data_home: str | None
) -> list[dict[str, Any]]:
    """A row for each method on one split."""
    X, y = shuffled_points(data, seed=seed, data_home=data_home)
    X, y, half = X[:n_points], y[:n_points], min(n_points, len(X)) // 2
    new, n_clusters = X[half:], len(np.unique(y))
    models: list[SubspaceClustering] = []
    rows: list[dict[str, Any]] = []
    for name, method in METHODS.items():
        start = time.perf_counter()
        model = method(n_clusters, random_state=seed).fit(X[:half])
        rows.append(
            {
                "data": data,
                "seed": seed,
                "method": name,
                "fit_s": time.perf_counter() - start,
                "accuracy_fit": 100 * clustering_accuracy(y[:half], model.labels_),
                "accuracy_new": 100 * clustering_accuracy(y[half:], model.predict(new)),
                "gap": held_out_gap(model, X[:half], new),
            }
        )
        rows[-1]["ratio_fit"] = rows[-1]["fit_s"] / rows[0]["fit_s"]
        models.append(model)
    for kind, inputs in {
        "single": list(new[:_SINGLE, None]),
        "batch": [np.resize(new, (batch, new.shape[1]))],
    }.items():
        ms = ms_per_point([model.predict for model in models], inputs, rounds)
        for row, times in zip(rows, ms, strict=True):
            row[f"ms_{kind}"] = float(np.median(times))
            row[f"ratio_{kind}"] = float(np.median(times / ms[0]))
    return rows


def held_out_gap(model: SubspaceClustering, X: Array, new: Array) -> float:
    """Mean of ``(F - F*) / |x|^2`` of the coefficients of new points; NaN without an l1 problem."""
    penalty = _penalty(model, X, new)
    if penalty is None:
        return float("nan")
    lam, ratio = penalty
    coef = model.coefficients(new)
    best = sparse_code(new, X, lam=lam, l1_ratio=ratio, tol=1e-9)
    norms = (new**2).sum(axis=1)
    excess = lasso_objective(new, X, coef, lam=lam, l1_ratio=ratio) - best.objective
    return float(np.maximum(excess / norms + best.gap, 0).mean())


def _penalty(model: SubspaceClustering, X: Array, new: Array) -> Penalty | None:
    match model:
        case SparseSubspaceClustering() | UnrolledSubspaceClustering():
            return lam_max(new, X) / model.gamma_, 1.0
        case ElasticNetSubspaceClustering():
            return lam_max(new, X) / (model.gamma_ * model.l1_ratio), model.l1_ratio
        case SelfExpressiveSubspaceClustering():
            return 2 / model.gamma, model.l1_ratio
    return None


def out_of_sample_lines(table: pd.DataFrame) -> Lines:
    """A line a data set and method: means and deviations over the splits."""
    headings = (
        "data", "method", "accuracy fitted, %", "accuracy held out, %", "gap held out",
        "fit / SSC", "predict single / SSC", "predict batch / SSC",
    )  # fmt: skip
    lines = []
    for (data, method), rows in table.groupby(["data", "method"], sort=False):
        accuracies = [
            f"{rows[name].mean():.1f} ± {rows[name].std(ddof=0):.1f}"
            for name in ("accuracy_fit", "accuracy_new")
        ]
        gap = number(rows.gap.mean(), ".1e", missing="")
        ratios = [f"{rows[f'ratio_{kind}'].median():.2f}" for kind in ("fit", "single", "batch")]
        lines.append((str(data), str(method), *accuracies, gap, *ratios))
    return headings, lines
