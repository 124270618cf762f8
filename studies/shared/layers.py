"""Learned against solved at equal time and at equal gap: codes of new points by K layers.

Lasso codes of new points in a dictionary of half the points. Gaps are (F - F*) / |x|^2 against a
certified lower bound of F*, over new points. Times are medians over rounds in turns, on one thread,
as ratios to the certified solver at 1e-6 whose dictionary is prepared; training is told as the
number of points that this solver codes in the same time, in batches. Layers and iterations run in
float32, the solver in float64. Support-adaptive ISTA takes an eigenvalue for each row whose support
changed. ALISTA is left out, as its limit is no Lasso solution; matrices of n_atoms x n_atoms are
learned on Gaussian 64 x 256 alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from shared.pictures import draw_lines
from shared.points import SUBSPACES, prose, run_seeded, shuffled_points, with_times
from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.summary import folded, grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.solvers import sparse_code
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.solvers.sparse_coding.penalty import Penalty
from twinsolve.solvers.sparse_coding.row_blocks import Atoms, solve_rows
from twinsolve.unrolled import LISTA, UnrolledSelfExpression
from twinsolve.unrolled.clustering.training import train
from twinsolve.unrolled.sparse_coding import SparsePenalty, accelerated, proximal_map, support_step

Array = np.ndarray

REFERENCE, ONE_CALL = "certified", "certified, one call"
ADAPTIVE = "support-adaptive ISTA"
TIGHT = 1e-6
TOLERANCES = (1e-2, 1e-4, TIGHT)
GAUSSIAN = "Gaussian 64 x 256"
_PARAMETRIZATIONS = {
    "learned steps": "step",
    "learned W (coupled)": "coupled",
    "learned U, V (adaptive)": "adaptive",
    "learned B, M (LISTA)": "lista",
}
ON_DICTIONARY = "learned steps, on D alone"
LEARNED = (*_PARAMETRIZATIONS, ON_DICTIONARY)
_MOST_ATOMS, _MOST_TRAINING, _MOST_NEW = 512, 400, 500
_BATCH = 64
_MOST_FREE = 256  # atoms for which the n_atoms x n_atoms matrices of LISTA are learned


@dataclass(frozen=True)
class Problem:
    """Lasso codes ``min_c |y - c D|^2 + lam |c|_1`` of new points; others are there to learn on."""

    dictionary: Array
    training: Array
    new: Array
    lam: float
    atoms_are_points: bool = True


@dataclass(frozen=True)
class Coder:
    """A method with its dictionary at hand: ``code(Y)`` returns the codes of rows."""

    method: str
    n_iter: int | None
    tol: float | None
    code: Callable[[Array], Any]
    training_s: float = 0.0


def coding_problem(data: Data | str, gamma: float, *, seed: int) -> Problem:
    """A dictionary of half the points, a quarter to learn on, and a quarter of new points.

    `lam` is the median over atoms of the penalty above which an atom's code in the others is zero,
    over `gamma`. Of the Gaussian problem it is ``2 / gamma``, and ``max_j |y . d_j| = 1``.
    """
    if isinstance(data, str):
        return _gaussian(gamma, seed)
    X, _ = shuffled_points(data, seed=seed)
    D, T, Y = np.split(X, [len(X) // 2, 3 * len(X) // 4])
    D = D[:_MOST_ATOMS]
    lam = float(np.median(lam_max(D, D, zero_diagonal=True))) / gamma
    return Problem(D, T[:_MOST_TRAINING], Y[:_MOST_NEW], lam)


def _gaussian(gamma: float, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((256, 64)), rng.standard_normal((900, 64))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    Y /= np.abs(Y @ D.T).max(axis=1, keepdims=True)
    return Problem(D, Y[:400], Y[400:], 2 / gamma, atoms_are_points=False)


def solved_coders(problem: Problem) -> list[Coder]:
    """The certified solver on atoms prepared once, and by the public call that prepares them."""
    atoms, D, lam = Atoms(problem.dictionary), problem.dictionary, problem.lam

    def kept(Y: Array, tol: float) -> Any:
        penalty = Penalty(np.full(len(Y), lam))
        return solve_rows(Y, atoms, penalty, tol=tol, max_rounds=100).coef

    def call(Y: Array, tol: float) -> Any:
        return sparse_code(Y, D, lam=lam, tol=tol).coef

    return [
        Coder(name, None, tol, partial(run, tol=tol))
        for name, run in ((REFERENCE, kept), (ONE_CALL, call))
        for tol in TOLERANCES
    ]


def iterated_coders(problem: Problem, n_iter: int) -> list[Coder]:
    """ISTA, FISTA and support-adaptive ISTA from zero codes, in float32."""
    D, lam = _tensor(problem.dictionary), problem.lam
    settings: dict[str, Any] = {"lam": lam, "norm": _square_norm(D.double()), "n_iter": n_iter}
    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "ISTA": LISTA(D, n_iter, lam),
        "FISTA": partial(fista_codes, D, **settings),
        ADAPTIVE: partial(support_codes, D, **settings),
    }
    return [Coder(name, n_iter, None, _inferring(run)) for name, run in runs.items()]


def learned_coders(
    problem: Problem, n_iters: Sequence[int], *, n_steps: int, seed: int
) -> Iterator[Coder]:
    """Layers trained on the objective, from the fewest iterations up.

    A deeper layer begins as the one before, followed by ISTA iterations; its training time counts
    theirs. Signals beside the dictionary are learned on, and its atoms alone where they are points.
    """
    D, T, lam = _tensor(problem.dictionary), _tensor(problem.training), problem.lam
    for name, parametrization in _PARAMETRIZATIONS.items():
        if parametrization == "lista" and len(D) > _MOST_FREE:
            continue
        layers = [LISTA(D, n, lam, parametrization) for n in n_iters]  # type: ignore[arg-type]
        losses = [partial(_loss, layer, T) for layer in layers]
        for layer, seconds in _chain(layers, losses, len(T), n_steps, seed):
            yield Coder(name, layer.n_iter, None, _inferring(layer), seconds)
    if problem.atoms_are_points:
        owns = [UnrolledSelfExpression(n, lam) for n in n_iters]
        losses = [partial(_own_loss, own, D) for own in owns]
        for own, seconds in _chain(owns, losses, len(D), n_steps, seed):
            yield Coder(ON_DICTIONARY, own.n_iter, None, _inferring(partial(own, keys=D)), seconds)


def _chain(
    layers: list[Any], losses: list[Any], n_points: int, n_steps: int, seed: int
) -> Iterator[tuple[Any, float]]:
    """Each layer trained from where the one before ended, and the seconds spent up to it."""
    seconds, before = 0.0, None
    for layer, loss in zip(layers, losses, strict=True):
        if before is not None:
            _begin(layer, before)
        start = time.perf_counter()
        train(
            layer,
            loss,
            n_points,
            max_iter=n_steps,
            batch_size=min(_BATCH, n_points // 2),
            learning_rate=1e-3,
            rates=dict.fromkeys(("step", "lam", "threshold"), 0.05),
            n_judged=min(4 * _BATCH, n_points // 2),
            seed=seed,
        )
        seconds += time.perf_counter() - start
        yield layer, seconds
        before = layer


def _begin(layer: nn.Module, shorter: nn.Module) -> None:
    state = layer.state_dict()
    for name, value in shorter.state_dict().items():
        target = state[name]
        (target[: len(value)] if target.ndim else target).copy_(value)


def fista_codes(D: Tensor, Y: Tensor, *, lam: float, norm: float, n_iter: int) -> Tensor:
    """FISTA with step ``1 / norm``, where `norm` is ``|D|_2^2``."""
    zero = torch.zeros(len(Y), len(D), dtype=D.dtype)
    return accelerated(proximal_map(Y, D, SparsePenalty(lam)), zero, [1 / norm] * n_iter)


def support_codes(D: Tensor, Y: Tensor, *, lam: float, norm: float, n_iter: int) -> Tensor:
    """ISTA with support-adaptive steps (LS-1); a curvature is kept while its support stays."""
    codes = torch.zeros(len(Y), len(D), dtype=D.dtype)
    move = proximal_map(Y, D, SparsePenalty(lam))
    curvature = torch.full((len(Y), 1), norm, dtype=D.dtype)
    on = changed = codes != 0
    for _ in range(n_iter):
        for row in changed.any(dim=1).nonzero()[:, 0].tolist():
            curvature[row] = _square_norm(D[on[row]]) or norm
        codes = support_step(codes, move, curvature, norm)
        before, on = on, codes != 0
        changed = on != before
    return codes


def _square_norm(atoms: Tensor) -> float:
    """``|D_S|_2^2``, from the smaller of its two Gram matrices; 0 of no atoms."""
    if not len(atoms):
        return 0.0
    gram = atoms @ atoms.mT if len(atoms) <= atoms.shape[1] else atoms.mT @ atoms
    return float(torch.linalg.eigvalsh(gram)[-1])


def _loss(layer: LISTA, points: Tensor, rows: Tensor) -> Tensor:
    return layer.objective(points[rows], layer(points[rows])).mean()


def _own_loss(layer: UnrolledSelfExpression, points: Tensor, rows: Tensor) -> Tensor:
    queries = points[rows]
    codes = layer(queries, points, own=rows)
    return layer.objective(queries, codes, points, own=rows).mean()


def _inferring(run: Callable[[Tensor], Tensor]) -> Callable[[Array], Array]:
    def code(Y: Array) -> Array:
        with torch.inference_mode():
            return run(_tensor(Y)).numpy()

    return code


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(X.astype(np.float32))


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
    run = run_seeded(code_new_points, jobs, names)
    return Study("layers", prose(__doc__), run, layer_lines, figures)


def code_new_points(
    *,
    data: Data | str,
    gamma: float,
    n_iters: list[int],
    n_steps: int,
    rounds: int,
    batch: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Rows of one data set: a method at K iterations or at a tolerance each."""
    problem = coding_problem(data, gamma, seed=seed)
    coders = solved_coders(problem)
    for n_iter in n_iters:
        coders += iterated_coders(problem, n_iter)
    coders += learned_coders(problem, n_iters, n_steps=n_steps, seed=seed)
    gap = partial(gaps, problem, bound=lower_bound(problem))
    rows = [
        {
            "data": data if isinstance(data, str) else data.name,
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
    return grouped_lines(table, [*case, "method"], cells)


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
