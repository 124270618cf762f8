"""Twins: non-local means with embedded patches, and the denoiser of its steps."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from ....solvers.image_filters import embedded_means
from ...image_filters import EmbeddedMeans
from ...models.denoisers import NonLocalMeansDenoiser
from ...models.denoisers.nonlocal_means import NonLocalMeansStep
from ..heads import as_array
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Identity
from .pixel_weights import certify_average

_SETTINGS: dict[str, Any] = {"patch_size": 3, "patch_distance": 2}


def _build(images: Array, **settings: Any) -> EmbeddedMeans:
    settings = {"h": 1.0, "noise": 0.1} | _SETTINGS | settings
    return EmbeddedMeans(channels=images.shape[1], dtype=torch.float64, **settings)


def _build_moved(images: Array, **settings: Any) -> EmbeddedMeans:
    layer: EmbeddedMeans = moved(_build(images, **settings))
    return layer


def _build_network(images: Array, **settings: Any) -> NonLocalMeansDenoiser:
    """At decays for which few distances are near the noise level, where weights bend."""
    settings = {"n_layers": 2, "sigma": 0.1, "h": 5.0, "h_later": 5.0} | _SETTINGS | settings
    return NonLocalMeansDenoiser(channels=images.shape[1], dtype=torch.float64, **settings)


def _build_moved_network(images: Array, **settings: Any) -> NonLocalMeansDenoiser:
    network: NonLocalMeansDenoiser = moved(_build_network(images, **settings))
    return network


def _average(layer: EmbeddedMeans, guide: Array, values: Array) -> Array:
    return embedded_means(
        guide,
        values,
        as_array(layer.embedding),
        h=head_value(layer.h, 0),
        noise=abs(float(layer.noise.detach())),
        patch_distance=layer.patch_distance,
    )


def _spread(layer: EmbeddedMeans, images: Array) -> float:
    """The largest squared distance that patches could have, of which weights are exponentials."""
    W = as_array(layer.embedding) / head_value(layer.h, 0)
    windows = sliding_window_view(images, W.shape[2:], axis=(2, 3))
    responses = np.einsum("kcyx,bcijyx->bkij", W, windows)
    return float(np.square(np.ptp(responses, axis=(2, 3))).sum(axis=1).max())


def _solve(layer: EmbeddedMeans, images: Array) -> Array:
    return np.stack([_average(layer, image, image) for image in images])


def _solve_network(network: NonLocalMeansDenoiser, images: Array) -> Array:
    return np.stack([_denoise(network, image) for image in images])


def _denoise(network: NonLocalMeansDenoiser, noisy: Array) -> Array:
    u, layers = noisy, cast(Iterable[NonLocalMeansStep], network.layers)
    for step in layers:
        tau, rho, lam = (float(x.detach()) for x in (step.tau, step.rho, step.lam))
        smoothed = _average(step.means, u, noisy + rho * u)
        u = (1 - lam) * (tau * smoothed - (tau * rho + tau - 1) * u) + lam * noisy
    return u


register(
    Twin(
        name="embedded-means",
        family="image_filters",
        relation=Identity(),
        equation="IF-14w",
        source="Buades, Coll and Morel (2005)",
        layer=EmbeddedMeans,
        build=_build,
        options={
            "moved": _build_moved,
            "gaussian-patches": partial(_build, patch_weights="gaussian"),
            "even-patches": partial(_build_moved, patch_size=4),
            "wide-window": partial(_build, patch_distance=9),
        },
        solve=_solve,
        certificate=certify_average,
        inputs="image",
        logit_range=_spread,
    )
)

register(
    Twin(
        name="nonlocal-means-network",
        family="image_filters",
        relation=Identity(),
        equation="IF-14w, IF-TW",
        source="Buades, Coll and Morel (2005); Romano and Elad (2015)",
        layer=NonLocalMeansDenoiser,
        build=_build_network,
        options={
            "moved": _build_moved_network,
            "three-layers": partial(_build_moved_network, n_layers=3),
            "uniform-patches": partial(
                _build_moved_network, patch_weights="uniform", tau=0.4, noise_later=0.2
            ),
        },
        solve=_solve_network,
        inputs="image",
        passes=lambda network: network.n_layers,
    )
)
