"""Twins: the equalisers of frequencies, AttnScale and FeatScale, and alternatives to them.

LayerScale (products) and re-attention (standardised maps) are formulas: they solve no problem.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...solvers import smoother_matrix, split_frequencies
from ...solvers.spectral_filtering import (
    high_frequency_gain,
    high_frequency_gain_bound,
    high_pass_values,
    scale_frequencies,
)
from ...unrolled.kernel_smoothing import Gaussian, Softmax
from ...unrolled.spectral_filtering import AttnScale, FeatScale, LayerScale, ReAttention
from ..heads import AllHeads, Array, HeadCall, Tensors, heads, move_parameters
from ..judging.certificates import entropic_residual
from ..laws.subject import as_array
from ..pairs import Inputs, Numerics, calls_of_heads, layer_matrix, layer_output, solve_head
from ..registry import Twin, add_twin, exact_twin, numerics_of_base
from ..relations import Bound, Identity, Inequalities, Init
from .kernel_smoothing.regression import build_gaussian, local_bandwidth, smoother_logits
from .kernel_smoothing.smoothing_bounds import (
    N_EXTREMAL,
    attain_gain,
    head_matrices,
    opposite_tokens,
    opposite_values,
)

_NORM_EPS = 1e-5  # of layer normalisation
_FLAT, _LITTLE = 5.0, 1e-3  # of a bandwidth's logarithm, and of maps


def _build(q: Array, k: Array, v: Array) -> AttnScale:
    """Build the layer with weights omega from 0.4 to -0.6 over the heads."""
    layer = _build_initial(q, k, v)
    weights = torch.linspace(0.4, -0.6, len(q), dtype=torch.float64)
    layer.omega.data = weights.reshape(-1, 1, 1)
    return layer


def _build_shared(q: Array, k: Array, v: Array) -> AttnScale:
    """Build the layer with omega = -0.3 for all heads."""
    layer = AttnScale(build_gaussian(q, k, v), dtype=torch.float64)
    layer.omega.data.fill_(-0.3)
    return layer


def _build_softmax(q: Array, k: Array, v: Array) -> AttnScale:
    return move_parameters(AttnScale(Softmax(), len(q), dtype=torch.float64))


def _build_initial(q: Array, k: Array, v: Array) -> AttnScale:
    return AttnScale(build_gaussian(q, k, v), len(q), dtype=torch.float64)


def _is_initial(layer: AttnScale) -> bool:
    return bool((layer.omega == 0).all())


def _omega(layer: AttnScale, head: int) -> float:
    values = layer.omega.detach().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def _solve_base(layer: AttnScale, call: HeadCall) -> Array:
    return solve_head(exact_twin(layer.base), layer.base, call)


def _solve(layer: AttnScale, call: HeadCall) -> Array:
    """Solve by scaling the high frequencies of the base's output."""
    v, visible, omega = call.v, call.visible, _omega(layer, call.head)
    out = _solve_base(layer, call)
    if visible is None:
        return high_pass_values(out, v, omega)
    seeing = visible.any(axis=1)
    out[seeing] = high_pass_values(out[seeing], v, omega, visible=visible[seeing])
    return out


def _certify(twin: Twin, layer: AttnScale, inputs: Tensors) -> float:
    """Undo the scaling of all frequencies but zero, and judge the base's rows by their entropy.

    See `entropic_residual`.
    """
    weights, residuals = layer_matrix(twin, layer, *inputs[:2]), []
    for call, scaled in zip(calls_of_heads(twin, inputs), weights, strict=True):
        spectrum = np.fft.rfft(scaled, axis=1)
        spectrum[:, 1:] /= 1 + _omega(layer, call.head)
        A = np.fft.irfft(spectrum, n=len(call.k), axis=1)
        residuals.append(entropic_residual(A, smoother_logits(layer.base, call)))
    return float(np.max(residuals))


def _gain_bound(layer: AttnScale, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare both sides of ``|HC[A^ V]|_F <= |1 + omega| gain |HC V|_F``.

    The gain is the sharp one, then that of Theorem 3.
    """
    sides, out = Inequalities(), as_array(layer(q, k, v))
    factors = [1 + _omega(layer, head) for head in range(len(q))]
    for head, (a, b, values) in heads((q, k, v)):
        A = _solve_base(layer, HeadCall(a, b, np.eye(len(b)), head))
        alpha = _RANGE(layer, a[None], b[None], values[None]) / 2
        gains = [high_frequency_gain(A), high_frequency_gain_bound(len(b), alpha)]
        high = abs(factors[head]) * np.linalg.norm(split_frequencies(values)[1])
        sides.at_most(np.linalg.norm(split_frequencies(out[head])[1]), high * np.array(gains))
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    matrices = head_matrices(partial(_solve_base, layer), few_q, few_k)
    attain_gain(sides, partial(layer, few_q, few_k), matrices, v, factors)
    pair = opposite_tokens(q)
    for head, (tokens, output) in heads((pair, layer(pair, pair, opposite_values(v)))):
        alpha = _RANGE(layer, *[tokens[None]] * 3) / 2
        bound = high_frequency_gain_bound(2, alpha) * abs(factors[head])
        sides.attained(np.sign(factors[head]) * output, bound * np.array([[1], [-1]]), scale=1)
    return sides


def _share_of_signal(X: Array) -> float:
    """Return the share of signal in the variance of patches.

    Noise is equally large in all directions, and is the whole variance in the weakest one.
    """
    variances = np.linalg.eigvalsh(np.cov(X.T))
    return float(1 - variances[0] / variances.mean())


def _build_wiener_scale(X: Array) -> FeatScale:
    """Scale the deviations from the mean by Wiener's factor."""
    layer = FeatScale(X.shape[1], dtype=torch.float64)
    layer.t.data.fill_(_share_of_signal(X) - 1)
    return layer


def _build_wiener_layer(X: Array) -> LayerScale:
    return LayerScale(X.shape[1], initial=_share_of_signal(X), dtype=torch.float64)


def _build_feat_scale(X: Array) -> FeatScale:
    """Build the layer with weights that differ between features."""
    layer = FeatScale(X.shape[1], dtype=torch.float64)
    layer.s.data = torch.linspace(-0.5, 1.0, layer.dim, dtype=torch.float64)
    layer.t.data = torch.linspace(0.6, -0.2, layer.dim, dtype=torch.float64)
    return layer


def _solve_feat_scale(layer: FeatScale, X: Array) -> Array:
    s, t = (as_array(weights) for weights in (layer.s, layer.t))
    return scale_frequencies(X, s, t)


def _make_masks(n: int) -> tuple[Array, Array]:
    """Return which tokens are padding (the first is), and which pairs hide the second token."""
    rows, columns = np.indices((n, n))
    return np.arange(n) % 5 == 0, (3 * rows + 7 * columns) % 4 == 3


def _apply_masked(layer: FeatScale, X: Tensor) -> Tensor:
    """Run the layer with each kind of mask and with all; padding also as an additive mask."""
    padding, pairs = (torch.from_numpy(x) for x in _make_masks(len(X)))
    added = X.new_zeros(len(X)).masked_fill(padding, -torch.inf)
    masks: tuple[dict[str, Any], ...] = (
        {"key_padding_mask": padding},
        {"attn_mask": pairs},
        {"is_causal": True},
        {"key_padding_mask": padding, "is_causal": True},
        {"key_padding_mask": added, "attn_mask": pairs, "is_causal": True},
    )
    return torch.cat([layer(X, **mask_arguments) for mask_arguments in masks], dim=1)


def _solve_masked(layer: FeatScale, X: Array) -> Array:
    """Scale around the mean of the tokens that each token sees; it is 0 if it sees none."""
    n, (padding, pairs) = len(X), _make_masks(len(X))
    s, t = (as_array(weights) for weights in (layer.s, layer.t))
    unpadded, unpaired, past = np.tile(~padding, (n, 1)), ~pairs, np.tri(n, dtype=bool)
    sets = (unpadded, unpaired, past, unpadded & past, unpadded & unpaired & past)
    means = [seen @ X / np.maximum(seen.sum(axis=1, keepdims=True), 1) for seen in sets]
    return np.hstack([(1 + s) * mean + (1 + t) * (X - mean) for mean in means])


def _certify_feat_scale(twin: Twin, layer: FeatScale, inputs: Tensors) -> float:
    """Check that the spectrum of a feature has the gain 1 + s at frequency zero, else 1 + t."""
    before, after = (
        np.fft.rfft(x, axis=0, norm="ortho")
        for x in (as_array(inputs[0]), layer_output(twin, layer, inputs))
    )
    s, t = (as_array(weights) for weights in (layer.s, layer.t))
    gains = np.concatenate([(1 + s)[None], np.tile(1 + t, (len(before) - 1, 1))])
    return float(np.abs(after - gains * before).max() / np.abs(after).max())


def _feat_scale_bound(layer: FeatScale, X: Tensor) -> Inequalities:
    """Compare both sides of ``|HC[FeatScale(A X)]|_F <= max|1 + t| |H A H|_2 |HC X|_F``.

    A is the matrix of Gaussian attention.
    """
    sides, tokens = Inequalities(), as_array(X)
    A = smoother_matrix(tokens, tokens, bandwidth=local_bandwidth(tokens, tokens))
    factors = 1 + as_array(layer.t)
    feature = int(np.abs(factors).argmax())

    def scale(smoothed: Array) -> Tensor:
        return layer(torch.from_numpy(smoothed).to(X.dtype))

    before, after = (
        np.linalg.norm(split_frequencies(x)[1]) for x in (tokens, as_array(scale(A @ tokens)))
    )
    sides.at_most(after, abs(factors[feature]) * high_frequency_gain(A) * before)
    extremal_tokens = tokens[:N_EXTREMAL]
    A = smoother_matrix(
        extremal_tokens,
        extremal_tokens,
        bandwidth=local_bandwidth(extremal_tokens, extremal_tokens),
    )

    def smooth(z: Tensor) -> Tensor:
        features = np.zeros((len(extremal_tokens), layer.dim))
        features[:, feature] = as_array(z)[0, :, 0]
        return scale(A @ features)[None, :, [feature]]

    attain_gain(sides, smooth, [A], X, [factors[feature]])
    return sides


def _build_layer_scale(X: Array) -> LayerScale:
    """Build the layer with factors from 0.2 to 1.5."""
    layer = LayerScale(X.shape[1], dtype=torch.float64)
    layer.gamma.data = torch.linspace(0.2, 1.5, layer.dim, dtype=torch.float64)
    return layer


def _solve_layer_scale(layer: Any, X: Array) -> Array:
    """Of what the scale before it gives, where a block holds both."""
    if hasattr(layer, "scale"):
        X = exact_twin(layer.scale).solve(layer.scale, X)
    weights = as_array(layer.gamma) - 1
    return scale_frequencies(X, weights, weights)


def _build_reattention(q: Array, k: Array, v: Array) -> ReAttention:
    """Build at least three heads with one, two, three ... times the bandwidth, and mix them."""
    n_heads = max(len(q), 3)
    base = Gaussian(local_bandwidth(q, k), num_heads=n_heads, learnable=True, dtype=torch.float64)
    widths = torch.arange(1, n_heads + 1, dtype=torch.float64).reshape(-1, 1, 1)
    layer = ReAttention(base, n_heads, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(widths.log())
        for parameter in (layer.theta, layer.norm.weight, layer.norm.bias):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
    return layer


def _build_narrow(q: Array, k: Array, v: Array) -> ReAttention:
    """Build a narrow map minus the mean of it and two flat maps; a bias restores the row sums.

    The maps are so small that standardisation nearly divides by the square root of its eps.
    """
    base = Gaussian(local_bandwidth(q, k), num_heads=3, learnable=True, dtype=torch.float64)
    layer = ReAttention(base, 3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter[1:] += _FLAT
        layer.theta.mul_(_LITTLE)
        layer.norm.weight.fill_(1.5 * _NORM_EPS**0.5 / _LITTLE)
        layer.norm.bias.fill_(1 / k.shape[-2])
    return layer


def _apply_reattention(layer: ReAttention, *tokens: Tensor, **given: Any) -> Tensor:
    """Run the layer; if the tokens have fewer heads than the layer, repeat these heads."""
    n_heads = tokens[0].shape[-3]
    repeated = torch.arange(layer.num_heads) % n_heads

    def repeat(x: Any) -> Any:
        per_head = isinstance(x, Tensor) and x.ndim > 2 and x.shape[-3] == n_heads
        return x[..., repeated, :, :] if per_head else x

    inputs, masks = (repeat(x) for x in tokens), {name: repeat(x) for name, x in given.items()}
    return layer(*inputs, **masks)[..., :n_heads, :, :]


def _solve_reattention(layer: ReAttention, call: HeadCall) -> Array:
    """Standardise each entry of the mixed maps over the heads."""
    mixed = np.tensordot(_theta(layer), _base_maps(layer, _all_heads(call)), axes=(0, 0))
    gamma, beta = (as_array(w) for w in layer.norm.parameters())
    normed = (mixed[call.head] - mixed.mean(axis=0)) / np.sqrt(mixed.var(axis=0) + _NORM_EPS)
    return _hide_keys(gamma[call.head] * normed + beta[call.head], call) @ call.v


def _all_heads(call: HeadCall) -> AllHeads:
    return call.all_heads or AllHeads(call.q[None], call.k[None])


def _theta(layer: ReAttention) -> Array:
    return as_array(layer.theta)


def _hide_keys(A: Array, call: HeadCall) -> Array:
    return A if call.visible is None else np.where(call.visible, A, 0)


def _base_maps(layer: ReAttention, given: AllHeads) -> Array:
    """Solve for the maps of all heads by the solver of the base, a softmax.

    Weights of hidden keys are set to zero before a row is normalised.
    """
    base, maps = exact_twin(layer.base), []
    for head in range(layer.num_heads):
        base_head = head % len(given.queries)
        q, k = given.queries[base_head], given.keys[base_head]
        A = base.solve(layer.base, HeadCall(q, k, np.eye(len(k)), head))
        weights = A if given.bias is None else A * np.exp(given.bias[base_head])
        weights = (
            weights if given.visible is None else np.where(given.visible[base_head], weights, 0)
        )
        total = weights.sum(axis=1, keepdims=True)
        maps.append(weights / np.where(total > 0, total, 1))
    return np.stack(maps)


def _reattention_terms(layer: ReAttention, call: HeadCall) -> Array:
    """Return how much relative errors of the base's maps grow: the sizes of the output's terms.

    Let ``z_g = (M_g - mean M) / s`` and ``s^2 = var M + 1e-5``. Errors dM of mixed maps M add ::

        gamma_h / s (dM_h - mean_g dM_g - z_h mean_g z_g dM_g)

    to A'_h. This is large if the maps are alike and s is small. A relative error e of the maps A_g
    makes ``|dM_h|`` at most e times ``B_h = sum_g |Theta_gh| A_g``. The sizes are therefore the
    formula with B in place of dM, plus |beta|.
    """
    maps, theta, h = _base_maps(layer, _all_heads(call)), _theta(layer), call.head
    mixed, B = (np.tensordot(weights, maps, axes=(0, 0)) for weights in (theta, np.abs(theta)))
    gamma, beta = (np.abs(as_array(w)) for w in layer.norm.parameters())
    s = np.sqrt(mixed.var(axis=0) + _NORM_EPS)
    z = np.abs(mixed - mixed.mean(axis=0)) / s
    errors = B[h] + B.mean(axis=0) + z[h] * (z * B).mean(axis=0)
    return _hide_keys(gamma[h] / s * errors + beta[h], call) @ np.abs(call.v)


_OF_BASE = numerics_of_base()
_RANGE = _OF_BASE.logit_range
_add = partial(
    add_twin,
    family="spectral_filtering",
    source="Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
)
_attn_scale = partial(
    _add, layer=AttnScale, inputs=Inputs(by_rows=False), numerics=_OF_BASE, build=_build
)
_of_features = partial(_add, inputs=Inputs("features"))
_feat_scale = partial(
    _of_features,
    layer=FeatScale,
    build=_build_feat_scale,
    solve=_solve_feat_scale,
    task={"build": _build_wiener_scale},
)
_attn_scale(
    name="attn-scale",
    relation=Identity(certificate=_certify),
    equation="AO-7",
    solve=_solve,
    options={"one-for-all-heads": _build_shared, "dot-products": _build_softmax},
)
_attn_scale(
    name="attn-scale-init",
    relation=Init(certificate=_certify),
    equation="AO-7",
    solve=_solve_base,
    build=_build_initial,
    covers=_is_initial,
)
_attn_scale(
    name="attn-scale-gain", relation=Bound(sides=_gain_bound), equation="AO-6", solve=_solve
)
_feat_scale(
    name="feat-scale",
    relation=Identity(certificate=_certify_feat_scale),
    equation="AO-10",
    options={"initial": lambda X: FeatScale(X.shape[1], dtype=torch.float64)},
)
_feat_scale(
    name="feat-scale-masked",
    relation=Identity(),
    equation="AO-10",
    solve=_solve_masked,
    inputs=Inputs("features", apply=_apply_masked),
)
_feat_scale(name="feat-scale-gain", relation=Bound(sides=_feat_scale_bound), equation="AO-6")
_of_features(
    name="layer-scale",
    relation=Identity(),
    equation="AO-10",
    layer=LayerScale,
    build=_build_layer_scale,
    solve=_solve_layer_scale,
    source="Touvron et al. (2021)",
    task={"build": _build_wiener_layer},
    options={
        "initial": lambda X: LayerScale(X.shape[1], dtype=torch.float64),
        "other-initial": lambda X: LayerScale(X.shape[1], initial=-0.3, dtype=torch.float64),
    },
)
_add(
    name="re-attention",
    relation=Identity(),
    equation="SE-5",
    source="Zhou et al. (2021)",
    layer=ReAttention,
    build=_build_reattention,
    task={"build": _build_narrow},
    solve=_solve_reattention,
    inputs=Inputs(by_rows=False, apply=_apply_reattention),
    numerics=Numerics(_RANGE, summed=_reattention_terms),
)
