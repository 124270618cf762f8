"""Twins: non-local means, bilateral filters, embedded patches, and a denoiser made of these."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial.distance import cdist
from torch import nn

from ...solvers import bilateral_filter, nonlocal_means
from ...solvers.image_filters import embedded_means
from ...unrolled.image_filters import BilateralFilter, EmbeddedMeans, NonLocalMeansAttention
from ...unrolled.models.denoisers import NonLocalMeansDenoiser
from ...unrolled.models.denoisers.nonlocal_means import NonLocalMeansStep
from ..heads import Array, Tensors, build_moved, head_value, image_builder, solve_each_image
from ..judging.certificates import gradient_residual, pair_energies
from ..laws.subject import as_array
from ..pairs import Inputs, Numerics, layer_output
from ..registry import Twin, add_twin
from ..relations import Identity

_WINDOWS: dict[str, Any] = {"patch_size": 3, "patch_distance": 2}
_build_bilateral = image_builder(BilateralFilter, sigma_color=0.25, sigma_spatial=1.5)
_build_embedded = image_builder(EmbeddedMeans, of_channels=True, h=1.0, noise=0.1, **_WINDOWS)
# Decays for which few distances are near the noise level, at which weights have a kink.
_DECAYS = {"sigma": 0.1, "h": 5.0, "h_later": 5.0}
_build_network = image_builder(
    NonLocalMeansDenoiser, of_channels=True, n_layers=2, **_DECAYS, **_WINDOWS
)


def pixel_weights(layer: nn.Module, image: Array) -> Array:
    """Return the weights K_ij between all pixels of an image (channels, height, width).

    Pixels are numbered row by row; weights outside the window are 0. The layer is a
    `BilateralFilter`, `EmbeddedMeans` or `NonLocalMeansAttention`.
    """
    reach: int | None
    if isinstance(layer, BilateralFilter):
        reach, exponents = layer.win_size // 2, _bilateral_exponents(layer, image)
    elif isinstance(layer, EmbeddedMeans):
        W = as_array(layer.embedding)
        features = _patches(image, W.shape[-1]) @ W.reshape(len(W), -1).T
        noise = 2 * float(layer.noise.detach()) ** 2
        reach, exponents = layer.patch_distance, _patch_exponents(layer, features, noise)
    elif isinstance(layer, NonLocalMeansAttention):
        patches = _patches(image, layer.patch_size)
        features = patches / patches.shape[1] ** 0.5
        noise = 2 * layer.sigma**2
        reach, exponents = layer.patch_distance, _patch_exponents(layer, features, noise)
    else:
        raise TypeError(f"layer: must average pixels, got {type(layer).__name__}")
    weights = np.exp(-exponents)
    if reach is not None:
        places = _places(image)
        weights[cdist(places, places, "chebyshev") > reach] = 0
    return weights


def pixels_of(image: Array) -> Array:
    """Return the pixels as rows, of shape (height * width, channels)."""
    return image.reshape(len(image), -1).T


def image_of(pixels: Array, like: Array) -> Array:
    """Return the image with these pixels as rows, in the shape of the image `like`."""
    return pixels.T.reshape(like.shape)


def certify_average(twin: Twin, layer: nn.Module, inputs: Tensors) -> float:
    """Return how far pixels u_i of the output are from minimising ``sum_j w_ij |u_i - y_j|^2``.

    Only the first image is judged. y_j are its pixels and w_ij the `pixel_weights`.
    """
    image, smoothed = as_array(inputs[0][0]), layer_output(twin, layer, inputs)[0]
    weights, u = pixel_weights(layer, image), pixels_of(smoothed)
    return gradient_residual(
        lambda moved: pair_energies(weights, moved, pixels_of(image)),
        u,
        gradient=0.0,
        curvature=weights.sum(axis=1),
        unit=u,
    )


def _places(image: Array) -> Array:
    """Return the rows and columns of all pixels, one pixel a row."""
    return np.argwhere(np.ones(image.shape[1:]))


def _bilateral_exponents(layer: BilateralFilter, image: Array) -> Array:
    """Return the negative logarithms of the bilateral weights between all pixels."""
    pairs = (_places(image), layer.sigma_spatial), (pixels_of(image), layer.sigma_color)
    return np.sum(
        [cdist(x, x, "sqeuclidean") / (2 * head_value(width, 0) ** 2) for x, width in pairs], axis=0
    )


def _patches(image: Array, size: int) -> Array:
    """Return the patches with reflected borders, of shape (height * width, channels * size^2)."""
    border = ((size - 1) // 2, size // 2)
    padded = np.pad(image, ((0, 0), border, border), mode="reflect")
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))
    return windows.transpose(1, 2, 0, 3, 4).reshape(image[0].size, -1)


def _patch_exponents(layer: Any, features: Array, noise: float) -> Array:
    """Return the negative logarithms of weights by distances of patches."""
    squares = cdist(features, features, "sqeuclidean")
    return np.asarray(np.maximum(squares - noise, 0) / head_value(layer.h, 0) ** 2)


def _solve_bilateral(layer: BilateralFilter, image: Array) -> Array:
    """Solve by the bilateral filter."""
    return bilateral_filter(
        image,
        win_size=layer.win_size,
        sigma_color=head_value(layer.sigma_color, 0),
        sigma_spatial=head_value(layer.sigma_spatial, 0),
        channel_axis=0,
    )


def _bilateral_range(layer: BilateralFilter, images: Array) -> float:
    """Return an upper bound of the exponents of the weights."""
    colours = np.square(np.ptp(images, axis=(2, 3))).sum(axis=1).max()
    places = 2 * (layer.win_size // 2) ** 2
    widths = head_value(layer.sigma_color, 0), head_value(layer.sigma_spatial, 0)
    return float(colours / (2 * widths[0] ** 2) + places / (2 * widths[1] ** 2))


def _build_means(image: Array, **settings: Any) -> NonLocalMeansAttention:
    """Build non-local means with these settings; small images get patches of 3 x 3."""
    settings = {"h": 0.1, "patch_size": 5 if min(image.shape[-2:]) >= 16 else 3} | settings
    return NonLocalMeansAttention(dtype=torch.float64, **settings)


def _means_options(patch_distance: int | None, sigma: float) -> dict[str, Any]:
    """Return builders of non-local means with other settings, by name."""
    build = partial(_build_means, patch_distance=patch_distance)
    options = {
        "even-patches": partial(build, sigma=sigma, patch_size=4),
        "pixels": partial(build, sigma=sigma, patch_size=1),
        "learned-decay": partial(build, h=0.2, sigma=sigma, learnable=True),
        "other-noise-level": partial(build, sigma=0.02 if sigma == 0 else 0.0),
    }
    if sigma > 0:
        options["default-decay"] = partial(build, h=None, sigma=sigma)
    if patch_distance is not None:
        options["small-window"] = partial(_build_means, sigma=sigma, patch_distance=1)
    return options


def _has_search(layer: NonLocalMeansAttention, *, whole_image: bool) -> bool:
    return (layer.patch_distance is None) == whole_image


def _solve_means(layer: NonLocalMeansAttention, image: Array) -> Array:
    """Solve by non-local means."""
    return nonlocal_means(
        image,
        patch_size=layer.patch_size,
        patch_distance=layer.patch_distance,
        h=head_value(layer.h, 0),
        sigma=layer.sigma,
        channel_axis=0,
    )


def _means_range(layer: NonLocalMeansAttention, images: Array) -> float:
    """Return an upper bound of the exponents of the weights."""
    return float(np.ptp(images)) ** 2 / head_value(layer.h, 0) ** 2


def _average_pixels(layer: EmbeddedMeans, guide: Array, values: Array) -> Array:
    """Average values by the solver with the layer's embedding of patches."""
    return embedded_means(
        guide,
        values,
        as_array(layer.embedding),
        h=head_value(layer.h, 0),
        noise=abs(float(layer.noise.detach())),
        patch_distance=layer.patch_distance,
    )


def _bound_spread(layer: EmbeddedMeans, images: Array) -> float:
    """Return an upper bound of the squared distances of patches, the exponents of the weights."""
    W = as_array(layer.embedding) / head_value(layer.h, 0)
    windows = sliding_window_view(images, W.shape[2:], axis=(2, 3))
    responses = np.einsum("kcyx,bcijyx->bkij", W, windows)
    return float(np.square(np.ptp(responses, axis=(2, 3))).sum(axis=1).max())


def _solve_embedded(layer: EmbeddedMeans, image: Array) -> Array:
    """Solve by embedded means of the image itself."""
    return _average_pixels(layer, image, image)


def _denoise(network: NonLocalMeansDenoiser, noisy: Array) -> Array:
    """Run the denoiser's steps, each by the solver."""
    u, layers = noisy, cast(Iterable[NonLocalMeansStep], network.layers)
    for step in layers:
        tau, rho, lam = (float(x.detach()) for x in (step.tau, step.rho, step.lam))
        smoothed = _average_pixels(step.means, u, noisy + rho * u)
        u = (1 - lam) * (tau * smoothed - (tau * rho + tau - 1) * u) + lam * noisy
    return u


_add = partial(add_twin, family="image_filters", inputs=Inputs("image"))
_AVERAGE = Identity(certificate=certify_average)
_add(
    name="bilateral-windowed",
    relation=_AVERAGE,
    equation="IF-13",
    source="Tomasi and Manduchi (1998)",
    layer=BilateralFilter,
    build=_build_bilateral,
    options={
        "moved": build_moved(_build_bilateral),
        "narrow": partial(_build_bilateral, sigma_color=0.1, sigma_spatial=0.7),
        "small-window": partial(_build_bilateral, win_size=3),
        "wide-window": partial(_build_bilateral, win_size=15),
    },
    solve=solve_each_image(_solve_bilateral),
    numerics=Numerics(logit_range=_bilateral_range),
)
_add(
    name="embedded-means",
    relation=_AVERAGE,
    equation="IF-14w",
    source="Buades, Coll and Morel (2005)",
    layer=EmbeddedMeans,
    build=_build_embedded,
    options={
        "moved": build_moved(_build_embedded),
        "gaussian-patches": partial(_build_embedded, patch_weights="gaussian"),
        "even-patches": build_moved(_build_embedded, patch_size=4),
        "wide-window": partial(_build_embedded, patch_distance=9),
    },
    solve=solve_each_image(_solve_embedded),
    numerics=Numerics(logit_range=_bound_spread),
)
_add(
    name="nonlocal-means-network",
    relation=Identity(),
    equation="IF-14w, IF-TW",
    source="Buades, Coll and Morel (2005); Romano and Elad (2015)",
    layer=NonLocalMeansDenoiser,
    build=_build_network,
    options={
        "moved": build_moved(_build_network),
        "three-layers": build_moved(_build_network, n_layers=3),
        "uniform-patches": build_moved(
            _build_network, patch_weights="uniform", tau=0.4, noise_later=0.2
        ),
    },
    solve=solve_each_image(_denoise),
    numerics=Numerics(passes=lambda network: network.n_layers),
)
for name, equation, patch_distance, sigma in (
    ("nonlocal-means", "SE-8", None, 0.0),
    ("nonlocal-means-windowed", "IF-14w", 6, 0.05),
):
    _add(
        name=name,
        relation=_AVERAGE,
        equation=equation,
        source="Buades, Coll and Morel (2005); Attention: Self-Expression Is All You Need",
        layer=NonLocalMeansAttention,
        build=partial(_build_means, patch_distance=patch_distance, sigma=sigma),
        options=_means_options(patch_distance, sigma),
        solve=solve_each_image(_solve_means),
        covers=partial(_has_search, whole_image=patch_distance is None),
        numerics=Numerics(logit_range=_means_range),
    )
