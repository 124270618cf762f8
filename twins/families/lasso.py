"""The certified Lasso of each head, and certificates of the steps of ISTA."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from ...solvers import sparse_code
from ...solvers.sparse_coding import lasso_objective
from ..heads import Array, Tensors
from ..judging.certificates import first_and_last, proximal_residual
from ..pairs import Pair, layer_matrix
from ..relations import Problem, with_n_iter

_TOL = 1e-11


def solved_lasso(
    q: Array,
    k: Array,
    *,
    rate: Callable[[Array], float] | None = None,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    **penalty: Any,
) -> Problem:
    """Solve the Lasso, or the elastic net, of queries in keys; ``rate(coef)`` is its `rate`."""
    solution = sparse_code(
        q, k, tol=_TOL, zero_diagonal=zero_diagonal, nonnegative=nonnegative, **penalty
    )

    def objective(codes: Array) -> float:
        """Return the objective of codes, infinite if they break a constraint."""
        if zero_diagonal and np.diagonal(codes).any():
            return float("inf")
        if nonnegative and (codes < 0).any():
            return float("inf")
        return float(lasso_objective(q, k, codes, **penalty).sum())

    coef = solution.coef.toarray()
    lower_bound = float((solution.objective - solution.gap * (q**2).sum(axis=1)).sum())
    return Problem(coef, objective, lower_bound, np.inf if rate is None else rate(coef))


def certify_steps(
    twin: Pair,
    layer: nn.Module,
    inputs: Tensors,
    points: list[tuple[Array, Array]],
    *,
    step: Callable[[int, int], float],
    lam: Callable[[int, int], Any],
    **settings: Any,
) -> float:
    """Return the worst `proximal_residual` of the first and the last step in all heads.

    `points` holds the queries and keys of each head; ``step(head, t)`` and ``lam(head, t)`` are
    those of iteration t.
    """

    def codes(n_iter: int) -> Array:
        return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])

    residuals = [
        proximal_residual(
            after[head], before[head], Q, K, step=step(head, t), lam=lam(head, t), **settings
        )
        for t, before, after in first_and_last(codes, layer.n_iter)  # type: ignore[arg-type]
        for head, (Q, K) in enumerate(points)
    ]
    return float(np.max(residuals))
