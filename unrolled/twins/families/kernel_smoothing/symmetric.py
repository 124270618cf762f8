"""Twins: a gradient step on the nonlocal smoothness and symmetric attention."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from .....solvers import smoothness
from .....solvers.nonlocal_energy import random_walk_limit, random_walk_rate, smoothness_gradient
from ....kernel_smoothing import Symmetric
from ....laws.subject import as_array
from ...certificates import gradient_residual, pair_energies, range_of
from ...heads import Array, HeadCall, Tensors, heads
from ...pairs import Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import Bound, Identity, Inequalities
from .regression import dot_product_logits, local_bandwidth, scale_of
from .smoothing_bounds import N_EXTREMAL, diffusion_modes

_N_STEPS = 2


def _weights(layer: Symmetric, k: Array) -> Array:
    """``exp(scale k_i . k_j)`` up to one common factor."""
    logits = scale_of(layer, k) * k @ k.T
    return np.asarray(np.exp(np.minimum(logits, logits.T) - logits.max()))


def _solve(layer: Symmetric, call: HeadCall) -> Array:
    """A step of descent for each token, on the smoothness among it and the keys that it sees."""
    k, v = call.k, call.v
    visible = call.visible
    if visible is None and call.bias is None:
        K = _weights(layer, k)
        return v - smoothness_gradient(v, K) / K.sum(axis=1, keepdims=True)
    if visible is None:
        visible = np.ones((len(call.q), len(k)), dtype=bool)
    seen = np.asarray(visible.any(axis=0))  # a key that no query sees is no query either
    K = _weights(layer, np.where(seen[:, None], k, 0))
    if call.bias is not None:
        K = K * np.exp(call.bias)
    out = np.zeros_like(v)
    for i, row in enumerate(np.where(visible, K, 0)):
        if row.any():
            star = np.zeros_like(K)
            star[i] = star[:, i] = row
            out[i] = v[i] - smoothness_gradient(v, star)[i] / row.sum()
    return out


def _certify(twin: Twin, layer: Symmetric, inputs: Tensors) -> float:
    """Each output minimises J in its own token, with the others where they were.

    J is then ``1/2 sum_j K_ij |u_i - v_j|^2`` up to a constant. Weights are over the largest of
    their row.
    """
    residuals = []
    for _, (k, v, u) in heads((*inputs[1:], torch.from_numpy(layer_output(twin, layer, inputs)))):
        logits = dot_product_logits(layer, HeadCall(k, k, v))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        residuals.append(
            gradient_residual(
                partial(pair_energies, weights, v=v),
                u,
                gradient=0.0,
                curvature=weights.sum(axis=1),
                unit=u,
            )
        )
    return float(np.max(residuals))


def _descent(layer: Symmetric, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``J(A v) <= J(v)``, and ``J(A e) = mu^2 J(e)`` of the slowest and the fastest mode."""
    sides = Inequalities()
    for _, (keys, values, smoothed) in heads((k, v, layer(q, k, v))):
        K = _weights(layer, keys)
        sides.at_most(smoothness(smoothed, K), smoothness(values, K))
    few, modes = _modes(layer, k)
    smoothed = as_array(layer(few, few, _columns([E for _, E, _ in modes], k)))
    for (mu, E, _), found, (_, (keys,)) in zip(modes, smoothed, heads((few,)), strict=True):
        K = _weights(layer, keys)
        for column, rate in enumerate(mu):
            before = smoothness(E[:, [column]], K)
            sides.attained(smoothness(found[:, [column]], K), rate**2 * before, scale=before)
    return sides


def _mixing(layer: Symmetric, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|A^n v - 1 pi^T v|_pi <= rate^n |v - 1 pi^T v|_pi``, as A is symmetric in that norm.

    An equality for the slowest eigenvector: ``<e, A^n e>_pi = rate^n``.
    """
    walks = []
    for _, (keys, values) in heads((k, v)):
        K = _weights(layer, keys)
        A = K / K.sum(axis=1, keepdims=True)
        walks.append((K.sum(axis=1) / K.sum(), random_walk_limit(values, A), random_walk_rate(A)))
    few, modes = _modes(layer, k)
    start = extreme = _columns([E for _, E, _ in modes], k)
    sides, u = Inequalities(), v
    for n in range(1, _N_STEPS + 1):
        u, extreme = layer(q, k, u), layer(few, few, extreme)
        for (pi, limit, rate), (_, (values, smoothed)) in zip(walks, heads((v, u)), strict=True):
            before, after = (np.sqrt(pi @ (x - limit) ** 2).max() for x in (values, smoothed))
            sides.at_most(after, rate**n * before)
        for (mu, _, d), (_, (E, found)) in zip(modes, heads((start, extreme)), strict=True):
            sides.attained(d @ (E * found), mu**n * (d @ E**2), scale=d @ E**2)
    return sides


def _modes(layer: Symmetric, k: Tensor) -> tuple[Tensor, list[tuple[Array, Array, Array]]]:
    """A few tokens; of each head the slowest and fastest mode among them, and the degrees."""
    few, modes = k[:, :N_EXTREMAL], []
    for _, (keys,) in heads((few,)):
        mu, E, d = diffusion_modes(_weights(layer, keys))
        modes.append((mu[[-2, 0]], E[:, [-2, 0]], d))
    return few, modes


def _columns(E: list[Array], like: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(E)).to(like.dtype)


_RANGE = range_of(lambda layer, call: scale_of(layer, call.k) * call.k @ call.k.T)
_add = partial(
    add_twin,
    family="nonlocal_energy",
    source="Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
    layer=Symmetric,
    build=lambda q, k, v: Symmetric(scale=local_bandwidth(k, k) ** -2),
    solve=_solve,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_RANGE),
)
_add(
    name="symmetric-attention",
    relation=Identity(certificate=_certify),
    equation="NT-10",
    options={"default-scale": lambda q, k, v: Symmetric()},
)
_add(name="symmetric-attention-descent", relation=Bound(sides=_descent), equation="NT-J")
_add(
    name="symmetric-attention-mixing",
    relation=Bound(sides=_mixing),
    equation="NT-20",
    numerics=Numerics(_RANGE, passes=lambda layer: _N_STEPS),
)
