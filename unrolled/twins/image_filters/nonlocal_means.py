"""Twins: non-local means and its image layer."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers import nonlocal_means
from ...image_filters import NonLocalMeansAttention
from ..parameters import head_value
from ..registry import Array, Twin, register
from ..relations import Identity
from .pixel_weights import certify_average


def _build(image: Array, **settings: Any) -> NonLocalMeansAttention:
    settings = {"h": 0.1, "patch_size": 5 if min(image.shape[-2:]) >= 16 else 3} | settings
    return NonLocalMeansAttention(dtype=torch.float64, **settings)


def _options(patch_distance: int | None, sigma: float) -> dict[str, Any]:
    build = partial(_build, patch_distance=patch_distance)
    options = {
        "even-patches": partial(build, sigma=sigma, patch_size=4),
        "pixels": partial(build, sigma=sigma, patch_size=1),
        "learned-decay": partial(build, h=0.2, sigma=sigma, learnable=True),
        "other-noise-level": partial(build, sigma=0.02 if sigma == 0 else 0.0),
    }
    if sigma > 0:
        options["default-decay"] = partial(build, h=None, sigma=sigma)
    if patch_distance is not None:
        options["small-window"] = partial(_build, sigma=sigma, patch_distance=1)
    return options


def _searches(layer: NonLocalMeansAttention, *, whole_image: bool) -> bool:
    return (layer.patch_distance is None) == whole_image


def _solve(layer: NonLocalMeansAttention, images: Array) -> Array:
    return np.stack(
        [
            nonlocal_means(
                image,
                patch_size=layer.patch_size,
                patch_distance=layer.patch_distance,
                h=head_value(layer.h, 0),
                sigma=layer.sigma,
                channel_axis=0,
            )
            for image in images
        ]
    )


def _logit_range(layer: NonLocalMeansAttention, images: Array) -> float:
    return float(np.ptp(images)) ** 2 / head_value(layer.h, 0) ** 2


for name, equation, patch_distance, sigma in (
    ("nonlocal-means", "SE-8", None, 0.0),
    ("nonlocal-means-windowed", "IF-14w", 6, 0.05),
):
    register(
        Twin(
            name=name,
            family="image_filters",
            relation=Identity(),
            equation=equation,
            source="Buades, Coll and Morel (2005); Attention: Self-Expression Is All You Need",
            layer=NonLocalMeansAttention,
            build=partial(_build, patch_distance=patch_distance, sigma=sigma),
            options=_options(patch_distance, sigma),
            solve=_solve,
            certificate=certify_average,
            inputs="image",
            covers=partial(_searches, whole_image=patch_distance is None),
            logit_range=_logit_range,
        )
    )
