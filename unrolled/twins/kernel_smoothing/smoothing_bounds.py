"""Twins: what attention does to high frequencies, in one layer and with depth, and its bounds."""

from functools import partial

import numpy as np
from torch import Tensor

from ....solvers import (
    ergodicity_coefficient,
    high_frequency_gain,
    high_frequency_gain_bound,
    smoother_matrix,
    split_frequencies,
)
from ...kernel_smoothing import Softmax
from ..heads import heads
from ..registry import Array, Twin, register
from ..relations import Bound
from .lifted_points import dot_product_range, lift, scale_of
from .regression import softmax_logit_range, solve_softmax

_DEPTH = 3


def build_mixing(q: Array, k: Array, v: Array) -> Softmax:
    """Logits within a range of 2: they are bounded by alpha = 1 up to a shift of each row."""
    return Softmax(scale=2 / dot_product_range(1.0, q, k))


def attention_matrix(layer: Softmax, q: Array, k: Array) -> Array:
    """The layer's matrix, as that of a regression."""
    return smoother_matrix(*lift(q, k), bandwidth=scale_of(layer, q) ** -0.5)


def _alpha(layer: Softmax, q: Array, k: Array) -> float:
    return float(np.ptp(scale_of(layer, q) * q @ k.T, axis=1).max()) / 2


def _size(x: Array) -> float:
    return float(np.linalg.norm(split_frequencies(x)[1]))


def _one_layer(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> tuple[Array, Array]:
    """``|HC[A v]|_F <= |H A H|_2 |HC v|_F``, and the same with the bound from the logits."""
    lhs, rhs = [], []
    for _, (queries, keys, values, smoothed) in heads((q, k, v, layer(q, k, v))):
        sharp = high_frequency_gain(attention_matrix(layer, queries, keys))
        bound = high_frequency_gain_bound(len(keys), _alpha(layer, queries, keys))
        lhs += 2 * [_size(smoothed)]
        rhs += [sharp * _size(values), bound * _size(values)]
    return np.array(lhs), np.array(rhs)


def _many_layers(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> tuple[Array, Array]:
    """Ranges shrink by ``tau(A_1) ... tau(A_L)`` at least, high frequencies by ``tanh(alpha)^L``.

    Queries and keys change places from layer to layer, so that the matrices differ.
    """
    turns = [(q, k), (k, q)]
    taus, alphas = [], []
    for points in turns:
        pairs = [pair for _, pair in heads(points)]
        taus.append([ergodicity_coefficient(attention_matrix(layer, a, b)) for a, b in pairs])
        alphas.append([_alpha(layer, a, b) for a, b in pairs])
    alpha = np.max(alphas, axis=0)
    factors, lhs, rhs, u = np.ones(len(q)), [], [], v
    for depth in range(1, _DEPTH + 1):
        turn = (depth - 1) % 2
        u = layer(*turns[turn], u)
        factors = factors * taus[turn]
        for head, (before, after) in heads((v, u)):
            bound = high_frequency_gain_bound(len(after), float(alpha[head]), n_layers=depth)
            lhs += [np.ptp(after, axis=0).max(), _size(after)]
            rhs += [factors[head] * np.ptp(before, axis=0).max(), bound * _size(before)]
    return np.array(lhs), np.array(rhs)


def _passes(n_passes: int, layer: Softmax) -> int:
    return n_passes


for name, equation, bound, passes in (
    ("softmax-gain-bound", "AO-6", _one_layer, 1),
    ("softmax-depth-bound", "AO-C2", _many_layers, _DEPTH),
):
    register(
        Twin(
            name=name,
            family="spectral_filtering",
            relation=Bound(),
            equation=equation,
            source="Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
            layer=Softmax,
            build=build_mixing,
            solve=solve_softmax,
            bound=bound,
            logit_range=softmax_logit_range,
            passes=partial(_passes, passes),
        )
    )
