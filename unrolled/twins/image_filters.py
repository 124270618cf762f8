"""Twins: non-local means and its image layer."""

from functools import partial

import numpy as np
import torch

from ...solvers import nonlocal_means
from ..image_filters import NonLocalMeansAttention
from .parameters import head_value
from .registry import Array, Twin, register
from .relations import Identity


def _build(image: Array, *, patch_distance: int | None, sigma: float) -> NonLocalMeansAttention:
    return NonLocalMeansAttention(
        0.1,
        patch_size=5 if min(image.shape[-2:]) >= 16 else 3,
        patch_distance=patch_distance,
        sigma=sigma,
        dtype=torch.float64,
    )


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
    ("nonlocal-means-windowed", "9.5", 6, 0.05),
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
            solve=_solve,
            inputs="image",
            covers=partial(_searches, whole_image=patch_distance is None),
            logit_range=_logit_range,
        )
    )
