"""Timings of `twinsolve speed lasso-layer`: Lasso layers, forward and backward."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...solvers.inputs import Array
from ...solvers.sparse_coding import duality_gap
from ...unrolled import Call, FixedPoint, SparseCoding, solved_lasso
from ...unrolled.sparse_coding import SparsePenalty, accelerated, proximal_map
from ..timing import Progress
from .contest import OURS, Entrant, Rounds, alone, chosen, compete, installed, run_cases

COLUMNS = [
    "case", "method", "n_signals", "dtype", "n_jobs", "ms", "ratio", "ratio_lowest",
    "ratio_highest", "gap", "gradient_error", "memory_mib", "note",
]  # fmt: skip
_STEP = 1e-6  # of central differences, beside signals and atoms of length one
_CHECKED = 100  # signals whose gradients are compared with differences
_N_ITER = 2000  # of an unrolled loop

Pulled = tuple[Array, Array, Array, float]  # codes; gradients in signals, dictionary, lam


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """``argmin_C |X - C A|_F^2 + lam |C|_1``, and the gradient W of a loss in C."""

    X: Array
    A: Array
    lam: float
    W: Array

    def first(self, n: int) -> "LayerProblem":
        return replace(self, X=self.X[:n], W=self.W[:n])


@dataclass(frozen=True)
class LassoCase:
    """Signals of length one and a dictionary; `coherent` atoms lie near 8 directions."""

    n_signals: int
    n_features: int
    n_atoms: int
    lam: float
    coherent: bool = False
    alone: bool = False

    def make(self, seed: int) -> LayerProblem:
        rng = np.random.default_rng(seed)
        A = _unit(rng.standard_normal((self.n_atoms, self.n_features)))
        if self.coherent:
            near = _unit(rng.standard_normal((8, self.n_features)))
            A = _unit(np.repeat(near, self.n_atoms // 8, axis=0) + A / 3)
        X = _unit(rng.standard_normal((self.n_signals, self.n_features)))
        return LayerProblem(X, A, self.lam, rng.standard_normal((self.n_signals, self.n_atoms)))


CASES = {
    f"{kind}-{lam:g}": LassoCase(1000, 64, 256, lam, kind == "coherent")
    for kind in ("random", "coherent")
    for lam in (0.1, 0.2)
} | {
    "random-1024": LassoCase(1000, 64, 1024, 0.2, alone=True),
    "random-4096": LassoCase(10_000, 256, 4096, 0.1, alone=True),
    "coherent-4096": LassoCase(10_000, 256, 4096, 0.1, True, alone=True),
}


def _unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _pull(problem: LayerProblem, layer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Pulled:
    X, A, lam = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in (problem.X, problem.A, problem.lam)
    )
    codes = layer(X, A, lam)
    gradients = torch.autograd.grad(codes, [X, A, lam], torch.from_numpy(problem.W))
    to_X, to_A, to_lam = (x.numpy() for x in gradients)
    return codes.detach().numpy(), to_X, to_A, float(to_lam)


def ours(problem: LayerProblem, n_jobs: int = 1, start: Tensor | None = None) -> Pulled:
    if start is not None:
        start = start[: len(problem.X)]
    return _pull(problem, lambda X, A, lam: solved_lasso(X, A, lam=lam, start=start, n_jobs=n_jobs))


def _codes_nearby(problem: LayerProblem, n_jobs: int) -> Tensor:
    """Codes in a dictionary that moved by 1 %."""
    rng = np.random.default_rng(1)
    A = _unit(problem.A + 0.01 * _unit(rng.standard_normal(problem.A.shape)))
    nearby = map(torch.from_numpy, (problem.X, A))
    return solved_lasso(*nearby, lam=problem.lam, n_jobs=n_jobs)


def autograd_loop(problem: LayerProblem) -> Pulled:
    """FISTA, with a gradient through its iterations."""

    def layer(X: Tensor, A: Tensor, lam: Tensor) -> Tensor:
        step = torch.linalg.matrix_norm(A.detach(), 2) ** -2
        zero = X.new_zeros(len(X), len(A))
        return accelerated(proximal_map(X, A, SparsePenalty(lam)), zero, [step] * _N_ITER)

    return _pull(problem, layer)


def _longest_step(A: Tensor) -> float:
    """``1 / |A|_2^2`` in units of the safe step, at which ISTA still converges."""
    gram = A.detach() @ A.detach().mT
    return float(torch.linalg.matrix_norm(gram) / torch.linalg.matrix_norm(gram, 2))


def unrolled(problem: LayerProblem) -> Pulled:
    """`SparseCoding` of many iterations, of the longest step."""

    def layer(X: Tensor, A: Tensor, lam: Tensor) -> Tensor:
        base = SparseCoding(1.0, n_iter=_N_ITER, relative_step=_longest_step(A))
        return base.matrix(X / lam, A) * lam  # codes of x / lam at penalty 1

    return _pull(problem, layer)


def fixed_point(problem: LayerProblem) -> Pulled:
    """`FixedPoint` of the longest ISTA steps, at its default tolerance."""

    def layer(X: Tensor, A: Tensor, lam: Tensor) -> Tensor:
        call = Call(X / lam, A, A)
        step = SparseCoding(1.0, relative_step=_longest_step(A)).iteration(call)
        zero = X.new_zeros(len(X), len(A))
        codes: Tensor = FixedPoint(step, max_iter=200_000)(zero)
        return codes * lam

    return _pull(problem, layer)


@cache
def _jaxopt_layer(tol: float | None, step: float) -> Any:
    import jax
    import jaxopt
    from jaxopt.linear_solve import solve_bicgstab

    jax.config.update("jax_enable_x64", True)
    settings: dict[str, Any] = {}
    if tol is not None:  # line search and the default implicit solve stop short of it
        solve = partial(solve_bicgstab, tol=tol, maxiter=20_000)
        settings = {"tol": tol, "maxiter": 200_000, "stepsize": step, "implicit_diff_solve": solve}
    solver = jaxopt.ProximalGradient(
        fun=lambda c, x, A: ((x - c @ A) ** 2).sum(), prox=jaxopt.prox.prox_lasso, **settings
    )

    def code(x: Any, A: Any, lam: Any) -> Any:
        return solver.run(jax.numpy.zeros(len(A)), hyperparams_prox=lam, x=x, A=A).params

    def loss(X: Any, A: Any, lam: Any, W: Any) -> Any:
        codes = jax.vmap(code, (0, None, None))(X, A, lam)
        return (W * codes).sum(), codes

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))


def by_jaxopt(problem: LayerProblem, tol: float | None = None) -> Pulled:
    pull = _jaxopt_layer(tol, 0.5 / float(np.linalg.norm(problem.A, 2)) ** 2)
    values, gradients = pull(problem.X, problem.A, problem.lam, problem.W)
    to_X, to_A, to_lam = map(np.asarray, gradients)
    return np.asarray(values[1]), to_X, to_A, float(to_lam)


@cache
def _cvxpy_layer(n_atoms: int, n_features: int) -> Any:
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer

    x, A = cp.Parameter(n_features), cp.Parameter((n_atoms, n_features))
    lam, c = cp.Parameter(nonneg=True), cp.Variable(n_atoms)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - c @ A) + lam * cp.norm1(c)))
    return CvxpyLayer(problem, parameters=[x, A, lam], variables=[c])


def by_cvxpylayers(problem: LayerProblem, tol: float | None = None) -> Pulled:
    """At a tolerance, its implicit system is solved as a dense one."""
    layer = _cvxpy_layer(*problem.A.shape)
    settings: dict[str, Any] = {}
    if tol is not None:
        settings = {"solve_method": "SCS", "eps_abs": tol, "eps_rel": tol}
        settings |= {"max_iters": 100_000, "mode": "dense"}
    return _pull(
        problem,
        lambda X, A, lam: torch.stack([layer(x, A, lam, solver_args=settings)[0] for x in X]),
    )


@dataclass(frozen=True)
class Peer:
    """A layer by another way; `n_signals` is how many it codes."""

    module: str
    run: Callable[[LayerProblem], Pulled]
    n_signals: int


PEERS = {
    "autograd loop": Peer(OURS, autograd_loop, 20),
    "unrolled ISTA": Peer(OURS, unrolled, 20),
    "FixedPoint of ISTA": Peer(OURS, fixed_point, 10),
    "jaxopt": Peer("jaxopt", by_jaxopt, 100),
    "jaxopt, tol=1e-10": Peer("jaxopt", partial(by_jaxopt, tol=1e-10), 100),
    "cvxpylayers": Peer("cvxpylayers", by_cvxpylayers, 5),
    "cvxpylayers, tol=1e-10": Peer("cvxpylayers", partial(by_cvxpylayers, tol=1e-10), 5),
}


def time_lasso_layer(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time `solved_lasso` and other layers for the Lasso, forward and backward.

    Parameters
    ----------
    cases : iterable of str, optional
        Keys of `CASES`; None is all but the large ones.
    peers : iterable of str, optional
        Keys of `PEERS`; None is all. Those that are not installed are named in the table.
    rounds, n_jobs, seed, directory, progress
        As in `twinsolve.bench.time_sparse_coding`.

    Returns
    -------
    DataFrame
        A row for each case and layer.

    Raises
    ------
    ValueError
        If a name is unknown or a number out of range.

    Examples
    --------
    >>> from twinsolve.bench.speed.lasso_layer import time_lasso_layer
    >>> table = time_lasso_layer(cases=["random-0.2"], peers=["jaxopt"])  # doctest: +SKIP
    """
    options = Rounds(rounds, n_jobs, seed, None if directory is None else Path(directory), progress)
    contestants = chosen(peers, PEERS, "peers")
    versions = {peer.module: installed(peer.module) for peer in contestants.values()}
    found = chosen(cases, CASES, "cases")

    def run(case: LassoCase) -> list[dict[str, Any]]:
        return race(case, {} if case.alone else contestants, versions, options)

    return run_cases("lasso-layer", found, run, options, peers=versions, columns=COLUMNS)


def race(
    case: LassoCase, peers: Mapping[str, Peer], versions: Mapping[str, str | None], options: Rounds
) -> list[dict[str, Any]]:
    problem = case.make(options.seed)
    slopes = find_slopes(problem.first(_CHECKED), options.seed)
    n_jobs = options.n_jobs
    warm = partial(ours, n_jobs=n_jobs, start=_codes_nearby(problem, n_jobs))
    entrants = [
        _Layer(OURS, partial(ours, n_jobs=n_jobs), problem, slopes, n_jobs),
        _Layer(f"{OURS}, warm start", warm, problem, slopes, n_jobs),
    ]
    for name, peer in peers.items():
        own, missing = problem.first(peer.n_signals), versions[peer.module] is None
        note = f"{peer.module} is not installed" * missing
        entrants.append(_Layer(name, peer.run, own, slopes, first=peer.n_signals, note=note))
    rows = compete(entrants, options.rounds, options.progress)
    return [
        row if entrant.note else row | {"memory_mib": alone(entrant)["memory_mib"]}
        for row, entrant in zip(rows, entrants, strict=True)
    ]


Slopes = list[tuple[LayerProblem, Array]]


def find_slopes(problem: LayerProblem, seed: int) -> Slopes:
    """Directions in signals, atoms and lam, with the slopes of the loss of each row along them.

    Slopes are central differences of codes that are solved for to rounding.
    """
    rng = np.random.default_rng(seed)
    to_X, to_A = (_unit(rng.standard_normal(x.shape)) for x in (problem.X, problem.A))
    still = LayerProblem(0 * problem.X, 0 * problem.A, 0.0, problem.W)
    slopes = []
    for way in (replace(still, X=to_X), replace(still, A=to_A), replace(still, lam=1.0)):
        ahead, behind = (
            solved_lasso(
                torch.from_numpy(problem.X + h * way.X),
                torch.from_numpy(problem.A + h * way.A),
                lam=problem.lam + h * way.lam,
            ).numpy()
            for h in (_STEP, -_STEP)
        )
        slopes.append((way, (problem.W * (ahead - behind)).sum(axis=1) / (2 * _STEP)))
    return slopes


def gradient_error(found: Pulled, slopes: Slopes) -> float:
    """The largest relative error of the derivatives along the directions."""
    _, to_X, to_A, to_lam = found
    n = len(to_X)
    errors = []
    for way, by_row in slopes:
        slope = (to_X * way.X[:n]).sum() + (to_A * way.A).sum() + to_lam * way.lam
        expected = by_row[:n]
        errors.append(abs(slope - expected.sum()) / np.linalg.norm(expected))
    return float(max(errors))


class _Layer(Entrant):
    """A layer by the function that codes a problem; `first` signals of it compile the layer."""

    def __init__(
        self, name: str, pull: Callable[[LayerProblem], Pulled], problem: LayerProblem,
        slopes: Slopes, n_jobs: int = 1, first: int = 2, note: str = "",
    ) -> None:  # fmt: skip
        self.pull, self.problem, self.slopes = pull, problem, slopes
        self.count, self.n_jobs, self.first, self.note = len(problem.X), n_jobs, first, note
        self.labels = {
            "method": name, "n_signals": self.count, "dtype": "float64", "n_jobs": n_jobs,
        }  # fmt: skip

    def prepare(self) -> None:
        self.pull(self.problem.first(self.first))

    def run(self) -> None:
        self.pull(self.problem)

    def facts(self) -> dict[str, Any]:
        checked = self.problem.first(_CHECKED)
        found = self.pull(checked)
        gap = duality_gap(checked.X, checked.A, found[0], lam=checked.lam)
        return {"gap": float(gap.max()), "gradient_error": gradient_error(found, self.slopes)}
