"""Time against the number of points: coefficients of solved and unrolled methods, spectral step.

10 subspaces of dimension 4 in 30 dimensions, noise 0.2, one thread. SSC is solved to a gap of 1e-6
at gamma 50; the unrolled layers are a forward pass in float32, training apart; the spectral step is
that of SSC's affinity. Times are ratios to SSC's at the same number of points, medians over rounds
in turns; growth is the time at the largest number over that at the smallest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import normalize

from shared.pictures import draw_lines
from shared.points import CERTIFIED, prose, run_seeded
from twinsolve.bench.clustering.summary import grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.bench.timing import in_turns, seconds_of
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    least_squares_self_expression,
    omp_self_expression,
    sparse_self_expression,
)
from twinsolve.solvers.clustering import spectral_labels, symmetric_affinity
from twinsolve.solvers.sparse_coding import lam_max
from twinsolve.unrolled import UnrolledSelfExpression

Array = np.ndarray

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
    jobs = [{"n_points": n, "rounds": rounds if n < _ONCE else 1} for n in sizes]
    run = run_seeded(time_points, jobs)
    return Study("scaling", prose(__doc__), run, scaling_lines, {"time-points.png": _draw})


def time_points(*, n_points: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each method at one number of points."""
    X, _ = make_union_of_subspaces(
        n_points // _N_SUBSPACES, n_subspaces=_N_SUBSPACES, noise=0.2, random_state=seed
    )
    runs = _methods(normalize(X))
    compiling = list(runs.values())
    seconds = in_turns([partial(seconds_of, run) for run in compiling], rounds, before=compiling)
    times = dict(zip(runs, seconds, strict=True))
    return [
        {
            "n_points": n_points,
            "method": name,
            "seconds": float(np.median(spent)),
            "ratio": float(np.median(spent / times[CERTIFIED])),
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
        CERTIFIED: lambda: sparse_self_expression(X, lam=largest / _GAMMA),
        "OMP, 5 non-zeros": lambda: omp_self_expression(X, n_nonzero=5),
        "LSR, closed form": lambda: least_squares_self_expression(X, lam=0.01),
        "unrolled, K = 10": unrolled,
        "5-NN graph": lambda: kneighbors_graph(X, 5),
        "spectral step": lambda: spectral_labels(affinity, _N_SUBSPACES, random_state=0),
    }


def scaling_lines(table: pd.DataFrame) -> Lines:
    """A line a method: the ratio to SSC at each number of points, and the growth of its time."""
    sizes = sorted(table.n_points.unique())

    def ratio(rows: pd.DataFrame, size: int) -> str:
        return f"{rows.ratio[rows.n_points == size].iloc[0]:.3g}"

    def growth(rows: pd.DataFrame) -> str:
        seconds = rows.set_index("n_points").seconds
        return f"{seconds[sizes[-1]] / seconds[sizes[0]]:.3g}"

    ratios = {f"time / SSC at {size:,}": partial(ratio, size=size) for size in sizes}
    return grouped_lines(table, ["method"], {"method": "method", **ratios, "growth": growth})


def _draw(table: pd.DataFrame, path: Path) -> None:
    smallest = table.n_points.min()
    unit = table[(table.method == CERTIFIED) & (table.n_points == smallest)].seconds.iloc[0]
    draw_lines(
        table.assign(seconds=table.seconds / unit, data="one thread, all points"),
        path,
        x="n_points",
        y="seconds",
        steps=["n_points"],
        reference=CERTIFIED,
        words=("points N", f"time over {CERTIFIED}, at N = {smallest:,}"),
    )
