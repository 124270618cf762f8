"""Twins: random walks and attention that is applied again and again.

The walk is a formula, a product of matrices; its limit is solved for.
"""

from typing import Any

import numpy as np
from torch import Tensor

from ....solvers.nonlocal_energy import random_walk_limit, random_walk_values
from ...kernel_smoothing import Softmax
from ..heads import HeadCall
from ..registry import Array, Twin, register
from ..relations import FixedPointLimit, Iterate
from .regression import softmax_logit_range
from .smoothing_bounds import attention_matrix, build_local, build_mixing
from .windows import filtering


def _n_iter(layer: Any) -> int:
    return getattr(layer, "n_iter", 1)


def _apply(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The layer `n_iter` times, with the queries and keys of the first."""
    for _ in range(_n_iter(layer)):
        v = layer(q, k, v)
    return v


def _solve_walk(layer: Softmax, call: HeadCall) -> Array:
    """Expected values after a walk of `n_iter` steps."""
    return random_walk_values(
        call.v, attention_matrix(layer, call.q, call.k), n_steps=_n_iter(layer)
    )


def _solve_limit(layer: Softmax, call: HeadCall) -> Array:
    limit = random_walk_limit(call.v, attention_matrix(layer, call.q, call.k))
    return np.tile(limit, (len(call.q), 1))


# tanh(1)^80 < 1e-9: for logits within a range of 2, see AO-C2.
_LIMIT = FixedPointLimit(tolerance=1e-8, n_iter=80)

for name, equation, relation, build, solve, evidence in (
    ("random-walk", "NT-L1", Iterate(n_iter=(1, 2, 5)), build_local, _solve_walk, "formula"),
    ("random-walk-limit", "NT-20", _LIMIT, build_mixing, _solve_limit, "solver"),
):
    register(
        Twin(
            name=name,
            family="nonlocal_energy",
            relation=relation,
            equation=equation,
            source="Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
            layer=Softmax,
            build=build,
            task=filtering(build, solve, _apply) if name == "random-walk-limit" else {},
            solve=solve,
            evidence=evidence,  # type: ignore[arg-type]
            apply=_apply,
            logit_range=softmax_logit_range,
            passes=_n_iter,
        )
    )
