"""Twins: regression on tokens with positions or an elliptical metric, and bilateral filters."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from ....solvers import bilateral_filter, nadaraya_watson
from ....solvers.kernel_smoothing import elliptical_metric
from ....unrolled.attention import Context
from ....unrolled.kernel_smoothing import ALiBi, Bilateral, Elliptical, Tupe
from ...heads import Array, HeadCall, Tensors, head_value, move_parameters, solve_each_image
from ...judging.certificates import entropic_residual, mean_residual, range_of
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics, layer_output
from ...registry import Twin, add_twin, having
from ...relations import Identity
from .regression import add_smoother, local_bandwidth, regress_by_dot_products


def sinusoids(n: int, width: int) -> Array:
    """Return the sinusoidal positions of IF-5; an odd width cuts the last one."""
    angles = np.arange(n)[:, None] / 10_000 ** (2 * np.arange((width + 1) // 2) / (width + 1))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, -1)[:, :width]


def _build_alibi(q: Array, k: Array, v: Array) -> ALiBi:
    return move_parameters(ALiBi(len(q), learnable=True, dtype=torch.float64))


def _build_given_slopes(q: Array, k: Array, v: Array) -> ALiBi:
    return ALiBi(len(q), slopes=[0.3 / (head + 1) for head in range(len(q))])


def _slope(layer: ALiBi, head: int) -> float:
    """Return ``2^(-8 h / H)`` for head h of H = 2^n; further heads take every other one of 2 H."""
    relative = head_value(layer.relative_slope, head)
    if layer.slopes is not None:
        return layer.slopes[head] * relative
    power = 1 << (layer.num_heads.bit_length() - 1)
    exponent = 8 * (head + 1) / power if head < power else 4 * (2 * (head - power) + 1) / power
    return float(2**-exponent) * relative


def _solve_alibi(layer: ALiBi, call: HeadCall) -> Array:
    """Solve by Gaussian regression on tokens and features of their places.

    Squared distances of the features are the distances of places times twice the slope.
    """
    # Index i becomes i ones followed by zeros: the squared distance of i and j is then |i - j|.
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
    """Return the logits with the linear bias."""
    q, k = call.q, call.k
    distances = np.abs(np.subtract.outer(*call.places))
    return q @ k.T / q.shape[1] ** 0.5 - _slope(layer, call.head) * distances


def _build_tupe(q: Array, k: Array, v: Array, **settings: Any) -> Tupe:
    """Build the layer with random projections of positions."""
    layer = Tupe(len(q) * q.shape[-1], len(q), dtype=torch.float64, **settings)
    shape = tuple(layer.position_weight.shape)
    drawn = np.random.default_rng(0).standard_normal(shape) / np.sqrt(shape[1])
    with torch.no_grad():
        layer.position_weight.copy_(torch.from_numpy(drawn))
    return layer


def _project_positions(layer: Tupe, call: HeadCall) -> list[Array]:
    """Project the positions of queries and of keys for one head."""
    head_features = slice(call.head * call.q.shape[1], (call.head + 1) * call.q.shape[1])
    weights = np.split(as_array(layer.position_weight), 2)
    return [
        call.positions[p] @ w[head_features].T for p, w in zip(call.places, weights, strict=True)
    ]


def _solve_tupe(layer: Tupe, call: HeadCall) -> Array:
    """Solve by regression on tokens and projected positions side by side."""
    q, k = call.q, call.k
    p_q, p_k = _project_positions(layer, call)
    return regress_by_dot_products(np.c_[q, p_q] / np.sqrt(2 * q.shape[1]), np.c_[k, p_k], call.v)


def _tupe_logits(layer: Tupe, call: HeadCall) -> Array:
    """Return the logits of tokens and of projected positions."""
    q, k = call.q, call.k
    p_q, p_k = _project_positions(layer, call)
    return (q @ k.T + p_q @ p_k.T) / np.sqrt(2 * q.shape[1])


def _positions(q: Array, k: Array, v: Array) -> Context:
    return Context(positions=torch.from_numpy(sinusoids(k.shape[1], len(q) * q.shape[-1])))


def _tupe_range(layer: Tupe, q: Array, k: Array, v: Array) -> float:
    """Return the logit range with positions of the width that the layer was built for."""
    positions = torch.from_numpy(sinusoids(k.shape[1], layer.position_weight.shape[1]))
    return range_of(_tupe_logits, lambda *tokens: Context(positions=positions))(layer, q, k, v)


def _consecutive_values(q: Array, k: Array, v: Array) -> Context:
    """Return values of two layers, as wide as the keys; each feature changes differently."""
    change = np.cos(np.arange(k.shape[-1])) * k**2
    return Context(values=torch.from_numpy(k + change), previous_values=torch.from_numpy(k.copy()))


def _metric(layer: Elliptical, call: HeadCall) -> Array:
    """Return the diagonal metric of a head: fixed, estimated, or ones in a first layer."""
    if layer.metric is None:
        if call.previous_values is None:
            return np.ones(call.values.shape[1])
        return elliptical_metric(call.values, call.previous_values)
    rows = np.atleast_2d(layer.metric.numpy())
    return rows[call.head if len(rows) > 1 else 0]


def _solve_elliptical(layer: Elliptical, call: HeadCall) -> Array:
    """Solve by kernel regression on queries and keys times the square root of the metric."""
    root = np.sqrt(_metric(layer, call))
    return regress_by_dot_products(call.q * root / call.q.shape[1] ** 0.5, call.k * root, call.v)


def _elliptical_logits(layer: Elliptical, call: HeadCall) -> Array:
    return (call.q * _metric(layer, call)) @ call.k.T / call.q.shape[1] ** 0.5


add_smoother(
    _alibi_logits,
    name="alibi",
    equation="IF-ALI",
    source="Press, Smith and Lewis (2022)",
    layer=ALiBi,
    build=_build_alibi,
    options={"default": lambda q, k, v: ALiBi(len(q)), "given-slopes": _build_given_slopes},
    solve=_solve_alibi,
    fitted={"relative_slope": None},
)
add_smoother(
    _tupe_logits,
    name="tupe",
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
    add_smoother,
    _elliptical_logits,
    equation="IF-31",
    source="Nielsen et al. (2024)",
    layer=Elliptical,
    solve=_solve_elliptical,
)
_elliptical(
    name="elliptical-attention",
    build=lambda q, k, v: Elliptical(),
    inputs=Inputs(context=_consecutive_values),
    covers=lambda layer: layer.metric is None,
)
_elliptical(
    name="elliptical-given-metric",
    build=lambda q, k, v: Elliptical(np.random.default_rng(0).random((len(q), q.shape[-1]))),
    options={
        "one-metric": lambda q, k, v: Elliptical(np.random.default_rng(0).random(q.shape[-1]))
    },
    covers=lambda layer: layer.metric is not None,
)


def _build_bilateral(
    q: Array, k: Array, v: Array, *, positions: bool, distances: bool
) -> Bilateral:
    """Build the layer with a bandwidth for each head, as training leaves them."""
    return move_parameters(
        Bilateral(
            1.5 * q.shape[-1] ** 0.25 if positions else float("inf"),
            1.2 * local_bandwidth(q, k),
            distances=distances,
            num_heads=len(q),
            learnable=True,
            dtype=torch.float64,
        )
    )


def _build_fixed_bilateral(
    q: Array, k: Array, v: Array, *, positions: bool, distances: bool, given: tuple[str, ...]
) -> Bilateral:
    """Build with the bandwidths in `given` for all heads, and with the default of the others."""
    position = 1.5 * q.shape[-1] ** 0.25 if "positions" in given else None
    token = 1.2 * local_bandwidth(q, k) if "tokens" in given else None
    return Bilateral(position if positions else float("inf"), token, distances=distances)


def _list_bilateral_options(positions: bool, distances: bool) -> dict[str, Any]:
    """Return builders with other bandwidths, by name."""
    build = partial(_build_fixed_bilateral, positions=positions, distances=distances)
    options = {
        "default-bandwidths": partial(build, given=()),
        "fixed-bandwidths": partial(build, given=("tokens", "positions")),
    }
    if positions:
        options["default-bandwidth-of-tokens"] = partial(build, given=("positions",))
        options["default-bandwidth-of-positions"] = partial(build, given=("tokens",))
    return options


def _projected_positions(q: Array, k: Array, v: Array) -> Context:
    """Return sinusoidal positions with a random projection to the width of each head."""
    heads, _, width = q.shape
    weights = np.random.default_rng(0).standard_normal((2, heads, width, width)) / np.sqrt(width)
    pair = [
        torch.from_numpy(sinusoids(x.shape[1], width) @ w)
        for x, w in zip((q, k), weights, strict=True)
    ]
    return Context(projected_positions=(pair[0], pair[1]))


def _bandwidths(layer: Bilateral, q: Array, head: int) -> tuple[float, float]:
    """Return the bandwidths of tokens and of positions, which is infinite without positions."""
    token, position = (
        q.shape[-1] ** 0.25 if bandwidth is None else head_value(bandwidth, head)
        for bandwidth in (layer.token_bandwidth, layer.position_bandwidth)
    )
    return token, position if layer.uses_positions else np.inf


def _solve_bilateral(layer: Bilateral, call: HeadCall) -> Array:
    """Solve by regression on tokens and positions side by side."""
    q, k, v = call.tokens
    token, position = _bandwidths(layer, q, call.head)
    positions: Any = (np.zeros((len(q), 0)), np.zeros((len(k), 0)))
    if layer.uses_positions:
        positions = call.projected_positions
    q, k = np.c_[q, positions[0]], np.c_[k, positions[1]]
    n_positions = positions[0].shape[1]
    precision = np.repeat([token**-2, position**-2], [q.shape[1] - n_positions, n_positions])
    if not layer.distances:
        return regress_by_dot_products(q * precision, k, v)
    return nadaraya_watson(q, k, v, bandwidth=1.0, precision=precision)


def _bilateral_logits(layer: Bilateral, call: HeadCall) -> Array:
    """Return the logits: similarity of tokens and of positions, each with its bandwidth."""
    token, position = _bandwidths(layer, call.q, call.head)
    logits = _likeness(layer.distances, call.q, call.k, token)
    if layer.uses_positions:
        p_q, p_k = call.projected_positions
        logits = logits + _likeness(layer.distances, p_q, p_k, position)
    return logits


def _likeness(distances: bool, a: Array, b: Array, width: float) -> Array:
    return (-cdist(a, b, "sqeuclidean") / 2 if distances else a @ b.T) / width**2


def _filter_image(layer: Bilateral, images: Tensor) -> Tensor:
    """Run the layer on pixels as tokens, with their places as positions."""
    pixels = images.flatten(2).mT[:, None]
    return layer(pixels, pixels, pixels, context=_places(images))[:, 0].mT.reshape(images.shape)


def _places(images: Tensor) -> Context:
    """Return a context with the row and column of each pixel as positions."""
    height, width = images.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([ys, xs], dim=-1).reshape(-1, 2).to(images.dtype)
    return Context(projected_positions=(places, places))


def _solve_image(layer: Bilateral, image: Array) -> Array:
    """Solve by the bilateral filter with a window that holds the whole image."""
    whole = 2 * max(image.shape[-2:]) - 1
    color, spatial = _bandwidths(layer, np.moveaxis(image, 0, -1), 0)
    return bilateral_filter(
        image, win_size=whole, sigma_color=color, sigma_spatial=spatial, channel_axis=0
    )


def _certify_images(twin: Twin, layer: Bilateral, inputs: Tensors) -> float:
    """Judge the pixels of the first image as `weights_certificate` does."""
    image = inputs[0][:1]
    pixels, context = image.flatten(2).mT[:, None], _places(image)
    places = as_array(context.projected_positions[0])  # type: ignore[index]
    identity = torch.eye(pixels.shape[-2], dtype=pixels.dtype)[None, None]
    with torch.no_grad():
        A = as_array(layer(pixels, pixels, identity, context=context)[0, 0])
    tokens, smoothed = as_array(pixels[0, 0]), layer_output(twin, layer, inputs)[0]
    call = HeadCall(tokens, tokens, tokens, projected_positions=(places, places))
    return max(
        entropic_residual(A, _bilateral_logits(layer, call)),
        mean_residual(smoothed.reshape(len(smoothed), -1).T, A, tokens),
    )


def _image_logit_range(layer: Bilateral, images: Array) -> float:
    """Return an upper bound of the range of logits of pixels."""
    color, spatial = _bandwidths(layer, np.moveaxis(images, 1, -1), 0)
    diagonal = (images.shape[-1] - 1) ** 2 + (images.shape[-2] - 1) ** 2
    return float(np.ptp(images)) ** 2 / (2 * color**2) + diagonal / (2 * spatial**2)


for name, equation, positions, distances in (
    ("bilateral-attention", "IF-21", True, False),
    ("nonlocal-attention", "IF-21", False, False),
    ("bilateral-tokens", "IF-13", True, True),
    ("nonlocal-means-tokens", "IF-14", False, True),
):
    add_smoother(
        _bilateral_logits,
        name=name,
        equation=equation,
        source="Revisiting Transformers with Insights from Image Filtering, eq. 13 to 21",
        layer=Bilateral,
        build=partial(_build_bilateral, positions=positions, distances=distances),
        options=_list_bilateral_options(positions, distances),
        solve=_solve_bilateral,
        inputs=Inputs(context=_projected_positions if positions else None),
        fitted={} if positions else {"token_bandwidth": lambda head_dim: head_dim**0.25},
        covers=having(uses_positions=positions, distances=distances),
    )
add_twin(
    name="bilateral-filter",
    family="image_filters",
    relation=Identity(certificate=_certify_images),
    equation="IF-13",
    source="Tomasi and Manduchi (1998)",
    layer=Bilateral,
    build=lambda images: Bilateral(2.0, 0.2, distances=True, dtype=torch.float64),
    solve=solve_each_image(_solve_image),
    inputs=Inputs("image", apply=_filter_image),
    covers=having(uses_positions=True, distances=True),
    numerics=Numerics(logit_range=_image_logit_range),
)
