"""Twins: regression on one coordinate, graph attention and logistic attention."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from .....solvers import nadaraya_watson, split_frequencies
from .....solvers.spectral_filtering import high_frequency_gain_bound
from ....kernel_smoothing import Logistic
from ....laws.subject import as_array
from ...certificates import range_of, weights_certificate
from ...heads import Array, HeadCall, heads
from ...pairs import Numerics
from ...registry import add_twin
from ...relations import Bound, Identity, Inequalities
from ..tasks import distances, filtering
from .regression import lift
from .smoothing_bounds import N_EXTREMAL, attain_gain, head_matrices

_WIDTH = 1.2  # of a window's Gaussian, in pixels


def _build(
    q: Array, k: Array, v: Array, *, negative_slope: float | None, of_heads: bool = True
) -> Logistic:
    """Weights at which terms are of size 2, and a negative bias."""
    layer = Logistic(
        q.shape[-1],
        num_heads=len(q) if of_heads else None,
        negative_slope=negative_slope,
        dtype=torch.float64,
    )
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for weight, points in ((layer.query_weight, q), (layer.key_weight, k)):
            drawn = rng.standard_normal(tuple(weight.shape))
            terms = np.abs(points @ drawn).max()
            weight.copy_(torch.from_numpy(2 * drawn / terms))
        layer.bias.fill_(-0.7)
    return layer


def _build_window(q: Array, k: Array, v: Array, *, negative_slope: float | None) -> Logistic:
    """Weights fall as a Gaussian of the distance to the middle of a window."""
    layer = Logistic(1, negative_slope=negative_slope, dtype=torch.float64)
    with torch.no_grad():
        for weight in (layer.query_weight, layer.key_weight):  # terms are negative
            weight.fill_(-0.5 / _WIDTH**2 / (negative_slope or 1))
        layer.bias.zero_()
    return layer


def _covers(layer: Logistic, *, leaky: bool) -> bool:
    return (layer.negative_slope is not None) == leaky


def _parameters(layer: Logistic, head: int) -> tuple[Array, Array, float]:
    parameters = (layer.query_weight, layer.key_weight, layer.bias)
    index = 0 if layer.num_heads is None else head
    u_q, u_k, b = (as_array(p).reshape(-1, *p.shape[-2:])[index][:, 0] for p in parameters)
    return u_q, u_k, float(b[0])


def _solve_rank_one(layer: Logistic, call: HeadCall) -> Array:
    terms = (call.k @ _parameters(layer, call.head)[1])[:, None]
    return nadaraya_watson(*lift(np.ones((len(call.q), 1)), terms), call.v, bandwidth=1.0)


def _solve_leaky(layer: Logistic, call: HeadCall) -> Array:
    u_q, u_k, b = _parameters(layer, call.head)
    logits = np.add.outer(call.q @ u_q, call.k @ u_k) + b
    slope = layer.negative_slope or 1.0
    return np.asarray(softmax(np.where(logits > 0, logits, slope * logits), axis=1) @ call.v)


def _logits(layer: Logistic, call: HeadCall) -> Array:
    u_q, u_k, b = _parameters(layer, call.head)
    terms = (call.q @ u_q)[:, None] + call.k @ u_k + b
    slope = 1.0 if layer.negative_slope is None else layer.negative_slope
    return np.asarray(np.maximum(terms, 0) + slope * np.minimum(terms, 0))


def _gain(layer: Logistic, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|HC[A v]|_F <= |H A H|_2 |HC v|_F <= bound(alpha) |HC v|_F`` with ``alpha = |u_K| gamma``.

    The first is an equality along the singular vectors of H A H.
    """
    sides = Inequalities()
    for head, (keys, values, smoothed) in heads((k, v, layer(q, k, v))):
        gamma = float(np.linalg.norm(keys, axis=1).max())
        alpha = float(np.linalg.norm(_parameters(layer, head)[1])) * gamma
        before, after = (np.linalg.norm(split_frequencies(x)[1]) for x in (values, smoothed))
        sides.at_most(after, high_frequency_gain_bound(len(values), alpha) * before)
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    matrices = head_matrices(partial(_solve_leaky, layer), few_q, few_k)
    attain_gain(sides, partial(layer, few_q, few_k), matrices, v)
    _attain_alpha(sides, layer, k)
    return sides


def _attain_alpha(sides: Inequalities, layer: Logistic, k: Tensor) -> None:
    """Logits of a row range over ``2 alpha``, or slope times that where all are negative.

    It is reached by keys of size gamma along u_K, for queries far along u_Q.
    """
    slope = layer.negative_slope or 1.0
    queries, keys, alphas = [], [], []
    for head, (points,) in heads((k,)):
        u_q, u_k, b = _parameters(layer, head)
        gamma = float(np.linalg.norm(points, axis=1).max())
        alphas.append(gamma * float(np.linalg.norm(u_k)))
        far = (alphas[-1] + abs(b) + 1) * u_q / (u_q @ u_q)
        along = gamma * u_k / np.linalg.norm(u_k)
        queries.append([far, -far])
        keys.append([along, -along])
    pairs = (torch.from_numpy(np.array(x)).to(k.dtype) for x in (queries, keys))
    A = as_array(layer(*pairs, torch.eye(2, dtype=k.dtype).expand(len(k), 2, 2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ranges = np.log(A[..., 0]) - np.log(A[..., 1])
    sides.attained(ranges, 2 * np.outer(alphas, [1, slope]))


def _options(negative_slope: float | None) -> dict[str, Any]:
    options = {"one-for-all-heads": partial(_build, negative_slope=negative_slope, of_heads=False)}
    if negative_slope is not None:
        options["other-slope"] = partial(_build, negative_slope=1.5)
    return options


_add = partial(
    add_twin,
    family="kernel_smoothing",
    source="Velickovic et al. (2018); Anti-Oversmoothing in Deep ViTs, eq. 68",
    layer=Logistic,
    numerics=Numerics(range_of(_logits)),
)
for name, negative_slope, solve in (
    ("logistic-attention", None, _solve_rank_one),
    ("graph-attention", 0.2, _solve_leaky),
):
    _add(
        name=name,
        relation=Identity(certificate=weights_certificate(_logits)),
        equation="AO-68",
        build=partial(_build, negative_slope=negative_slope),
        options=_options(negative_slope),
        task=filtering(
            partial(_build_window, negative_slope=negative_slope), solve, points=distances
        ),
        solve=solve,
        covers=partial(_covers, leaky=negative_slope is not None),
    )
_add(
    name="graph-attention-gain-bound",
    relation=Bound(sides=_gain),
    equation="AO-68b, AO-6",
    build=partial(_build, negative_slope=0.2),
    task=filtering(
        partial(_build_window, negative_slope=0.2), _solve_leaky, points=distances, sides=_gain
    ),
    solve=_solve_leaky,
    covers=partial(_covers, leaky=True),
)
