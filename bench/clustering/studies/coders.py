"""Ways to code new points in a fixed dictionary: solved, by K iterations, by learned layers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....solvers import sparse_code
from ....solvers.sparse_coding import lam_max
from ....solvers.sparse_coding.penalty import Penalty
from ....solvers.sparse_coding.row_blocks import Atoms, solve_rows
from ....unrolled import LISTA, UnrolledSelfExpression
from ....unrolled.clustering.training import train
from ....unrolled.sparse_coding import SparsePenalty, accelerated, proximal_map, support_step
from .splits import shuffled_points

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


def coding_problem(data: str, gamma: float, *, seed: int, data_home: str | None = None) -> Problem:
    """A dictionary of half the points, a quarter to learn on, and a quarter of new points.

    `lam` is the median over atoms of the penalty above which an atom's code in the others is zero,
    over `gamma`. Of the Gaussian problem it is ``2 / gamma``, and ``max_j |y . d_j| = 1``.
    """
    if data == GAUSSIAN:
        return _gaussian(gamma, seed)
    X, _ = shuffled_points(data, seed=seed, data_home=data_home)
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
