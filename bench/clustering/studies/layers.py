"""Learned against solved at equal time and at equal gap: codes of new points by K layers.

Lasso codes of new points in a dictionary of half the points. Gaps are (F - F*) / |x|^2 against a
certified lower bound of F*, over new points. Times are medians over rounds in turns, on one thread,
as ratios to the certified solver at 1e-6 whose dictionary is prepared; training is told as the
number of points that this solver codes in the same time, in batches. Layers and iterations run in
float32, the solver in float64. Support-adaptive ISTA takes an eigenvalue for each row whose support
changed. ALISTA is left out, as its limit is no Lasso solution; matrices of n_atoms x n_atoms are
learned on Gaussian 64 x 256 alone.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ....solvers import sparse_code
from ....solvers.sparse_coding import lasso_objective
from ...tables import Lines
from ..lines import folded, lines_of
from ..study import Study, of_jobs, prose
from .coders import (
    GAUSSIAN,
    REFERENCE,
    TIGHT,
    Problem,
    coding_problem,
    iterated_coders,
    learned_coders,
    solved_coders,
)
from .figures import draw_lines
from .splits import SUBSPACES, with_times

Array = np.ndarray
Cases = Sequence[tuple[str, float]]

CASES = (
    (GAUSSIAN, 1.25),
    (GAUSSIAN, 10.0),
    (SUBSPACES, 10.0),
    ("digits", 10.0),
    ("yaleb-10", 10.0),
    ("coil20", 10.0),
)
BATCH = 1000
_SINGLE = 20
_EQUAL_GAPS = (1e-1, 1e-2)
_GAPS = (1e-9, 1.0)  # those outside are drawn at the edges


def layers_study(
    cases: Cases = CASES,
    *,
    n_iters: Sequence[int] = (2, 5, 10, 20),
    n_steps: int = 100,
    rounds: int = 3,
    batch: int = BATCH,
) -> Study:
    """Gap and time per new point of K iterations, plain and learned, beside the certified solver.

    Parameters
    ----------
    cases : sequence of (str, float)
        Data sets and gammas; those whose files are missing are left out.
    n_iters : sequence of int, default=(2, 5, 10, 20)
        Numbers of layers K, ascending.
    n_steps : int, default=100
        Training steps of each layer.
    rounds : int, default=3
        Times that every method is timed, in turns.
    batch : int, default=1000
        New points at once; they repeat where there are fewer.
    """
    names = list(dict.fromkeys(name for name, _ in cases if name != GAUSSIAN))
    settings = {"n_iters": list(n_iters), "n_steps": n_steps, "rounds": rounds, "batch": batch}
    jobs = [{"data": data, "gamma": gamma, **settings} for data, gamma in cases]
    figures = {
        "gap-layers.png": partial(_draw, x="n_iter", word="layers K"),
        "gap-time.png": partial(
            _draw, x="ratio_batch", word="time a point in batches / certified at 1e-6"
        ),
    }
    run = of_jobs(code_new_points, jobs, names)
    return Study("layers", prose(__doc__), run, layer_lines, figures)


def code_new_points(
    *,
    data: str,
    gamma: float,
    n_iters: list[int],
    n_steps: int,
    rounds: int,
    batch: int,
    seed: int,
    data_home: str | None,
) -> list[dict[str, Any]]:
    """Rows of one data set: a method at K iterations or at a tolerance each."""
    problem = coding_problem(data, gamma, seed=seed, data_home=data_home)
    coders = solved_coders(problem)
    for n_iter in n_iters:
        coders += iterated_coders(problem, n_iter)
    coders += learned_coders(problem, n_iters, n_steps=n_steps, seed=seed)
    gap = partial(gaps, problem, bound=lower_bound(problem))
    rows = [
        {
            "data": data,
            "gamma": gamma,
            "n_atoms": len(problem.dictionary),
            "n_new": len(problem.new),
            "method": coder.method,
            "n_iter": coder.n_iter,
            "tol": coder.tol,
            **_spread(gap(coder.code(problem.new))),
            "training_s": coder.training_s,
        }
        for coder in coders
    ]
    reference = next(i for i, c in enumerate(coders) if (c.method, c.tol) == (REFERENCE, TIGHT))
    codes = [coder.code for coder in coders]
    return with_times(rows, codes, problem.new, reference, rounds, batch, _SINGLE)


def lower_bound(problem: Problem) -> Array:
    """Certified bound from below on the optimal objective of each new point."""
    p = problem
    found = sparse_code(p.new, p.dictionary, lam=p.lam, tol=1e-9)
    return found.objective - found.gap * (p.new**2).sum(axis=1)


def gaps(problem: Problem, codes: Any, *, bound: Array) -> Array:
    """``(F - F*) / |x|^2`` of each new point; what rounding puts under zero is zero."""
    p = problem
    objective = lasso_objective(p.new, p.dictionary, codes, lam=p.lam)
    return np.maximum(objective - bound, 0) / (p.new**2).sum(axis=1)


def _spread(gap: Array) -> dict[str, float]:
    return {"gap": float(gap.mean()), "gap_worst": float(gap.max())}


def equal_terms(table: pd.DataFrame) -> pd.DataFrame:
    """What each method reaches in the certified solver's time, and its time at equal gaps.

    Only what was run counts: nothing is put between two numbers of layers. ``gap_single`` and
    ``gap_batch`` are the lowest mean gap within the time of the certified solver at 1e-6; ``at_G``
    is the shortest time per point, in batches, that gives a mean gap of at most G, over that of the
    certified solver for the same gap. NaN is never.
    """
    rows = []
    for (data, gamma), case in table.groupby(["data", "gamma"], sort=False):
        solved = case[case.method == REFERENCE]
        for method, runs in case.groupby("method", sort=False):
            row = {"data": data, "gamma": gamma, "method": method}
            for name in ("single", "batch"):
                row[f"gap_{name}"] = runs[runs[f"ratio_{name}"] <= 1].gap.min()
            for G in _EQUAL_GAPS:
                ours, theirs = (some[some.gap <= G].ratio_batch.min() for some in (solved, runs))
                row[f"at_{G:g}"] = theirs / ours
            rows.append(row)
    return pd.DataFrame(rows)


def layer_lines(table: pd.DataFrame) -> Lines:
    """A line a method: gaps by K or tolerance, and what is reached on equal terms."""
    case = ["data", "gamma"]
    ks = sorted({int(k) for k in table.n_iter.dropna()})
    solved = table[(table.method == REFERENCE) & (table.tol == TIGHT)]
    ms = solved.groupby(case).ms_batch.first().rename("solved_ms")
    table = table.join(ms, on=case).merge(equal_terms(table), on=[*case, "method"])

    def last(rows: pd.DataFrame) -> pd.Series:
        """Of the most layers, or of the smallest tolerance."""
        return rows.sort_values(["n_iter", "tol"], ascending=[False, True]).iloc[0]

    def gap(rows: pd.DataFrame, k: int) -> str:
        if rows.n_iter.notna().all():
            return f"{rows.gap[rows.n_iter == k].iloc[0]:.1e}"
        return f"{last(rows).gap:.1e} at {last(rows).tol:g}" if k == ks[0] else ""

    def training(rows: pd.DataFrame) -> str:
        points = 1000 * last(rows).training_s / last(rows).solved_ms
        return f"{points:,.0f}" if points else ""

    cells = {
        "data": lambda rows: f"{rows.data.iloc[0]}, gamma {rows.gamma.iloc[0]:g}",
        "method": "method",
        **{f"gap, K = {k}": partial(gap, k=k) for k in ks},
        f"ratio single, K = {ks[-1]}": lambda rows: f"{last(rows).ratio_single:.2f}",
        f"ratio batch, K = {ks[-1]}": lambda rows: f"{last(rows).ratio_batch:.2f}",
        "training, points solved": training,
        "gap at equal time, single": folded("gap_single", "max", ".1e", "never"),
        "gap at equal time, batch": folded("gap_batch", "max", ".1e", "never"),
        **{
            f"time at gap {G:g}, batch": folded(f"at_{G:g}", "max", ".2f", "never")
            for G in _EQUAL_GAPS
        },
    }
    return lines_of(table, [*case, "method"], cells)


def _draw(table: pd.DataFrame, path: Path, *, x: str, word: str) -> None:
    low, high = _GAPS
    draw_lines(
        table.assign(gap=table.gap.clip(low, high)),
        path,
        x=x,
        y="gap",
        steps=["n_iter", "tol"],
        panel=["data", "gamma"],
        reference=REFERENCE,
        words=(word, "mean gap (F - F*) / |x|²"),
        note=f"Squares: learned. Gaps outside {low:g} to {high:g} are drawn there.",
    )
