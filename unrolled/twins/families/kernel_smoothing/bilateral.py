"""Twins: bilateral filters, and bilateral attention on tokens and images."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from .....solvers import bilateral_filter, nadaraya_watson
from ....attention import Context
from ....kernel_smoothing import Bilateral
from ....laws.subject import as_array
from ...certificates import entropic_residual, mean_residual, range_of, weights_certificate
from ...heads import Array, HeadCall, Tensors, head_value, moved, of_images
from ...pairs import Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import Identity
from .positions import sinusoids
from .regression import local_bandwidth, regress_by_dot_products


def _build(q: Array, k: Array, v: Array, *, positions: bool, distances: bool) -> Bilateral:
    """Bandwidths of its own for each head, as training would leave them."""
    return moved(
        Bilateral(
            1.5 * q.shape[-1] ** 0.25 if positions else float("inf"),
            1.2 * local_bandwidth(q, k),
            distances=distances,
            num_heads=len(q),
            learnable=True,
            dtype=torch.float64,
        )
    )


def _build_fixed(
    q: Array, k: Array, v: Array, *, positions: bool, distances: bool, given: tuple[str, ...]
) -> Bilateral:
    """The same for all heads, and at its default where it is not given."""
    position = 1.5 * q.shape[-1] ** 0.25 if "positions" in given else None
    token = 1.2 * local_bandwidth(q, k) if "tokens" in given else None
    return Bilateral(position if positions else float("inf"), token, distances=distances)


def _options(positions: bool, distances: bool) -> dict[str, Any]:
    build = partial(_build_fixed, positions=positions, distances=distances)
    options = {
        "default-bandwidths": partial(build, given=()),
        "fixed-bandwidths": partial(build, given=("tokens", "positions")),
    }
    if positions:
        options["default-bandwidth-of-tokens"] = partial(build, given=("positions",))
        options["default-bandwidth-of-positions"] = partial(build, given=("tokens",))
    return options


def _is(layer: Bilateral, *, positions: bool, distances: bool) -> bool:
    return layer.uses_positions == positions and layer.distances == distances


def _projected_positions(q: Array, k: Array, v: Array) -> Context:
    """Sinusoidal positions, projected at random to the width of each head."""
    heads, _, width = q.shape
    weights = np.random.default_rng(0).standard_normal((2, heads, width, width)) / np.sqrt(width)
    pair = [
        torch.from_numpy(sinusoids(x.shape[1], width) @ w)
        for x, w in zip((q, k), weights, strict=True)
    ]
    return Context(projected_positions=(pair[0], pair[1]))


def _widths(layer: Bilateral, q: Array, head: int) -> tuple[float, float]:
    token, position = (
        q.shape[-1] ** 0.25 if bandwidth is None else head_value(bandwidth, head)
        for bandwidth in (layer.token_bandwidth, layer.position_bandwidth)
    )
    return token, position if layer.uses_positions else np.inf


def _solve_bilateral(layer: Bilateral, call: HeadCall) -> Array:
    q, k, v = call.tokens
    token, position = _widths(layer, q, call.head)
    positions: Any = (np.zeros((len(q), 0)), np.zeros((len(k), 0)))
    if layer.uses_positions:
        positions = call.projected_positions
    q, k = np.c_[q, positions[0]], np.c_[k, positions[1]]
    n_positions = positions[0].shape[1]
    precision = np.repeat([token**-2, position**-2], [q.shape[1] - n_positions, n_positions])
    if not layer.distances:
        return regress_by_dot_products(q * precision, k, v)
    return nadaraya_watson(q, k, v, bandwidth=1.0, precision=precision)


def _logits(layer: Bilateral, call: HeadCall) -> Array:
    """Likeness of tokens and of positions, each at its width, by distances or by dot products."""
    token, position = _widths(layer, call.q, call.head)
    logits = _likeness(layer.distances, call.q, call.k, token)
    if layer.uses_positions:
        p_q, p_k = call.projected_positions
        logits = logits + _likeness(layer.distances, p_q, p_k, position)
    return logits


def _likeness(distances: bool, a: Array, b: Array, width: float) -> Array:
    return (-cdist(a, b, "sqeuclidean") / 2 if distances else a @ b.T) / width**2


def _filter_image(layer: Bilateral, images: Tensor) -> Tensor:
    """Pixels as tokens, with their places as positions."""
    pixels = images.flatten(2).mT[:, None]
    return layer(pixels, pixels, pixels, context=_places(images))[:, 0].mT.reshape(images.shape)


def _places(images: Tensor) -> Context:
    height, width = images.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([ys, xs], dim=-1).reshape(-1, 2).to(images.dtype)
    return Context(projected_positions=(places, places))


def _solve_image(layer: Bilateral, image: Array) -> Array:
    whole = 2 * max(image.shape[-2:]) - 1
    color, spatial = _widths(layer, np.moveaxis(image, 0, -1), 0)
    return bilateral_filter(
        image, win_size=whole, sigma_color=color, sigma_spatial=spatial, channel_axis=0
    )


def _certify_images(twin: Twin, layer: Bilateral, inputs: Tensors) -> float:
    """As `weights_certificate`, of the pixels of the first image."""
    image = inputs[0][:1]
    pixels, context = image.flatten(2).mT[:, None], _places(image)
    places = as_array(context.projected_positions[0])  # type: ignore[index]
    identity = torch.eye(pixels.shape[-2], dtype=pixels.dtype)[None, None]
    with torch.no_grad():
        A = as_array(layer(pixels, pixels, identity, context=context)[0, 0])
    tokens, smoothed = as_array(pixels[0, 0]), layer_output(twin, layer, inputs)[0]
    call = HeadCall(tokens, tokens, tokens, projected_positions=(places, places))
    return max(
        entropic_residual(A, _logits(layer, call)),
        mean_residual(smoothed.reshape(len(smoothed), -1).T, A, tokens),
    )


def _image_logit_range(layer: Bilateral, images: Array) -> float:
    color, spatial = _widths(layer, np.moveaxis(images, 1, -1), 0)
    diagonal = (images.shape[-1] - 1) ** 2 + (images.shape[-2] - 1) ** 2
    return float(np.ptp(images)) ** 2 / (2 * color**2) + diagonal / (2 * spatial**2)


for name, equation, positions, distances in (
    ("bilateral-attention", "IF-21", True, False),
    ("nonlocal-attention", "IF-21", False, False),
    ("bilateral-tokens", "IF-13", True, True),
    ("nonlocal-means-tokens", "IF-14", False, True),
):
    context = _projected_positions if positions else None
    add_twin(
        name=name,
        family="kernel_smoothing",
        relation=Identity(certificate=weights_certificate(_logits)),
        equation=equation,
        source="Revisiting Transformers with Insights from Image Filtering, eq. 13 to 21",
        layer=Bilateral,
        build=partial(_build, positions=positions, distances=distances),
        options=_options(positions, distances),
        solve=_solve_bilateral,
        inputs=Inputs(context=context),
        fitted={} if positions else {"token_bandwidth": lambda head_dim: head_dim**0.25},
        covers=partial(_is, positions=positions, distances=distances),
        numerics=Numerics(range_of(_logits, context)),
    )
add_twin(
    name="bilateral-filter",
    family="image_filters",
    relation=Identity(certificate=_certify_images),
    equation="IF-13",
    source="Tomasi and Manduchi (1998)",
    layer=Bilateral,
    build=lambda images: Bilateral(2.0, 0.2, distances=True, dtype=torch.float64),
    solve=of_images(_solve_image),
    inputs=Inputs("image", apply=_filter_image),
    covers=partial(_is, positions=True, distances=True),
    numerics=Numerics(logit_range=_image_logit_range),
)
