"""Twins: regression on tokens with positions, in an elliptical metric, and its attention."""

from functools import partial
from typing import Any

import numpy as np
import torch

from .....solvers import nadaraya_watson
from .....solvers.kernel_smoothing import elliptical_metric
from ....attention import Context
from ....kernel_smoothing import ALiBi, Elliptical, Tupe
from ....laws.subject import as_array
from ...certificates import range_of, weights_certificate
from ...heads import Array, HeadCall, head_value, moved
from ...pairs import Inputs, Numerics
from ...registry import add_twin
from ...relations import Identity
from .regression import regress_by_dot_products


def sinusoids(n: int, width: int) -> Array:
    """Positions of IF-5, cut to an odd width if need be."""
    angles = np.arange(n)[:, None] / 10_000 ** (2 * np.arange((width + 1) // 2) / (width + 1))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, -1)[:, :width]


def _build_alibi(q: Array, k: Array, v: Array) -> ALiBi:
    return moved(ALiBi(len(q), learnable=True, dtype=torch.float64))


def _build_given_slopes(q: Array, k: Array, v: Array) -> ALiBi:
    return ALiBi(len(q), slopes=[0.3 / (head + 1) for head in range(len(q))])


def _slope(layer: ALiBi, head: int) -> float:
    """``2^(-8 h / H)`` for H = 2^n heads h; more have every other slope of 2 H heads."""
    relative = head_value(layer.relative_slope, head)
    if layer.slopes is not None:
        return layer.slopes[head] * relative
    power = 1 << (layer.num_heads.bit_length() - 1)
    exponent = 8 * (head + 1) / power if head < power else 4 * (2 * (head - power) + 1) / power
    return float(2**-exponent) * relative


def _solve_alibi(layer: ALiBi, call: HeadCall) -> Array:
    # Index i as i ones and then zeros: the squared distance of two of these is |i - j|.
    q, k = call.q, call.k
    query_places, key_places = call.places
    ones = np.tri(1 + max(query_places.max(), key_places.max()), k=-1)
    slope = _slope(layer, call.head)
    squares = (k**2).sum(axis=1)
    keys = np.c_[k / len(k.T) ** 0.25, np.sqrt((squares.max() - squares) / len(k.T) ** 0.5)]
    queries = np.c_[q / len(q.T) ** 0.25, np.zeros(len(q))]
    index = np.sqrt(2 * slope) * ones
    return nadaraya_watson(
        np.c_[queries, index[query_places]], np.c_[keys, index[key_places]], call.v, bandwidth=1.0
    )


def _alibi_logits(layer: ALiBi, call: HeadCall) -> Array:
    q, k = call.q, call.k
    distances = np.abs(np.subtract.outer(*call.places))
    return q @ k.T / q.shape[1] ** 0.5 - _slope(layer, call.head) * distances


def _build_tupe(q: Array, k: Array, v: Array, **settings: Any) -> Tupe:
    layer = Tupe(len(q) * q.shape[-1], len(q), dtype=torch.float64, **settings)
    shape = tuple(layer.position_weight.shape)
    drawn = np.random.default_rng(0).standard_normal(shape) / np.sqrt(shape[1])
    with torch.no_grad():
        layer.position_weight.copy_(torch.from_numpy(drawn))
    return layer


def _projected(layer: Tupe, call: HeadCall) -> list[Array]:
    """Positions of queries and of keys, projected for one head."""
    own = slice(call.head * call.q.shape[1], (call.head + 1) * call.q.shape[1])
    weights = np.split(as_array(layer.position_weight), 2)
    return [call.positions[p] @ w[own].T for p, w in zip(call.places, weights, strict=True)]


def _solve_tupe(layer: Tupe, call: HeadCall) -> Array:
    q, k = call.q, call.k
    p_q, p_k = _projected(layer, call)
    return regress_by_dot_products(np.c_[q, p_q] / np.sqrt(2 * q.shape[1]), np.c_[k, p_k], call.v)


def _tupe_logits(layer: Tupe, call: HeadCall) -> Array:
    q, k = call.q, call.k
    p_q, p_k = _projected(layer, call)
    return (q @ k.T + p_q @ p_k.T) / np.sqrt(2 * q.shape[1])


def _positions(q: Array, k: Array, v: Array) -> Context:
    return Context(positions=torch.from_numpy(sinusoids(k.shape[1], len(q) * q.shape[-1])))


def _tupe_range(layer: Tupe, q: Array, k: Array, v: Array) -> float:
    """With positions of the width that the layer was made for."""
    positions = torch.from_numpy(sinusoids(k.shape[1], layer.position_weight.shape[1]))
    return range_of(_tupe_logits, lambda *tokens: Context(positions=positions))(layer, q, k, v)


def _consecutive_values(q: Array, k: Array, v: Array) -> Context:
    """Values of two layers, as wide as the keys, that change by another amount in each feature."""
    change = np.cos(np.arange(k.shape[-1])) * k**2
    return Context(values=torch.from_numpy(k + change), previous_values=torch.from_numpy(k.copy()))


def _metric(layer: Elliptical, call: HeadCall) -> Array:
    if layer.metric is None:
        if call.previous_values is None:
            return np.ones(call.values.shape[1])
        return elliptical_metric(call.values, call.previous_values)
    rows = np.atleast_2d(layer.metric.numpy())
    return rows[call.head if len(rows) > 1 else 0]


def _solve_elliptical(layer: Elliptical, call: HeadCall) -> Array:
    # Half of the metric on either side: distances are measured by its root.
    root = np.sqrt(_metric(layer, call))
    return regress_by_dot_products(call.q * root / call.q.shape[1] ** 0.5, call.k * root, call.v)


def _elliptical_logits(layer: Elliptical, call: HeadCall) -> Array:
    return (call.q * _metric(layer, call)) @ call.k.T / call.q.shape[1] ** 0.5


_add = partial(add_twin, family="kernel_smoothing")
_add(
    name="alibi",
    relation=Identity(certificate=weights_certificate(_alibi_logits)),
    equation="IF-ALI",
    source="Press, Smith and Lewis (2022)",
    layer=ALiBi,
    build=_build_alibi,
    options={"default": lambda q, k, v: ALiBi(len(q)), "given-slopes": _build_given_slopes},
    solve=_solve_alibi,
    fitted={"relative_slope": None},
    numerics=Numerics(range_of(_alibi_logits)),
)
_add(
    name="tupe",
    relation=Identity(certificate=weights_certificate(_tupe_logits)),
    equation="IF-30",
    source="Ke, He and Liu (2021)",
    layer=Tupe,
    build=_build_tupe,
    options={"given-width": lambda q, k, v: _build_tupe(q, k, v, head_dim=q.shape[-1])},
    solve=_solve_tupe,
    inputs=Inputs(context=_positions),
    numerics=Numerics(_tupe_range),
)
_elliptical = partial(
    _add,
    relation=Identity(certificate=weights_certificate(_elliptical_logits)),
    equation="IF-31",
    source="Nielsen et al. (2024)",
    layer=Elliptical,
    solve=_solve_elliptical,
)
_elliptical(
    name="elliptical-attention",
    build=lambda q, k, v: Elliptical(),
    inputs=Inputs(context=_consecutive_values),
    numerics=Numerics(range_of(_elliptical_logits, _consecutive_values)),
    covers=lambda layer: layer.metric is None,
)
_elliptical(
    name="elliptical-given-metric",
    build=lambda q, k, v: Elliptical(np.random.default_rng(0).random((len(q), q.shape[-1]))),
    options={
        "one-metric": lambda q, k, v: Elliptical(np.random.default_rng(0).random(q.shape[-1]))
    },
    numerics=Numerics(range_of(_elliptical_logits)),
    covers=lambda layer: layer.metric is not None,
)
