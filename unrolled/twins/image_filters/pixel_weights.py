"""Weights of pixels as a dense matrix, for images of a few hundred pixels."""

import numpy as np
from scipy.spatial.distance import cdist
from torch import nn

from ...image_filters import BilateralFilter, EmbeddedMeans, NonLocalMeansAttention
from ..certificates import gradient_residual, pair_energies
from ..heads import Tensors, as_array
from ..parameters import head_value
from ..registry import Array, Twin
from ..relations import layer_output


def pixel_weights(layer: nn.Module, image: Array) -> Array:
    """``K_ij`` of the pixels of an image (channels, height, width), row by row; 0 out of windows.

    Of `BilateralFilter`, `EmbeddedMeans` and `NonLocalMeansAttention`, from all pairs.
    """
    reach: int | None
    if isinstance(layer, BilateralFilter):
        reach, exponents = layer.win_size // 2, _bilateral_exponents(layer, image)
    elif isinstance(layer, EmbeddedMeans):
        W = as_array(layer.embedding)
        features = _patches(image, W.shape[-1]) @ W.reshape(len(W), -1).T
        noise = 2 * float(layer.noise.detach()) ** 2
        reach, exponents = layer.patch_distance, _excess(features, noise, head_value(layer.h, 0))
    elif isinstance(layer, NonLocalMeansAttention):
        patches = _patches(image, layer.patch_size)
        features = patches / patches.shape[1] ** 0.5
        noise = 2 * layer.sigma**2
        reach, exponents = layer.patch_distance, _excess(features, noise, head_value(layer.h, 0))
    else:
        raise TypeError(f"layer: averages no pixels, got {type(layer).__name__}")
    weights = np.exp(-exponents)
    if reach is not None:
        places = _places(image)
        weights[cdist(places, places, "chebyshev") > reach] = 0
    return weights


def pixels_of(image: Array) -> Array:
    """Pixels as rows, of shape (height * width, channels)."""
    return image.reshape(len(image), -1).T


def image_of(pixels: Array, like: Array) -> Array:
    """The image of these rows, of the shape of another."""
    return pixels.T.reshape(like.shape)


def certify_average(twin: Twin, layer: nn.Module, inputs: Tensors) -> float:
    """Pixels of the first image minimise ``sum_j w_ij |u_i - y_j|^2``: its slopes vanish there."""
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
    return np.argwhere(np.ones(image.shape[1:]))


def _bilateral_exponents(layer: BilateralFilter, image: Array) -> Array:
    pairs = (_places(image), layer.sigma_spatial), (pixels_of(image), layer.sigma_color)
    return np.sum(
        [cdist(x, x, "sqeuclidean") / (2 * head_value(width, 0) ** 2) for x, width in pairs], axis=0
    )


def _patches(image: Array, size: int) -> Array:
    """Reflect-padded patches as rows, of shape (height * width, channels * size^2)."""
    border = ((size - 1) // 2, size // 2)
    padded = np.pad(image, ((0, 0), border, border), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
    return windows.transpose(1, 2, 0, 3, 4).reshape(image[0].size, -1)


def _excess(features: Array, noise: float, h: float) -> Array:
    squares = cdist(features, features, "sqeuclidean")
    return np.asarray(np.maximum(squares - noise, 0) / h**2)
