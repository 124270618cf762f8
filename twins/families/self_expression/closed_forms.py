"""Twins: least squares and nuclear-norm self-expression, ridge and low-rank attention."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge as RidgeRegression
from torch import Tensor

from ....solvers import least_squares_self_expression, low_rank_self_expression
from ....unrolled.self_expression import LowRank, Ridge
from ...heads import Array, HeadCall, Tensors, head_value, heads, move_parameters
from ...judging.certificates import nuclear_residual, ridge_residual
from ...laws.subject import identity_values
from ...pairs import Inputs, Numerics, calls_of_heads, layer_matrix
from ...registry import Twin, add_twin
from ...relations import Bound, Identity, Inequalities


def build_ridge(
    q: Array,
    k: Array,
    v: Array,
    *,
    share: float = 0.01,
    zero_diagonal: bool = False,
    relative: bool = False,
    of_heads: bool = False,
) -> Ridge:
    """Build with a share of the largest eigenvalue of the keys' Gram matrix as penalty."""
    largest = 1.0 if relative else max(float(np.linalg.norm(keys, 2)) ** 2 for keys in k)
    settings: Any = {"zero_diagonal": zero_diagonal, "relative": relative}
    if of_heads:
        settings |= {"num_heads": len(q), "learnable": True}
    return move_parameters(Ridge(share * largest, dtype=torch.float64, **settings))


def penalty(layer: Any, k: Array, head: int) -> float:
    """Return the layer's penalty for these keys.

    A relative penalty is multiplied by a scale: for `LowRank` it makes a penalty of 1 the smallest
    with zero coefficients.
    """
    lam = head_value(layer.lam, head)
    if not layer.relative:
        return lam
    scale = (2 if isinstance(layer, LowRank) else 1) * float(np.linalg.norm(k, 2)) ** 2
    return lam * (scale if scale > 0 else 1.0)


def solve_ridge(layer: Ridge, call: HeadCall) -> Array:
    """Solve by least-squares self-expression of the keys."""
    k = call.k
    lam = penalty(layer, k, call.head)
    return least_squares_self_expression(k, lam=lam, zero_diagonal=layer.zero_diagonal) @ call.v


def regress_ridge(layer: Ridge, call: HeadCall) -> Array:
    """Regress the queries on the keys; with a zero diagonal, each query on the other keys."""
    q, k, v = call.tokens
    regression = RidgeRegression(alpha=penalty(layer, k, call.head), fit_intercept=False)
    if not layer.zero_diagonal:
        return np.atleast_2d(regression.fit(k.T, q.T).coef_) @ v
    query_places, key_places = call.places
    others = [np.flatnonzero(key_places != place) for place in query_places]
    rows = [regression.fit(k[keep].T, x).coef_ @ v[keep] for x, keep in zip(q, others, strict=True)]
    return np.stack(rows)


def _certify_ridge(twin: Twin, layer: Ridge, inputs: Tensors) -> float:
    """Return the worst `ridge_residual` of all heads."""
    codes = layer_matrix(twin, layer, *inputs[:2])
    residuals = [
        ridge_residual(
            C,
            call.q,
            call.k,
            lam=penalty(layer, call.k, call.head),
            zero_diagonal=layer.zero_diagonal,
        )
        for C, call in zip(codes, calls_of_heads(twin, inputs), strict=True)
    ]
    return float(np.max(residuals))


def covers(layer: Ridge, *, zero_diagonal: bool, relative: bool = False) -> bool:
    """Whether a layer has this diagonal and, if `relative`, a relative penalty."""
    return layer.zero_diagonal == zero_diagonal and (layer.relative or not relative)


def _bound_large_penalty(layer: Ridge, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|C - G / lam|_2`` with ``s_1^4 / (lam (s_1^2 + lam))``."""
    sides = Inequalities()
    for head, (C, X) in heads((layer(q, k, identity_values(k)), k)):
        lam, square = penalty(layer, X, head), np.linalg.norm(X, 2) ** 2
        sides.attained(np.linalg.norm(C - X @ X.T / lam, 2), square**2 / (lam * (square + lam)))
    return sides


def _list_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return builders with other settings, by name."""
    options = {"penalties-of-heads": partial(build_ridge, **settings, of_heads=True)}
    if not settings.get("relative"):
        options["relative"] = partial(build_ridge, **settings, relative=True)
    return options


def build_low_rank(q: Array, k: Array, v: Array) -> LowRank:
    """Build the layer so that half of the directions of the first head's keys are active."""
    s = np.linalg.svd(k[0], compute_uv=False)
    return LowRank(2 * float(np.median(s[s > 1e-6 * s[0]])) ** 2, dtype=torch.float64)


def build_near_limit(q: Array, k: Array, v: Array) -> LowRank:
    """Build the layer so that the weakest direction of the keys is halved."""
    s = np.concatenate([_singular_values(keys)[[0, -1]] for keys in k])
    return LowRank(max(float(s.min()), 1e-3 * float(s.max())) ** 2, dtype=torch.float64)


def build_relative(q: Array, k: Array, v: Array) -> LowRank:
    """Build so that directions with over a third of the largest singular value are active."""
    return LowRank(1 / 9, relative=True, dtype=torch.float64)


def build_heads(q: Array, k: Array, v: Array) -> LowRank:
    """Build the layer with learned penalties for each head."""
    lam = build_low_rank(q, k, v).lam.initial
    return move_parameters(LowRank(lam, num_heads=len(q), learnable=True, dtype=torch.float64))


def solve_low_rank(layer: LowRank, call: HeadCall) -> Array:
    return low_rank_self_expression(call.k, lam=penalty(layer, call.k, call.head)) @ call.v


def filter_low_rank(layer: LowRank, call: HeadCall) -> Array:
    """Filter by the singular value decomposition of the keys, as in the definition."""
    U, s, Rt = np.linalg.svd(call.k, full_matrices=False)
    lam = penalty(layer, call.k, call.head)
    active = s > np.sqrt(lam / 2)
    U, s, Rt = U[:, active], s[active], Rt[active]
    h = 1 - lam / (2 * s**2)
    return (call.q @ Rt.T * (h / s)) @ (U.T @ call.v)


def _certify_low_rank(twin: Twin, layer: LowRank, inputs: Tensors) -> float:
    """Judge the codes of the keys by `nuclear_residual`, and those of queries by linearity.

    The part of the queries in the span of the keys is ``B k``: their codes must be B times those of
    the keys. Directions of the keys that are only rounding in float32 do not count.
    """
    q, k = inputs[:2]
    of_keys, of_queries = layer_matrix(twin, layer, k, k), layer_matrix(twin, layer, q, k)
    residuals = []
    for call in calls_of_heads(twin, inputs):
        a, b, head = call.q, call.k, call.head
        residuals.append(nuclear_residual(of_keys[head], b, lam=penalty(layer, b, head)))
        combined = np.linalg.lstsq(b.T, a.T, rcond=1e-6)[0].T @ of_keys[head]
        size = max(float(np.abs(combined).max()), 1e-300)
        residuals.append(float(np.abs(of_queries[head] - combined).max()) / size)
    return float(np.max(residuals))


def _bound_objective(layer: LowRank, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare the layer's objective with its lower bound, the dual value of the solution."""
    sides = Inequalities()
    for head, (C, X) in heads((layer(q, k, identity_values(k)), k)):
        lam = penalty(layer, X, head)
        dual = 2 * (X - low_rank_self_expression(X, lam=lam) @ X)
        dual *= min(1.0, lam / np.linalg.norm(dual @ X.T, 2))
        sides.attained(
            ((X - C @ X) ** 2).sum() + lam * np.linalg.norm(C, "nuc"),
            (dual * X).sum() - (dual**2).sum() / 4,
        )
    return sides


def _bound_small_penalty(layer: LowRank, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|C - C_0|_2`` with ``min(1, lam / (2 s_r^2))``.

    C_0 is the noiseless solution and s_r the smallest s > 0. At 1 its direction is lost.
    """
    sides = Inequalities()
    for head, (C, X) in heads((layer(q, k, identity_values(k)), k)):
        bound = min(1.0, penalty(layer, X, head) / (2 * _singular_values(X)[-1] ** 2))
        sides.attained(np.linalg.norm(C - low_rank_self_expression(X, lam=0), 2), bound)
    return sides


def _singular_values(X: Array) -> Array:
    s = np.linalg.svd(X, compute_uv=False)
    return s[s > s[0] * max(X.shape) * np.finfo(X.dtype).eps]


_SELF, _CROSS = Inputs(pairing="self"), Inputs(pairing="cross")
_add = partial(add_twin, family="self_expression")
_ridge = partial(
    _add,
    source="Lu et al. (2012); Attention: Self-Expression Is All You Need",
    layer=Ridge,
    numerics=Numerics(rounded="output"),
)
_SOLVED = Identity(1e-8, certificate=_certify_ridge)
_REGRESSED = replace(_SOLVED, evidence="solver")
_RIDGES: tuple[tuple[str, Inputs, dict[str, Any], str], ...] = (
    ("ridge-self-expression", _SELF, {"zero_diagonal": False}, "SE-LSR"),
    ("ridge-self-expression-zero-diagonal", _SELF, {"zero_diagonal": True}, "SE-LSRd"),
    ("ridge-attention", _CROSS, {"zero_diagonal": False}, "QK-ridge"),
    ("ridge-attention-zero-diagonal", _CROSS, {"zero_diagonal": True}, "QK-ridge"),
    ("ridge-relative-penalty", _CROSS, {"zero_diagonal": False, "relative": True}, "QK-ridge"),
)
for name, inputs, settings, equation in _RIDGES:
    _ridge(
        name=name,
        relation=_REGRESSED if inputs is _CROSS else _SOLVED,
        equation=equation,
        build=partial(build_ridge, **settings),
        options=_list_options(settings),
        solve=solve_ridge if inputs is _SELF else regress_ridge,
        inputs=inputs,
        covers=partial(covers, **settings),
        fitted={"lam": None},
    )
_ridge(
    name="ridge-large-penalty",
    relation=Bound(sides=_bound_large_penalty),
    equation="SE-14",
    source="Attention: Self-Expression Is All You Need, eq. 14",
    build=partial(build_ridge, share=3.0),
    solve=solve_ridge,
    inputs=_SELF,
    covers=partial(covers, zero_diagonal=False),
)
_low_rank = partial(
    _add,
    source="Favaro, Vidal and Ravichandran (2011); Attention: Self-Expression Is All You Need",
    layer=LowRank,
    build=build_low_rank,
)
_certified = partial(
    _low_rank, relation=Identity(1e-8, certificate=_certify_low_rank), fitted={"lam": None}
)
_certified(
    name="low-rank-self-expression",
    equation="SE-LRR",
    options={"penalties-of-heads": build_heads, "relative": build_relative},
    solve=solve_low_rank,
    inputs=_SELF,
)
_certified(
    name="low-rank-attention",
    equation="QK-low rank",
    options={"penalties-of-heads": build_heads},
    solve=filter_low_rank,
    inputs=_CROSS,
)
_certified(
    name="low-rank-relative-penalty",
    equation="QK-low rank",
    build=build_relative,
    solve=filter_low_rank,
    inputs=_CROSS,
    covers=lambda layer: layer.relative,
)
_low_rank(
    name="low-rank-optimality",
    relation=Bound(sides=_bound_objective),
    equation="SE-LRR",
    solve=solve_low_rank,
    inputs=_SELF,
    # The rounding of all N^2 coefficients changes each of the N singular values.
    numerics=Numerics(logit_range=lambda layer, q, k, v: float(np.sqrt(k.shape[-2]))),
)
_low_rank(
    name="low-rank-small-penalty",
    relation=Bound(1e-8, sides=_bound_small_penalty),
    equation="SE-LRR0",
    build=build_near_limit,
    solve=solve_low_rank,
    inputs=_SELF,
)
