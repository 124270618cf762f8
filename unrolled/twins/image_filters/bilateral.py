"""Twins: the bilateral filter and its image layer."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers import bilateral_filter
from ...image_filters import BilateralFilter
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Identity
from .pixel_weights import certify_average


def _build(image: Array, **settings: Any) -> BilateralFilter:
    settings = {"sigma_color": 0.25, "sigma_spatial": 1.5} | settings
    return BilateralFilter(dtype=torch.float64, **settings)


def _build_moved(image: Array) -> BilateralFilter:
    layer: BilateralFilter = moved(_build(image))
    return layer


def _solve(layer: BilateralFilter, images: Array) -> Array:
    return np.stack(
        [
            bilateral_filter(
                image,
                win_size=layer.win_size,
                sigma_color=head_value(layer.sigma_color, 0),
                sigma_spatial=head_value(layer.sigma_spatial, 0),
                channel_axis=0,
            )
            for image in images
        ]
    )


def _logit_range(layer: BilateralFilter, images: Array) -> float:
    colours = np.square(np.ptp(images, axis=(2, 3))).sum(axis=1).max()
    places = 2 * (layer.win_size // 2) ** 2
    widths = head_value(layer.sigma_color, 0), head_value(layer.sigma_spatial, 0)
    return float(colours / (2 * widths[0] ** 2) + places / (2 * widths[1] ** 2))


register(
    Twin(
        name="bilateral-windowed",
        family="image_filters",
        relation=Identity(),
        equation="IF-13",
        source="Tomasi and Manduchi (1998)",
        layer=BilateralFilter,
        build=_build,
        options={
            "moved": _build_moved,
            "narrow": partial(_build, sigma_color=0.1, sigma_spatial=0.7),
            "small-window": partial(_build, win_size=3),
            "wide-window": partial(_build, win_size=15),
        },
        solve=_solve,
        certificate=certify_average,
        inputs="image",
        logit_range=_logit_range,
    )
)
