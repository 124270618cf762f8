"""Learned against solved at equal time and at equal gap: codes of new points by K layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ....solvers import sparse_code
from ....solvers.sparse_coding import lasso_objective
from ...jobs import Job, Options
from ...tables import Lines, number
from ...timing import ms_per_point
from ..study import Study, at_hand, of_jobs
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
from .figures import draw_gaps, draw_times
from .splits import SUBSPACES

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

    names = [name for name in dict.fromkeys(name for name, _ in cases) if name != GAUSSIAN]

    def jobs(options: Options) -> list[Job]:
        known = {GAUSSIAN, *at_hand(names, options.data_home)}
        settings = {
            "n_iters": list(n_iters),
            "n_steps": n_steps,
            "rounds": rounds,
            "batch": batch,
            "seed": options.seed,
            "data_home": options.data_home,
        }
        return [{"data": d, "gamma": g, **settings} for d, g in cases if d in known]

    about = (
        "Lasso codes of new points in a dictionary of half the points. Gaps are "
        "(F - F*) / |x|^2 against a certified lower bound of F*, over new points. Times are "
        "medians over rounds in turns, on one thread, as ratios to the certified solver at 1e-6 "
        "whose dictionary is prepared; training is told as the number of points that this solver "
        "codes in the same time, in batches. Layers and iterations run in float32, the solver in "
        "float64. Support-adaptive ISTA takes an eigenvalue for each row whose support changed. "
        "ALISTA is left out, as its limit is no Lasso solution; matrices of n_atoms x n_atoms are "
        f"learned on {GAUSSIAN} alone."
    )
    figures = {"gap-layers.png": draw_gaps, "gap-time.png": draw_times}
    run = of_jobs(code_new_points, jobs, names)
    return Study("layers", about, run, layer_lines, figures)


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
    for name, inputs in {
        "single": list(problem.new[:_SINGLE, None]),
        "batch": [np.resize(problem.new, (batch, problem.new.shape[1]))],
    }.items():
        ms = ms_per_point([coder.code for coder in coders], inputs, rounds)
        for row, times in zip(rows, ms, strict=True):
            row[f"ms_{name}"] = float(np.median(times))
            row[f"ratio_{name}"] = float(np.median(times / ms[reference]))
    return rows


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
    equal = equal_terms(table).set_index(["data", "gamma", "method"])
    ks = sorted({int(k) for k in table.n_iter.dropna()})
    headings = (
        "data", "method", *(f"gap, K = {k}" for k in ks), f"ratio single, K = {ks[-1]}",
        f"ratio batch, K = {ks[-1]}", "training, points solved", "gap at equal time, single",
        "gap at equal time, batch", *(f"time at gap {G:g}, batch" for G in _EQUAL_GAPS),
    )  # fmt: skip
    lines = []
    for key, runs in table.groupby(["data", "gamma", "method"], sort=False):
        data, gamma, method = key
        if runs.n_iter.notna().all():
            by_k = runs.set_index("n_iter")
            shown = by_k.loc[ks[-1]]
            cells = [f"{by_k.gap[k]:.1e}" for k in ks]
        else:
            shown = runs.sort_values("tol").iloc[0]
            cells = [f"{shown.gap:.1e} at {shown.tol:g}", *[""] * (len(ks) - 1)]
        terms = equal.loc[key]
        solved = table[(table.data == data) & (table.gamma == gamma) & (table.tol == TIGHT)]
        ms = solved[solved.method == REFERENCE].ms_batch.iloc[0]
        lines.append(
            (
                f"{data}, gamma {gamma:g}",
                str(method),
                *cells,
                f"{shown.ratio_single:.2f}",
                f"{shown.ratio_batch:.2f}",
                f"{1000 * shown.training_s / ms:,.0f}" if shown.training_s else "",
                *(number(terms[name], ".1e", "never") for name in ("gap_single", "gap_batch")),
                *(number(terms[f"at_{G:g}"], ".2f", "never") for G in _EQUAL_GAPS),
            )
        )
    return headings, lines
