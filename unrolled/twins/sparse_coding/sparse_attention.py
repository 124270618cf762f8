"""Twins: ISTA for sparse coding and sparse attention."""

from typing import Any

import numpy as np
import torch

from ....solvers import ista, lam_max, lasso_objective, sparse_code
from ...sparse_coding import SparseCoding
from ..parameters import head_value
from ..registry import Array, Problem, Twin, register
from ..relations import Iterate, Limit, Rate

_TOL = 1e-11


def build_sparse_coding(q: Array, k: Array, *, zero_diagonal: bool) -> SparseCoding:
    """Five iterations, at 3 % of the penalty that makes the median code zero."""
    largest = [lam_max(a, b, zero_diagonal=zero_diagonal) for a, b in zip(q, k, strict=True)]
    lam = 0.03 * float(np.median(largest))
    return SparseCoding(lam, zero_diagonal=zero_diagonal, dtype=torch.float64)


def step_length(layer: SparseCoding, k: Array, head: int) -> float:
    norm = float(np.linalg.norm(k.T @ k))
    return head_value(layer.relative_step, head) / norm if norm > 0 else 1.0


def solve_ista(
    layer: SparseCoding, q: Array, k: Array, v: Array, head: int = 0, context: Any = None
) -> Array:
    codes = ista(
        q,
        k,
        lam=head_value(layer.lam, head),
        n_iter=layer.n_iter,
        step=step_length(layer, k, head),
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    ).coef
    return codes @ v


def lasso_problem(layer: SparseCoding, q: Array, k: Array, head: int = 0) -> Problem:
    """The Lasso behind the layer, with its certified solution."""
    lam = head_value(layer.lam, head)
    solution = sparse_code(
        q,
        k,
        lam=lam,
        tol=_TOL,
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    )

    def objective(codes: Array) -> float:
        if layer.zero_diagonal and np.diagonal(codes).any():
            return float("inf")
        if layer.nonnegative and (codes < 0).any():
            return float("inf")
        return float(lasso_objective(q, k, codes, lam=lam).sum())

    coef = solution.coef.toarray()
    lower_bound = float((solution.objective - solution.gap * (q**2).sum(axis=1)).sum())
    return Problem(coef, objective, lower_bound, _rate(layer, k, coef, head))


def _rate(layer: SparseCoding, k: Array, coef: Array, head: int) -> float:
    """``|C*|_F^2 / step``, proved for steps up to ``1 / |K|_2^2`` (SE-15)."""
    step = step_length(layer, k, head)
    if step * np.linalg.norm(k, 2) ** 2 > 1 + 1e-12:
        return float("inf")
    return float((coef**2).sum()) / step


def ista_logit_range(layer: SparseCoding, q: Array, k: Array, v: Array) -> float:
    return max(
        float(np.ptp(a @ b.T)) * step_length(layer, b, head)
        for head, (a, b) in enumerate(zip(q, k, strict=True))
    )


for name, relation, equation in (
    ("sparse-coding-iterates", Iterate(), "SE-18"),
    ("sparse-coding-rate", Rate(), "SE-18"),
    ("sparse-coding-limit", Limit(), "SE-17"),
):
    register(
        Twin(
            name=name,
            family="sparse_coding",
            relation=relation,
            equation=equation,
            source="Attention: Self-Expression Is All You Need, eq. 16-18",
            layer=SparseCoding,
            build=lambda q, k, v: build_sparse_coding(q, k, zero_diagonal=False),
            solve=solve_ista,
            pairing="cross",
            covers=lambda layer: not layer.zero_diagonal,
            problem=lasso_problem,
            logit_range=ista_logit_range,
            passes=lambda layer: max(layer.n_iter, 1),
        )
    )
