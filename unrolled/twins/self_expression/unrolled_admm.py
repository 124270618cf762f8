"""Twins: unrolled ADMM, and the elastic net that it tends to."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers import lam_max, lasso_objective, sparse_code
from ...self_expression import UnrolledADMM
from ..parameters import head_value
from ..registry import Array, Problem, Twin, register
from ..relations import Limit

_TOL = 1e-11


def _build(q: Array, k: Array, v: Array) -> UnrolledADMM:
    return UnrolledADMM(10, 0.1, l1_ratio=0.7, dtype=torch.float64)


def _problem(
    layer: UnrolledADMM, q: Array, k: Array, head: int = 0, *, zero_diagonal: bool
) -> Problem:
    """The solver's penalty weighs ``r |c|_1 + (1 - r) / 2 |c|^2``, and is positive."""
    lam = head_value(layer.lam, head) * lam_max(q, k, zero_diagonal=zero_diagonal) / layer.l1_ratio
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


def _solve(
    layer: UnrolledADMM,
    q: Array,
    k: Array,
    v: Array,
    head: int = 0,
    context: Any = None,
    *,
    zero_diagonal: bool,
) -> Array:
    return _problem(layer, q, k, head, zero_diagonal=zero_diagonal).coef @ v


for name, zero_diagonal in (("limit", True), ("new-points-limit", False)):
    register(
        Twin(
            name=f"unrolled-admm-{name}",
            family="self_expression",
            relation=Limit(n_iter=2000),
            equation="CL-2",
            source="Elhamifar and Vidal (2013); Attention: Self-Expression Is All You Need",
            layer=UnrolledADMM,
            build=_build,
            solve=partial(_solve, zero_diagonal=zero_diagonal),
            problem=partial(_problem, zero_diagonal=zero_diagonal),
            pairing="self" if zero_diagonal else "cross",
            apply=(lambda layer, q, k, v: layer(q) @ v)
            if zero_diagonal
            else (lambda layer, q, k, v: layer(q, k) @ v),
        )
    )
