"""Twins: bounds of attention on frequencies, on changes of its logits and with depth.

The evidence for the random walk of many layers is a formula, a product of matrices; its limit has a
solver. Symmetric attention takes gradient steps on the nonlocal smoothness.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from ....solvers import smoother_matrix, smoothness, split_frequencies
from ....solvers.nonlocal_energy import (
    random_walk_limit,
    random_walk_rate,
    random_walk_values,
    smoothness_gradient,
)
from ....solvers.spectral_filtering import (
    ergodicity_coefficient,
    high_frequency_gain,
    high_frequency_gain_bound,
)
from ....unrolled.kernel_smoothing import Softmax, Symmetric
from ...heads import Array, HeadCall, Tensors, heads
from ...judging.certificates import range_of, smoothing_residual
from ...laws.subject import as_array, identity_values
from ...pairs import Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import Bound, FixedPointLimit, Identity, Inequalities, Iterate
from ..tasks import filtering
from .regression import (
    OF_DOT_PRODUCTS,
    dot_product_logits,
    dot_product_range,
    lift,
    local_bandwidth,
    scale_of,
    solve_softmax,
)

_DEPTH = 3
_N_KEYS = 8
_FAR = 40.0  # a logit so far above the others that their weights vanish
N_EXTREMAL = 64


def attain_gain(
    sides: Inequalities,
    smooth: Callable[[Tensor], Tensor],
    matrices: Sequence[Array],
    like: Tensor,
    factors: Sequence[float] | None = None,
) -> None:
    """Add ``<y, HC[A z]> = factor |H A H|_2`` for each head, with singular vectors y, z of H A H.

    ``smooth(z)`` runs the layer on values of shape (heads, n_keys, 1). Only rounding of A z is
    accepted.
    """
    pairs = [_extremal_vectors(A) for A in matrices]
    z = torch.from_numpy(np.stack([z for _, z in pairs])).to(like.dtype)
    smoothed = as_array(smooth(z))
    for head, ((y, _), A) in enumerate(zip(pairs, matrices, strict=True)):
        factor = 1.0 if factors is None else factors[head]
        gain = high_frequency_gain(A)
        product = float((y * split_frequencies(smoothed[head])[1]).sum())
        sides.attained(
            np.sign(factor) * product,
            abs(factor) * gain,
            scale=max(1.0, gain) * max(1, abs(factor)),
        )


def _extremal_vectors(A: Array) -> tuple[Array, Array]:
    """Return unit columns y and z with ``y^T H A H z = |H A H|_2``."""
    left, _, right = np.linalg.svd(split_frequencies(A)[1])
    return left[:, :1], right[:1].T


def opposite_tokens(x: Tensor) -> Tensor:
    """Return the first token of each head and its negative: their logits are +-alpha."""
    return torch.stack([x[:, 0], -x[:, 0]], dim=1)


def opposite_values(like: Tensor) -> Tensor:
    """Return the values 1 and -1 of two tokens for each head."""
    return torch.tensor([[1.0], [-1.0]], dtype=like.dtype).expand(len(like), 2, 1)


def diffusion_modes(K: Array) -> tuple[Array, Array, Array]:
    """Return the ascending eigenvalues of ``A = D^-1 K``, its eigenvectors E and the degrees d.

    K is symmetric, so that ``E^T D E = I``.
    """
    d = K.sum(axis=1)
    roots = np.sqrt(d)
    mu, W = np.linalg.eigh(K / np.outer(roots, roots))
    return mu, W / roots[:, None], d


def head_matrices(solve: Callable[[HeadCall], Array], q: Tensor, k: Tensor) -> list[Array]:
    """Return the matrix of each head by a solver of one head."""
    return [solve(HeadCall(a, b, np.eye(len(b)), head)) for head, (a, b) in heads((q, k))]


def build_mixing(q: Array, k: Array, v: Array) -> Softmax:
    """Build with logits in a range of 2: up to a shift of each row they are at most alpha = 1."""
    return Softmax(scale=2 / dot_product_range(1.0, q, k))


def build_local(q: Array, k: Array, v: Array) -> Softmax:
    """Build the layer with the logits of Gaussian attention, which are largest for nearby keys."""
    return Softmax(scale=local_bandwidth(q, k) ** -2)


def attention_matrix(layer: Softmax, q: Array, k: Array) -> Array:
    """Return the layer's matrix, computed by the regression solver."""
    return smoother_matrix(*lift(q, k), bandwidth=scale_of(layer, q) ** -0.5)


def _alpha(layer: Softmax, q: Array, k: Array) -> float:
    return float(np.ptp(scale_of(layer, q) * q @ k.T, axis=1).max()) / 2


def _high_frequency_size(x: Array) -> float:
    return float(np.linalg.norm(split_frequencies(x)[1]))


def _bound_one_layer(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare both sides of ``|HC[A v]|_F <= |H A H|_2 |HC v|_F``, and of the bound by logits.

    The first bound is attained along the singular vectors of H A H, the second by two tokens.
    """
    sides = Inequalities()
    for _, (queries, keys, values, smoothed) in heads((q, k, v, layer(q, k, v))):
        sharp = high_frequency_gain(attention_matrix(layer, queries, keys))
        bound = high_frequency_gain_bound(len(keys), _alpha(layer, queries, keys))
        sides.at_most(
            _high_frequency_size(smoothed), np.array([sharp, bound]) * _high_frequency_size(values)
        )
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    matrices = [attention_matrix(layer, a, b) for _, (a, b) in heads((few_q, few_k))]
    attain_gain(sides, partial(layer, few_q, few_k), matrices, v)
    pair = opposite_tokens(q)
    smoothed = as_array(layer(pair, pair, opposite_values(v)))
    for head, (tokens,) in heads((pair,)):
        bound = high_frequency_gain_bound(2, _alpha(layer, tokens, tokens))
        sides.attained(smoothed[head], bound * np.array([[1], [-1]]), scale=1)
    return sides


def _bound_many_layers(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ranges with ``tau(A_1) ... tau(A_L)``, high frequencies with ``tanh(alpha)^L``.

    Both shrink at least by this factor.
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
            sides.at_most(_high_frequency_size(after), bound * _high_frequency_size(before))
            bound = high_frequency_gain_bound(2, _alpha(layer, tokens, tokens), n_layers=depth)
            sides.attained(two, bound * np.array([[1], [-1]]), scale=1)
    return sides


def _attain_mixing(sides: Inequalities, layer: Softmax, q: Tensor, k: Tensor) -> None:
    """Compare ``(A z)_i - (A z)_j`` with ``tau(A) (max z - min z)`` for ``z = sign(a_i - a_j)``."""
    matrices = [attention_matrix(layer, a, b) for _, (a, b) in heads((q, k))]
    rows = [np.unravel_index(np.argmax(cdist(A, A, "cityblock")), A.shape) for A in matrices]
    z = np.stack([np.sign(A[i] - A[j])[:, None] for A, (i, j) in zip(matrices, rows, strict=True)])
    smoothed = as_array(layer(q, k, torch.from_numpy(z).to(q.dtype)))
    for A, (i, j), output in zip(matrices, rows, smoothed, strict=True):
        sides.attained(output[i] - output[j], 2 * ergodicity_coefficient(A), scale=2)


def _bound_change(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare the change of a softmax with ``min(sqrt 2, |n| / 2)`` for a change n of its logits.

    For outputs the bound is multiplied by ``|V|_2``.
    """
    rng = np.random.default_rng(0)
    sides, scale = Inequalities(), scale_of(layer, as_array(q))
    for size in (1e-2, 1e-1, 1.0):
        noise = size * rng.standard_normal(q.shape) * q.double().numpy().std()
        perturbed = (torch.from_numpy(noise).to(q.dtype) + q).double()
        change = scale * (perturbed - q.double()).numpy() @ k.double().mT.numpy()
        limit = np.minimum(np.sqrt(2), np.linalg.norm(change, axis=-1) / 2)
        for values, norm in (
            (identity_values(k), 1.0),
            (v, np.linalg.norm(v.double().numpy(), 2, axis=(-2, -1))[:, None]),
        ):
            difference = layer(perturbed.to(q.dtype), k, values) - layer(q, k, values)
            sides.at_most(np.linalg.norm(as_array(difference), axis=-1), limit * norm)
    _attain_stability(sides, layer, q)
    return sides


def _attain_stability(sides: Inequalities, layer: Softmax, like: Tensor) -> None:
    """Two cases that attain the bounds, with logits far above the others.

    Two equal logits that move apart by 2 t change the weights by ``tanh(t) / sqrt 2``, a share
    ``tanh(t) / t`` of the bound. A move from one such logit to another changes them by sqrt 2.
    """
    k = torch.eye(_N_KEYS, dtype=like.dtype)[None]
    one = _FAR / scale_of(layer, as_array(k)) * k
    two, direction = one + one.roll(-1, -1), (one - one.roll(-1, -1)) / _FAR
    t = torch.linspace(0.1, 0.6, _N_KEYS, dtype=like.dtype)[:, None]
    perturbed = two + t * direction

    def distance(a: Tensor, b: Tensor) -> Array:
        difference = layer(a, k, identity_values(k)) - layer(b, k, identity_values(k))
        return np.linalg.norm(as_array(difference)[0], axis=-1)

    sizes = as_array(t)[:, 0]
    # The rounding of logits is relative to their size.
    sides.attained(
        distance(perturbed, two), sizes / np.sqrt(2), share=np.tanh(sizes) / sizes, scale=_FAR
    )
    sides.attained(distance(one, one.roll(1, -2)), np.sqrt(2), scale=_FAR)


def _n_iter(layer: Any) -> int:
    return getattr(layer, "n_iter", 1)


def _apply(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run the layer `n_iter` times with the same queries and keys."""
    for _ in range(_n_iter(layer)):
        v = layer(q, k, v)
    return v


def _solve_walk(layer: Softmax, call: HeadCall) -> Array:
    """Solve for the expected values after a random walk of `n_iter` steps."""
    return random_walk_values(
        call.v, attention_matrix(layer, call.q, call.k), n_steps=_n_iter(layer)
    )


def _solve_limit(layer: Softmax, call: HeadCall) -> Array:
    limit = random_walk_limit(call.v, attention_matrix(layer, call.q, call.k))
    return np.tile(limit, (len(call.q), 1))


_add = partial(
    add_twin,
    family="spectral_filtering",
    source="Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
    layer=Softmax,
    build=build_mixing,
    task={"build": build_local},
    solve=solve_softmax,
    numerics=OF_DOT_PRODUCTS,
)
_add(name="softmax-gain-bound", relation=Bound(sides=_bound_one_layer), equation="AO-6")
_add(
    name="softmax-depth-bound",
    relation=Bound(sides=_bound_many_layers),
    equation="AO-C2",
    numerics=Numerics(range_of(dot_product_logits), passes=lambda layer: _DEPTH),
)
_add(
    name="softmax-stability",
    family="kernel_smoothing",
    relation=Bound(sides=_bound_change),
    equation="IF-22, IF-23",
    source="Revisiting Transformers with Insights from Image Filtering",
    build=build_local,
    task={},
)
_walk = partial(
    _add,
    family="nonlocal_energy",
    source="Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
    inputs=Inputs(apply=_apply),
    numerics=Numerics(range_of(dot_product_logits), passes=_n_iter),
)
_walk(
    name="random-walk",
    relation=Iterate(n_iter=(1, 2, 5)),
    equation="NT-L1",
    build=build_local,
    solve=_solve_walk,
    task={},
)
# tanh(1)^80 < 1e-9: for logits within a range of 2, see AO-C2.
_LIMIT = FixedPointLimit(tolerance=1e-8, n_iter=80, evidence="solver")
_walk(
    name="random-walk-limit",
    relation=_LIMIT,
    equation="NT-20",
    solve=_solve_limit,
    task=filtering(build_mixing, _solve_limit, _apply, relation=_LIMIT),
)


_N_STEPS = 2


def _weights(layer: Symmetric, k: Array) -> Array:
    """Return ``exp(scale k_i . k_j)`` up to a common factor."""
    logits = scale_of(layer, k) * k @ k.T
    return np.asarray(np.exp(np.minimum(logits, logits.T) - logits.max()))


def _solve_symmetric(layer: Symmetric, call: HeadCall) -> Array:
    """Take a step of descent for each token on the smoothness of it and the keys that it sees."""
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


def _certify_symmetric(twin: Twin, layer: Symmetric, inputs: Tensors) -> float:
    """Return how far each output is from minimising J in its own token, with the others fixed.

    J is then ``1/2 sum_j K_ij |u_i - v_j|^2`` up to a constant. The weights of a row are divided by
    the largest one.
    """
    outputs = torch.from_numpy(layer_output(twin, layer, inputs))
    residuals = [
        smoothing_residual(u, dot_product_logits(layer, HeadCall(k, k, v)), v)
        for _, (k, v, u) in heads((*inputs[1:], outputs))
    ]
    return float(np.max(residuals))


def _bound_energy(layer: Symmetric, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare J(A v) with J(v), and J(A e) with ``mu^2 J(e)`` for the two extreme modes e."""
    sides = Inequalities()
    for _, (keys, values, smoothed) in heads((k, v, layer(q, k, v))):
        K = _weights(layer, keys)
        sides.at_most(smoothness(smoothed, K), smoothness(values, K))
    tokens, modes = _modes(layer, k)
    smoothed = as_array(layer(tokens, tokens, _stack_modes([E for _, E, _ in modes], k)))
    for (mu, E, _), output, (_, (keys,)) in zip(modes, smoothed, heads((tokens,)), strict=True):
        K = _weights(layer, keys)
        for column, rate in enumerate(mu):
            before = smoothness(E[:, [column]], K)
            sides.attained(smoothness(output[:, [column]], K), rate**2 * before, scale=before)
    return sides


def _bound_mixing(layer: Symmetric, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|A^n v - 1 pi^T v|_pi`` with ``rate^n |v - 1 pi^T v|_pi``.

    A is symmetric in this norm.
    """
    walks = []
    for _, (keys, values) in heads((k, v)):
        K = _weights(layer, keys)
        A = K / K.sum(axis=1, keepdims=True)
        walks.append((K.sum(axis=1) / K.sum(), random_walk_limit(values, A), random_walk_rate(A)))
    tokens, modes = _modes(layer, k)
    start = extreme = _stack_modes([E for _, E, _ in modes], k)
    sides, u = Inequalities(), v
    for n in range(1, _N_STEPS + 1):
        u, extreme = layer(q, k, u), layer(tokens, tokens, extreme)
        for (pi, limit, rate), (_, (values, smoothed)) in zip(walks, heads((v, u)), strict=True):
            before, after = (np.sqrt(pi @ (x - limit) ** 2).max() for x in (values, smoothed))
            sides.at_most(after, rate**n * before)
        for (mu, _, d), (_, (E, output)) in zip(modes, heads((start, extreme)), strict=True):
            sides.attained(d @ (E * output), mu**n * (d @ E**2), scale=d @ E**2)
    return sides


def _modes(layer: Symmetric, k: Tensor) -> tuple[Tensor, list[tuple[Array, Array, Array]]]:
    """Return a few tokens and, for each head, their slowest and fastest mode and the degrees."""
    tokens, modes = k[:, :N_EXTREMAL], []
    for _, (keys,) in heads((tokens,)):
        mu, E, d = diffusion_modes(_weights(layer, keys))
        modes.append((mu[[-2, 0]], E[:, [-2, 0]], d))
    return tokens, modes


def _stack_modes(E: list[Array], like: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(E)).to(like.dtype)


_SYMMETRIC_RANGE = range_of(lambda layer, call: scale_of(layer, call.k) * call.k @ call.k.T)
_symmetric = partial(
    add_twin,
    family="nonlocal_energy",
    source="Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
    layer=Symmetric,
    build=lambda q, k, v: Symmetric(scale=local_bandwidth(k, k) ** -2),
    solve=_solve_symmetric,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_SYMMETRIC_RANGE),
)
_symmetric(
    name="symmetric-attention",
    relation=Identity(certificate=_certify_symmetric),
    equation="NT-10",
    options={"default-scale": lambda q, k, v: Symmetric()},
)
_symmetric(name="symmetric-attention-descent", relation=Bound(sides=_bound_energy), equation="NT-J")
_symmetric(
    name="symmetric-attention-mixing",
    relation=Bound(sides=_bound_mixing),
    equation="NT-20",
    numerics=Numerics(_SYMMETRIC_RANGE, passes=lambda layer: _N_STEPS),
)
