"""Twins: unrolled ADMM, its iterates, and the elastic net that it tends to."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import sparse_code
from ....solvers.sparse_coding import lam_max, lasso_objective
from ....solvers.sparse_coding.penalty import Penalty
from ...self_expression import UnrolledADMM
from ..heads import HeadCall
from ..parameters import head_value
from ..registry import Array, Problem, Twin, register
from ..relations import Iterate, Limit, Relation

_TOL = 1e-11


def _build(q: Array, k: Array, v: Array, **settings: Any) -> UnrolledADMM:
    return UnrolledADMM(10, 0.1, dtype=torch.float64, **{"l1_ratio": 0.7} | settings)


def _problem(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Problem:
    """The solver's penalty weighs ``r |c|_1 + (1 - r) / 2 |c|^2``, and is positive."""
    q, k = call.q, call.k
    largest = lam_max(q, k, zero_diagonal=zero_diagonal)
    lam = head_value(layer.lam, call.head) * largest / layer.l1_ratio
    penalty: dict[str, Any] = {
        "lam": np.maximum(lam, np.finfo(np.float64).tiny),
        "l1_ratio": layer.l1_ratio,
    }
    solution = sparse_code(q, k, tol=_TOL, zero_diagonal=zero_diagonal, **penalty)

    def objective(codes: Array) -> float:
        if zero_diagonal and np.diagonal(codes).any():
            return float("inf")
        return float(lasso_objective(q, k, codes, **penalty).sum())

    lower_bound = float((solution.objective - solution.gap * (q**2).sum(axis=1)).sum())
    return Problem(solution.coef.toarray(), objective, lower_bound, rate=float("inf"))


def iterate(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Array:
    """Over-relaxed ADMM, whose ridge problems are solved by the singular values of the keys."""
    q, k = call.q, call.k
    ratio, relaxation = layer.l1_ratio, 1.6
    lam = head_value(layer.lam, call.head) * lam_max(q, k, zero_diagonal=zero_diagonal)
    penalty = Penalty(lam / ratio, ratio, own=np.arange(len(q)) if zero_diagonal else None)
    beta = _beta(layer, k, call.head)
    left, singular, _ = np.linalg.svd(k, full_matrices=False)
    shrunk = singular**2 + beta / 2
    codes = dual = np.zeros((len(q), len(k)))
    for _ in range(layer.n_iter):
        given = codes - dual
        seen = (q @ k.T + beta / 2 * given) @ left / shrunk
        ridge = given + (seen - given @ left) @ left.T
        relaxed = relaxation * ridge + (1 - relaxation) * codes
        codes = penalty.prox(relaxed + dual, 2 / beta)
        dual = dual + relaxed - codes
    return codes @ call.v


def _beta(layer: UnrolledADMM, k: Array, head: int) -> float:
    scale = 2 * head_value(layer.lam, head) / head_value(layer.threshold, head)
    return scale * float((k**2).sum(axis=1).mean())


def _logit_range(layer: UnrolledADMM, q: Array, k: Array, v: Array) -> float:
    """What rounding of ``Q - B K`` grows by: ``|K| |(K^T K + beta/2 I)^-1 K^T|`` at most."""
    return max(
        np.linalg.norm(keys, 2) / (2 * np.sqrt(_beta(layer, keys, head) / 2))
        for head, keys in enumerate(k)
    )


def _solve(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Array:
    return _problem(layer, call, zero_diagonal=zero_diagonal).coef @ call.v


def _express(layer: UnrolledADMM, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return layer(q) @ v


def _code(layer: UnrolledADMM, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return layer(q, k) @ v


def _add(name: str, relation: Relation, solve: Any, *, zero_diagonal: bool) -> None:
    register(
        Twin(
            name=name,
            family="self_expression",
            relation=relation,
            equation="CL-2",
            source="Elhamifar and Vidal (2013); Attention: Self-Expression Is All You Need",
            layer=UnrolledADMM,
            build=_build,
            options={"lasso": partial(_build, l1_ratio=1.0, threshold=0.1)},
            solve=partial(solve, zero_diagonal=zero_diagonal),
            problem=partial(_problem, zero_diagonal=zero_diagonal),
            fitted=("lam",),
            pairing="self" if zero_diagonal else "cross",
            apply=_express if zero_diagonal else _code,
            logit_range=_logit_range,
            passes=lambda layer: layer.n_iter,
        )
    )


_ITERATES = Iterate(n_iter=(1, 2, 5))
for suffix, zero_diagonal in (("", True), ("-new-points", False)):
    _add(f"unrolled-admm{suffix}", _ITERATES, iterate, zero_diagonal=zero_diagonal)
    _add(f"unrolled-admm{suffix}-limit", Limit(n_iter=2000), _solve, zero_diagonal=zero_diagonal)
