"""Twins of Hopfield attention: its steps, their limit, and two bounds on a step.

The solvers are regressions and the retrieval of a fixed point. Bounds are those of the energy.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...solvers.associative_memory import (
    hopfield_energy,
    retrieval_error_bound,
    retrieval_lipschitz_bound,
    retrieval_step,
    retrieve,
)
from ...unrolled.associative_memory import Hopfield
from ..heads import Array, HeadCall, heads
from ..judging.certificates import weights_certificate
from ..laws.subject import as_array
from ..pairs import Inputs, Numerics
from ..registry import add_twin
from ..relations import Bound, FixedPointLimit, Inequalities, Iterate, with_n_iter
from .kernel_smoothing.regression import local_bandwidth, regress_by_dot_products

_N_STEPS = 3
_CONTRACTION, _N_LIMIT = 0.5, 40  # 0.5^40 is 1e-12


def _beta(layer: Hopfield, q: Array) -> float:
    return q.shape[-1] ** -0.5 if layer.beta is None else layer.beta


def _build(q: Array, k: Array, v: Array) -> Hopfield:
    """Build with the logits of Gaussian attention to near keys."""
    return Hopfield(2, local_bandwidth(k, k) ** -2)  # the relation sets its own number of steps


def _build_contraction(q: Array, k: Array, v: Array) -> Hopfield:
    """Build with a beta at which steps are contractions in every head."""
    slope = max(retrieval_lipschitz_bound(keys, beta=1.0) for keys in k)
    return Hopfield(_N_LIMIT, _CONTRACTION / max(slope, np.finfo(np.float64).tiny))


def _regress(layer: Hopfield, states: Array, values: Array, call: HeadCall) -> Array:
    """Regress values on the keys at the states."""
    return regress_by_dot_products(states, call.k, values, _beta(layer, call.k), call.bias)


def _solve(layer: Hopfield, call: HeadCall) -> Array:
    """Regress the keys at the states, again and again, and the values at last."""
    states = call.q
    for _ in range(layer.n_iter - 1):
        states = _regress(layer, states, call.k, call)
    return _regress(layer, states, call.v, call)


def _solve_limit(layer: Hopfield, call: HeadCall) -> Array:
    """Retrieve the fixed points, and regress the values there."""
    found = retrieve(call.q, call.k, beta=_beta(layer, call.k), tol=1e-12)
    return _regress(layer, found.states, call.v, replace(call, q=found.states))


def _logits(layer: Hopfield, call: HeadCall) -> Array:
    """Return the logits of the last step, at states that are retrieved step by step."""
    beta, states = _beta(layer, call.k), call.q
    for _ in range(layer.n_iter - 1):
        states, _ = retrieval_step(states, call.k, beta=beta)
    return np.asarray(beta * states @ call.k.T)


def _range(layer: Hopfield, q: Array, k: Array, *others: Any) -> float:
    """Return the largest range of logits of queries or, as all later states are means, of keys."""
    pairs = [(a, b) for a, b in zip(q, k, strict=True)] + [(b, b) for b in k]
    return _beta(layer, k) * max(float(np.ptp(a @ b.T, axis=1).max()) for a, b in pairs)


def _bound_energy(layer: Hopfield, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``1/2 |f(xi) - xi|^2`` with what the energy loses in a step, for several steps.

    Both are equal for a memory of one pattern.
    """
    sides = Inequalities()
    _compare_energies(sides, layer, q, k, attained=False)
    _compare_energies(sides, layer, q, k[:, :1], attained=True)
    return sides


def _compare_energies(
    sides: Inequalities, layer: Hopfield, q: Tensor, k: Tensor, *, attained: bool
) -> None:
    states = q
    for t in range(1, _N_STEPS + 1):
        after = with_n_iter(layer, t)(q, k, k)
        for _, (patterns, xi, moved) in heads((k, states, after)):
            beta = _beta(layer, patterns)
            energies = [hopfield_energy(x, patterns, beta=beta) for x in (xi, moved)]
            size = energies[0] + np.square(patterns).sum(axis=1).max() + np.square(xi).sum(axis=1)
            add = sides.attained if attained else sides.at_most
            add(((moved - xi) ** 2).sum(axis=1) / 2, energies[0] - energies[1], scale=size)
        states = after


def _bound_retrieval(layer: Hopfield, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare what a step from each key misses of it with the bound.

    For two opposite patterns, of norm M, it is ``1 / (1 + exp(-2 beta M^2))`` of the bound.
    """
    sides, step = Inequalities(), with_n_iter(layer, 1)
    for _, (patterns, found) in heads((k, step(k, k, k))):
        M = np.linalg.norm(patterns, axis=1).max()
        bound = retrieval_error_bound(patterns, patterns, beta=_beta(layer, patterns)).diagonal()
        missed = np.linalg.norm(found - patterns, axis=1)
        sides.at_most(missed, np.minimum(bound, 2 * M), scale=2 * M)
    pair = _opposite(layer, k)
    for _, (patterns, found) in heads((pair, step(pair, pair, pair))):
        bound = retrieval_error_bound(patterns, patterns, beta=_beta(layer, patterns)).diagonal()
        M = np.linalg.norm(patterns[0])
        share = 1 / (1 + np.exp(-2 * _beta(layer, patterns) * M**2))
        missed = np.linalg.norm(found - patterns, axis=1)
        sides.attained(missed, bound, share=share, scale=2 * M)
    return sides


def _opposite(layer: Hopfield, k: Tensor) -> Tensor:
    """Return two opposite patterns for each head, of the logits 4 and -4."""
    x = torch.zeros_like(k[:, :1])
    x[..., 0] = (4 / _beta(layer, as_array(k))) ** 0.5
    return torch.cat([x, -x], dim=1)


_add = partial(
    add_twin,
    family="associative_memory",
    source="Ramsauer et al. (2021)",
    layer=Hopfield,
    build=_build,
    solve=_solve,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(_range, passes=lambda layer: layer.n_iter),
)
_add(
    name="hopfield-attention",
    relation=Iterate(n_iter=(1, 2, 5), certificate=weights_certificate(_logits)),
    equation="HM-1",
    options={"default-beta": lambda q, k, v: Hopfield(3)},
)
_add(
    name="hopfield-limit",
    relation=FixedPointLimit(n_iter=_N_LIMIT, evidence="solver"),
    equation="HM-1",
    build=_build_contraction,
    solve=_solve_limit,
)
_steps = Numerics(_range, passes=lambda layer: _N_STEPS)
_add(name="hopfield-descent", relation=Bound(sides=_bound_energy), equation="HM-1", numerics=_steps)
_add(
    name="hopfield-retrieval",
    relation=Bound(sides=_bound_retrieval),
    equation="HM-2",
    numerics=_steps,
)
