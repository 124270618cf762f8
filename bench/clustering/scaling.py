"""Time against the number of points: coefficients of solved and unrolled methods, spectral step."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import normalize

from ...datasets import make_union_of_subspaces
from ...solvers import least_squares_self_expression, omp_self_expression, sparse_self_expression
from ...solvers.clustering import spectral_labels, symmetric_affinity
from ...solvers.sparse_coding import lam_max
from ...unrolled import UnrolledSelfExpression
from ..speed.rounds import in_turns
from .scaling_figure import draw_scaling
from .study import Options, Study, run_jobs

Array = np.ndarray

REFERENCE = "SSC, certified"
_N_SUBSPACES, _GAMMA = 10, 50.0
_ONCE = 4000  # points from which a single round is timed


def scaling_study(
    sizes: Sequence[int] = (250, 500, 1000, 2000, 4000, 8000), *, rounds: int = 3
) -> Study:
    """Time of the coefficients of all points, and of the spectral step, against their number.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of points, multiples of 10.
    rounds : int, default=3
        Times that every method is timed, in turns; once from 4,000 points up.
    """

    def run(options: Options) -> pd.DataFrame:
        jobs = [
            {"n_points": n, "rounds": rounds if n < _ONCE else 1, "seed": options.seed}
            for n in sizes
        ]
        return run_jobs(time_points, jobs, options)

    about = (
        "10 subspaces of dimension 4 in 30 dimensions, noise 0.2, one thread. SSC is solved to a "
        "gap of 1e-6 at gamma 50; the unrolled layers are a forward pass in float32, training "
        "apart; the spectral step is that of SSC's affinity. Times are ratios to SSC's at the same "
        "number of points, medians over rounds in turns; growth is the time at the largest number "
        "over that at the smallest."
    )
    return Study("scaling", about, run, scaling_lines, {"time-points.png": draw_scaling})


def time_points(*, n_points: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each method at one number of points."""
    X, _ = make_union_of_subspaces(
        n_points // _N_SUBSPACES, n_subspaces=_N_SUBSPACES, noise=0.2, random_state=seed
    )
    runs = _methods(normalize(X))
    for run in runs.values():
        run()  # compile
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, _ in in_turns(list(runs), rounds):
        start = time.perf_counter()
        runs[name]()
        times[name].append(time.perf_counter() - start)
    reference = np.array(times[REFERENCE])
    return [
        {
            "n_points": n_points,
            "method": name,
            "seconds": float(np.median(spent)),
            "ratio": float(np.median(spent / reference)),
        }
        for name, spent in times.items()
    ]


def _methods(X: Array) -> dict[str, Callable[[], Any]]:
    largest = lam_max(X, X, zero_diagonal=True)
    points = torch.from_numpy(X.astype(np.float32))
    layers = UnrolledSelfExpression(10, 1 / _GAMMA, relative=True)
    affinity = symmetric_affinity(sparse_self_expression(X, lam=largest / _GAMMA).coef)

    def unrolled() -> torch.Tensor:
        with torch.inference_mode():
            codes: torch.Tensor = layers(points)
            return codes

    return {
        REFERENCE: lambda: sparse_self_expression(X, lam=largest / _GAMMA),
        "OMP, 5 non-zeros": lambda: omp_self_expression(X, n_nonzero=5),
        "LSR, closed form": lambda: least_squares_self_expression(X, lam=0.01),
        "unrolled, K = 10": unrolled,
        "5-NN graph": lambda: kneighbors_graph(X, 5),
        "spectral step": lambda: spectral_labels(affinity, _N_SUBSPACES, random_state=0),
    }


def scaling_lines(table: pd.DataFrame) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line a method: the ratio to SSC at each number of points, and the growth of its time."""
    sizes = sorted(table.n_points.unique())
    headings = ("method", *(f"time / SSC at {n:,}" for n in sizes), "growth")
    lines = []
    for method, rows in table.groupby("method", sort=False):
        by_size = rows.set_index("n_points")
        cells = [f"{by_size.ratio[n]:.3g}" for n in sizes]
        growth = by_size.seconds[sizes[-1]] / by_size.seconds[sizes[0]]
        lines.append((str(method), *cells, f"{growth:.3g}"))
    return headings, lines
