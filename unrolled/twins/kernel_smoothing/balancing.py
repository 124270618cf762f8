"""Twins: Sinkhorn balancing, its iterates, its limit and the rate of its convergence.

Iterates are a formula: rows and columns are divided by their sums, on the entries instead of the
logarithms. The limit alone is a projection.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from ....solvers import sinkhorn
from ...kernel_smoothing import FeatureKernel, Gaussian, Sinkhorn, Softmax
from ..certificates import balanced_residual, weights_certificate
from ..heads import HeadCall, heads, solve_head
from ..inequalities import Inequalities
from ..registry import Array, Twin, exact_twin, register
from ..relations import Bound, FixedPointLimit, Iterate, Relation, identity_values
from .lifted_points import dot_product_range
from .regression import build_gaussian, gaussian_logits

_TOL = 1e-12
_SHIFT = 0.01  # of two keys, by which two tokens are out of balance


def _build(q: Array, k: Array, v: Array, *, share: float = 0.5) -> Sinkhorn:
    """On logits that differ by 2 at most: balancing takes a few iterations, but more than one."""
    spread = max(float(cdist(a, b).max()) for a, b in zip(q, k, strict=True))
    return Sinkhorn(Gaussian(share * spread, dtype=torch.float64))


def _build_local(q: Array, k: Array, v: Array) -> Sinkhorn:
    return Sinkhorn(build_gaussian(q, k, v))


def _base_matrix(layer: Sinkhorn, call: HeadCall) -> Array:
    return solve_head(exact_twin(layer.base), layer.base, call.of_identity())


def _solve_iterates(layer: Sinkhorn, call: HeadCall) -> Array:
    """The scaling written out, on the entries of the visible tokens, which are its queries too.

    A hidden query weighs the visible keys as they are scaled for the others.
    """
    seen = _visible_tokens(call)
    P = _base_matrix(layer, call)[:, seen]
    for _ in range(layer.n_iter):
        P = P / P[seen].sum(axis=0)
        P = P / P.sum(axis=1, keepdims=True)
    return P @ call.v[seen]


def _solve_limit(layer: Sinkhorn, call: HeadCall) -> Array:
    """The limit of the visible tokens; a hidden query has the row that their columns leave it."""
    seen = _visible_tokens(call)
    A = _base_matrix(layer, call)[:, seen]
    with np.errstate(divide="ignore"):
        balanced = sinkhorn(np.log(A[seen]), tol=_TOL)
    scales = (balanced / A[seen]).mean(axis=0)
    rows = A * scales
    rows /= rows.sum(axis=1, keepdims=True)
    rows[seen] = balanced
    return rows @ call.v[seen]


def _visible_tokens(call: HeadCall) -> Array:
    """Keys that a mask does not hide."""
    if call.visible is None:
        return np.arange(len(call.k))
    return np.flatnonzero(call.visible.any(axis=0))


def _logits(layer: Sinkhorn, call: HeadCall) -> Array:
    if isinstance(layer.base, Gaussian):
        return gaussian_logits(layer.base, call)
    return np.asarray(np.log(_base_matrix(layer, call)))


def _rate(layer: Sinkhorn, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Hilbert's distance ``d(A) = osc(log A - log P)`` to the limit P: ``d(A_n) <= t^2n d(A)``.

    The theorem of Birkhoff and Hopf, with ``t = tanh(max osc(log A_i - log A_m) / 4)`` over pairs
    of rows and osc the range over keys, the same for every query. Two tokens near balance attain
    it up to the square of how far they are from it.
    """
    sides = Inequalities()
    _contract(sides, layer, q, k)
    close = copy.deepcopy(layer)
    close.base = Gaussian(1.0)
    # At q = k = +-x without the shift, t = tanh(x^2): such that a quarter of the distance is left.
    x = np.sqrt(np.arctanh(0.25 ** (0.5 / max(layer.n_iter, 1))))
    pair = torch.tensor([[[x], [-x]]], dtype=q.dtype)
    _contract(sides, close, pair, pair + _SHIFT, share=1 - _SHIFT)
    return sides


def _contract(
    sides: Inequalities, layer: Sinkhorn, q: Tensor, k: Tensor, share: float | None = None
) -> None:
    """Both distances of each query, and that rows sum to 1; a `share` of the bound is reached."""
    for head, (a, b, found) in heads((q, k, layer(q, k, identity_values(k)))):
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix = _base_matrix(layer, HeadCall(a, b, b, head))
            start, reached = np.log(matrix), np.log(found)
            limit = np.log(sinkhorn(start, tol=_TOL))
            widest = max(
                float(np.ptp(start[i:] - row, axis=1).max()) for i, row in enumerate(start)
            )
            before, after = (np.ptp(x - limit, axis=1) for x in (start, reached))
        rate, scale = np.tanh(widest / 4) ** (2 * layer.n_iter), 1 + widest
        if share is None:
            sides.at_most(after, rate * before, scale=scale)
        else:
            sides.attained(after, rate * before, share=share, scale=scale)
        sides.attained(found.sum(axis=1), 1.0)


def _logit_range(layer: Sinkhorn, q: Array, k: Array, v: Array) -> float:
    return exact_twin(layer.base).logit_range(layer.base, q, k, v)


_OPTIONS: dict[str, Callable[..., Sinkhorn]] = {
    "dot-products": lambda q, k, v: Sinkhorn(Softmax(2 / dot_product_range(1.0, q, k)), n_iter=3),
    "features": lambda q, k, v: Sinkhorn(FeatureKernel(), n_iter=3),
}
# As local as still converges in a hundred iterations.
_SMOOTHING: dict[str, Any] = {"build": partial(_build, share=0.25)}
relations: tuple[tuple[str, Relation, Any, Any, dict[str, Any]], ...] = (
    ("sinkhorn-iterates", Iterate(), _build_local, _solve_iterates, {}),
    # Rows of logarithms differ by 4 at most: tanh(1)^80 < 1e-9.
    (
        "sinkhorn-limit", FixedPointLimit(n_iter=40), _build, _solve_limit,
        _SMOOTHING | {"relation": FixedPointLimit(n_iter=100)},
    ),
    ("sinkhorn-rate", Bound(), _build, _solve_iterates, _SMOOTHING),
)  # fmt: skip
for name, relation, build, solve, task in relations:
    register(
        Twin(
            name=name,
            family="kernel_smoothing",
            relation=relation,
            equation="QK-Sinkhorn",
            source="Sinkhorn and Knopp (1967); Franklin and Lorenz (1989)",
            layer=Sinkhorn,
            build=build,
            task=task,
            options={} if isinstance(relation, Bound) else _OPTIONS,
            solve=solve,
            by_rows=False,
            certificate=weights_certificate(_logits, balanced_residual)
            if name == "sinkhorn-limit"
            else None,
            bound=_rate,
            logit_range=_logit_range,
            differentiable_twice=("torch.func",),  # see `squared_distances`
            # A potential of rows, and one of columns.
            passes=lambda layer: 2 * exact_twin(layer.base).passes(layer.base),
        )
    )
