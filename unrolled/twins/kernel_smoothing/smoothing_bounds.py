"""Twins: what attention does to high frequencies, in one layer and with depth, and its bounds."""

from functools import partial

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from ....solvers import smoother_matrix, split_frequencies
from ....solvers.spectral_filtering import (
    ergodicity_coefficient,
    high_frequency_gain,
    high_frequency_gain_bound,
)
from ...kernel_smoothing import Softmax
from ..heads import as_array, heads
from ..inequalities import Inequalities
from ..registry import Array, Twin, register
from ..relations import Bound
from .extremal_values import N_EXTREMAL, attain_gain, opposite_tokens, opposite_values
from .lifted_points import dot_product_range, lift, scale_of
from .regression import local_bandwidth, softmax_logit_range, solve_softmax

_DEPTH = 3


def build_mixing(q: Array, k: Array, v: Array) -> Softmax:
    """Logits within a range of 2: they are bounded by alpha = 1 up to a shift of each row."""
    return Softmax(scale=2 / dot_product_range(1.0, q, k))


def build_local(q: Array, k: Array, v: Array) -> Softmax:
    """Logits as Gaussian attention has them, of which nearby keys have the largest."""
    return Softmax(scale=local_bandwidth(q, k) ** -2)


def attention_matrix(layer: Softmax, q: Array, k: Array) -> Array:
    """The layer's matrix, as that of a regression."""
    return smoother_matrix(*lift(q, k), bandwidth=scale_of(layer, q) ** -0.5)


def _alpha(layer: Softmax, q: Array, k: Array) -> float:
    return float(np.ptp(scale_of(layer, q) * q @ k.T, axis=1).max()) / 2


def _size(x: Array) -> float:
    return float(np.linalg.norm(split_frequencies(x)[1]))


def _one_layer(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|HC[A v]|_F <= |H A H|_2 |HC v|_F``, and the same with the bound from the logits.

    The first is an equality along the singular vectors of H A H, the second for two tokens.
    """
    sides = Inequalities()
    for _, (queries, keys, values, smoothed) in heads((q, k, v, layer(q, k, v))):
        sharp = high_frequency_gain(attention_matrix(layer, queries, keys))
        bound = high_frequency_gain_bound(len(keys), _alpha(layer, queries, keys))
        sides.at_most(_size(smoothed), np.array([sharp, bound]) * _size(values))
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    matrices = [attention_matrix(layer, a, b) for _, (a, b) in heads((few_q, few_k))]
    attain_gain(sides, partial(layer, few_q, few_k), matrices, v)
    pair = opposite_tokens(q)
    smoothed = as_array(layer(pair, pair, opposite_values(v)))
    for head, (tokens,) in heads((pair,)):
        bound = high_frequency_gain_bound(2, _alpha(layer, tokens, tokens))
        sides.attained(smoothed[head], bound * np.array([[1], [-1]]), scale=1)
    return sides


def _many_layers(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Ranges shrink by ``tau(A_1) ... tau(A_L)`` at least, high frequencies by ``tanh(alpha)^L``.

    Queries and keys change places from layer to layer, so that the matrices differ. The first is an
    equality for one layer and values 1 and -1 by the sign of a difference of rows; both are at any
    depth for two tokens.
    """
    turns = [(q, k), (k, q)]
    taus, alphas = [], []
    for points in turns:
        pairs = [pair for _, pair in heads(points)]
        taus.append([ergodicity_coefficient(attention_matrix(layer, a, b)) for a, b in pairs])
        alphas.append([_alpha(layer, a, b) for a, b in pairs])
    alpha = np.max(alphas, axis=0)
    sides, factors, u = Inequalities(), np.ones(len(q)), v
    pair, extreme = opposite_tokens(q), opposite_values(v)
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    _attain_mixing(sides, layer, few_q, few_k)
    for depth in range(1, _DEPTH + 1):
        turn = (depth - 1) % 2
        u, extreme = layer(*turns[turn], u), layer(pair, pair, extreme)
        factors = factors * taus[turn]
        for head, (before, after, tokens, two) in heads((v, u, pair, extreme)):
            bound = high_frequency_gain_bound(len(after), float(alpha[head]), n_layers=depth)
            sides.at_most(np.ptp(after, axis=0).max(), factors[head] * np.ptp(before, axis=0).max())
            sides.at_most(_size(after), bound * _size(before))
            bound = high_frequency_gain_bound(2, _alpha(layer, tokens, tokens), n_layers=depth)
            sides.attained(two, bound * np.array([[1], [-1]]), scale=1)
    return sides


def _attain_mixing(sides: Inequalities, layer: Softmax, q: Tensor, k: Tensor) -> None:
    """``(A z)_i - (A z)_j = tau(A) (max z - min z)`` for ``z = sign(a_i - a_j)``."""
    matrices = [attention_matrix(layer, a, b) for _, (a, b) in heads((q, k))]
    rows = [np.unravel_index(np.argmax(cdist(A, A, "cityblock")), A.shape) for A in matrices]
    z = np.stack([np.sign(A[i] - A[j])[:, None] for A, (i, j) in zip(matrices, rows, strict=True)])
    smoothed = as_array(layer(q, k, torch.from_numpy(z).to(q.dtype)))
    for A, (i, j), found in zip(matrices, rows, smoothed, strict=True):
        sides.attained(found[i] - found[j], 2 * ergodicity_coefficient(A), scale=2)


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
            task={"build": build_local},
            solve=solve_softmax,
            bound=bound,
            logit_range=softmax_logit_range,
            passes=partial(_passes, passes),
        )
    )
