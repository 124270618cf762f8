"""Twins: twicing, L2 boosting and SOS boosting of image layers."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers import l2_boosting, sos_boosting, twicing
from ...boosting import BoostedFilter
from ...image_filters import BilateralFilter, EmbeddedMeans, NonLocalMeansAttention
from ..image_filters.pixel_weights import image_of, pixel_weights, pixels_of
from ..parameters import head_value
from ..registry import Array, Twin, register
from ..relations import Identity


def _build(image: Array, base: str = "bilateral", **settings: Any) -> BoostedFilter:
    kind: dict[str, Any] = {"dtype": torch.float64}
    bases = {
        "bilateral": lambda: BilateralFilter(0.4, 2.0, **kind),
        "embedded": lambda: EmbeddedMeans(
            0.5, noise=0.05, patch_size=3, patch_distance=2, channels=image.shape[1], **kind
        ),
        "nonlocal": lambda: NonLocalMeansAttention(0.5, patch_size=3, patch_distance=2, **kind),
    }
    return BoostedFilter(bases[base](), **settings, **kind)


def _solve(layer: BoostedFilter, images: Array) -> Array:
    return np.stack([_boosted(layer, image) for image in images])


def _boosted(layer: BoostedFilter, image: Array) -> Array:
    K = pixel_weights(layer.base, image)
    A, y, tau = K / K.sum(axis=1, keepdims=True), pixels_of(image), head_value(layer.tau, 0)
    if layer.rho >= 0:
        u = sos_boosting(A, y, n_iter=layer.n_iter, rho=layer.rho, tau=tau)
    elif layer.n_iter == 2 and tau == 1:
        u = twicing(A, y)
    else:
        u = l2_boosting(tau * A, y, n_iter=layer.n_iter)  # tau may be over 1, shrinkage not
    return image_of(u, image)


register(
    Twin(
        name="boosted-filter",
        family="boosting",
        relation=Identity(),
        equation="IF-TW",
        source="Tukey (1977); Bühlmann and Yu (2003); Romano and Elad (2015)",
        layer=BoostedFilter,
        build=_build,
        options={
            "l2-boosting": partial(_build, n_iter=5, tau=0.7),
            "sos-boosting": partial(_build, n_iter=4, rho=0.6, tau=0.8),
            "once": partial(_build, n_iter=1),
            "of-embedded-means": partial(_build, base="embedded"),
            "sos-of-nonlocal-means": partial(_build, base="nonlocal", n_iter=3, rho=1.0),
        },
        solve=_solve,
        inputs="image",
        passes=lambda layer: layer.n_iter,
        logit_range=lambda layer, images: float(np.ptp(images)) ** 2 / 0.16,
    )
)
