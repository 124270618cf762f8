"""Twins of talking heads: each map is a regression on the features of all heads."""

from typing import Any

import numpy as np
import torch

from ....unrolled.kernel_smoothing import TalkingHeads
from ...heads import AllHeads, Array, HeadCall
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics
from ...registry import add_twin
from ...relations import Identity
from .regression import local_bandwidth, regress_by_dot_products


def _build(q: Array, k: Array, v: Array) -> TalkingHeads:
    """Build with mixes off the identity, of both signs, the second one far from it."""
    layer, generator = TalkingHeads(len(q), dtype=torch.float64), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights, share in ((layer.mix_logits, 0.2), (layer.mix_weights, 0.5)):
            noise = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
            weights.add_(share * noise)
    return layer


def _build_local(q: Array, k: Array, v: Array) -> TalkingHeads:
    """Build with logits scaled as those of Gaussian attention, and weights that sum to one."""
    layer = _build(q, k, v)
    with torch.no_grad():
        layer.mix_logits.copy_(torch.eye(len(q)) * q.shape[-1] ** 0.5 / local_bandwidth(q, k) ** 2)
        layer.mix_weights.div_(layer.mix_weights.sum(dim=0))
    return layer


def _given(call: HeadCall) -> AllHeads:
    return call.all_heads or AllHeads(call.q[None], call.k[None])


def _mixes(layer: TalkingHeads) -> tuple[Array, Array]:
    return as_array(layer.mix_logits), as_array(layer.mix_weights)


def _regress(layer: TalkingHeads, given: AllHeads, head: int, v: Array) -> Array:
    """Regress values on the features of all heads, side by side; queries' have a head's weights.

    With masks each query is regressed on the keys that it sees in this head, without the features
    of heads in which it does not see them.
    """
    n_queries, n_keys = given.queries.shape[1], given.keys.shape[1]
    scale = given.queries.shape[2] ** -0.5
    queries = np.hstack(list(_mixes(layer)[0][:, head, None, None] * given.queries))
    if given.visible is None and given.bias is None:
        return regress_by_dot_products(queries, np.hstack(list(given.keys)), v, scale)
    everything = np.ones((len(given.keys), n_queries, n_keys), dtype=bool)
    visible = everything if given.visible is None else given.visible
    out = np.zeros((n_queries, v.shape[1]))
    for i in range(n_queries):
        near = np.flatnonzero(visible[head, i])
        if len(near) == 0:
            continue
        seen = np.where(visible[:, i, near, None], given.keys[:, near], 0)
        A = regress_by_dot_products(
            queries[i : i + 1], np.hstack(list(seen)), np.eye(len(near)), scale
        )
        A = A if given.bias is None else A * np.exp(given.bias[head, i, near])
        out[i] = A[0] / A.sum() @ v[near]
    return out


def _combine(layer: TalkingHeads, call: HeadCall, mix: Array, v: Array) -> Array:
    """Combine the regressions with the weights ``mix_gh``, without pairs that head h hides."""
    given = _given(call)
    if given.visible is None:
        parts = [_regress(layer, given, head, v) for head in range(len(mix))]
        return np.tensordot(mix[:, call.head], parts, axes=1)
    maps = [_regress(layer, given, head, np.eye(len(v))) for head in range(len(mix))]
    A = np.tensordot(mix[:, call.head], maps, axes=1)
    return np.where(given.visible[call.head], A, 0) @ v


def _solve(layer: TalkingHeads, call: HeadCall) -> Array:
    return _combine(layer, call, _mixes(layer)[1], call.v)


def _term_sizes(layer: TalkingHeads, call: HeadCall) -> Array:
    return _combine(layer, call, np.abs(_mixes(layer)[1]), np.abs(call.v))


def _logit_range(layer: TalkingHeads, q: Array, k: Array, *others: Any) -> float:
    """Return the largest sum of the ranges that the heads' logits bring into one head."""
    ranges = np.ptp(q @ k.swapaxes(-1, -2), axis=-1).max(axis=-1) * q.shape[-1] ** -0.5
    return float((ranges @ np.abs(_mixes(layer)[0])).max())


add_twin(
    name="talking-heads",
    family="kernel_smoothing",
    relation=Identity(evidence="solver"),
    equation="QK-heads",
    source="Shazeer et al. (2020); Touvron et al. (2021)",
    layer=TalkingHeads,
    build=_build,
    options={"initial": lambda q, k, v: TalkingHeads(len(q), dtype=torch.float64)},
    solve=_solve,
    task={"build": _build_local},
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_logit_range, summed=_term_sizes),
)
