"""Twins: nuclear-norm self-expression and low-rank attention."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import low_rank_self_expression
from ...self_expression import LowRank
from ..certificates import nuclear_residual
from ..heads import HeadCall, Tensors, heads
from ..inequalities import Inequalities
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Bound, Identity, calls_of_heads, identity_values, layer_matrix


def build_low_rank(q: Array, k: Array, v: Array) -> LowRank:
    """Half of the directions of the first keys are active."""
    s = np.linalg.svd(k[0], compute_uv=False)
    return LowRank(2 * float(np.median(s[s > 1e-6 * s[0]])) ** 2, dtype=torch.float64)


def build_near_limit(q: Array, k: Array, v: Array) -> LowRank:
    """The weakest direction of the keys is halved."""
    s = np.concatenate([_singular_values(keys)[[0, -1]] for keys in k])
    return LowRank(max(float(s.min()), 1e-3 * float(s.max())) ** 2, dtype=torch.float64)


def build_relative(q: Array, k: Array, v: Array) -> LowRank:
    """Directions with a third of the largest singular value are active."""
    return LowRank(1 / 9, relative=True, dtype=torch.float64)


def build_heads(q: Array, k: Array, v: Array) -> LowRank:
    """Learned penalties of each head."""
    lam = build_low_rank(q, k, v).lam.initial
    return moved(LowRank(lam, num_heads=len(q), learnable=True, dtype=torch.float64))


def penalty(layer: LowRank, k: Array, head: int) -> float:
    scale = 2 * float(np.linalg.norm(k, 2)) ** 2 if layer.relative else 1.0
    return head_value(layer.lam, head) * (scale if scale > 0 else 1.0)


def solve_self(layer: LowRank, call: HeadCall) -> Array:
    return low_rank_self_expression(call.k, lam=penalty(layer, call.k, call.head)) @ call.v


def solve_cross(layer: LowRank, call: HeadCall) -> Array:
    """The filter from the keys' singular value decomposition, as its definition has it."""
    U, s, Rt = np.linalg.svd(call.k, full_matrices=False)
    lam = penalty(layer, call.k, call.head)
    active = s > np.sqrt(lam / 2)
    U, s, Rt = U[:, active], s[active], Rt[active]
    h = 1 - lam / (2 * s**2)
    return (call.q @ Rt.T * (h / s)) @ (U.T @ call.v)


def _certify(twin: Twin, layer: LowRank, inputs: Tensors) -> float:
    """Codes of the keys are optimal, and those of queries are as linear as their points are.

    Queries are ``B k`` up to what no key spans, and their codes B times those of the keys.
    Directions of the keys that are rounding in float32 count as not spanned.
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


def _optimality(layer: LowRank, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """The layer's objective equals the solved problem's dual value, which no objective is under."""
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


def _small_lam(layer: LowRank, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|C - C_0|_2 = min(1, lam / (2 s_r^2))``.

    C_0 is the noiseless solution and s_r the smallest s > 0, whose direction is lost at 1.
    """
    sides = Inequalities()
    for head, (C, X) in heads((layer(q, k, identity_values(k)), k)):
        bound = min(1.0, penalty(layer, X, head) / (2 * _singular_values(X)[-1] ** 2))
        sides.attained(np.linalg.norm(C - low_rank_self_expression(X, lam=0), 2), bound)
    return sides


def _singular_values(X: Array) -> Array:
    s = np.linalg.svd(X, compute_uv=False)
    return s[s > s[0] * max(X.shape) * np.finfo(X.dtype).eps]


_COMMON: dict[str, Any] = {
    "family": "self_expression",
    "source": "Favaro, Vidal and Ravichandran (2011); Attention: Self-Expression Is All You Need",
    "layer": LowRank,
}
register(
    Twin(
        name="low-rank-self-expression",
        relation=Identity(tolerance=1e-8),
        equation="SE-LRR",
        build=build_low_rank,
        options={"penalties-of-heads": build_heads, "relative": build_relative},
        solve=solve_self,
        pairing="self",
        fitted=("lam",),
        certificate=_certify,
        **_COMMON,
    )
)
register(
    Twin(
        name="low-rank-attention",
        relation=Identity(tolerance=1e-8),
        equation="QK-low rank",
        build=build_low_rank,
        options={"penalties-of-heads": build_heads},
        solve=solve_cross,
        pairing="cross",
        fitted=("lam",),
        certificate=_certify,
        **_COMMON,
    )
)
register(
    Twin(
        name="low-rank-relative-penalty",
        relation=Identity(tolerance=1e-8),
        equation="QK-low rank",
        build=build_relative,
        solve=solve_cross,
        pairing="cross",
        covers=lambda layer: layer.relative,
        fitted=("lam",),
        certificate=_certify,
        **_COMMON,
    )
)
register(
    Twin(
        name="low-rank-optimality",
        relation=Bound(),
        equation="SE-LRR",
        build=build_low_rank,
        solve=solve_self,
        pairing="self",
        bound=_optimality,
        # Rounding of all N^2 coefficients adds to each of N singular values.
        logit_range=lambda layer, q, k, v: float(np.sqrt(k.shape[-2])),
        **_COMMON,
    )
)
register(
    Twin(
        name="low-rank-small-penalty",
        relation=Bound(tolerance=1e-8),
        equation="SE-LRR0",
        build=build_near_limit,
        solve=solve_self,
        pairing="self",
        bound=_small_lam,
        **_COMMON,
    )
)
