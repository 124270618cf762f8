"""Twins: a step on the nonlocal energy of images."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers.nonlocal_energy import energy_gradient
from ...image_filters import BilateralFilter, EmbeddedMeans
from ...nonlocal_energy import NonlocalEnergyStep
from ..certificates import gradient_residual, pair_energies
from ..heads import Tensors, as_array
from ..image_filters.pixel_weights import image_of, pixel_weights, pixels_of
from ..parameters import head_value
from ..registry import Array, Twin, register
from ..relations import Identity, layer_output


def _build(image: Array, embedded: bool = False, **settings: Any) -> NonlocalEnergyStep:
    kind: dict[str, Any] = {"dtype": torch.float64}
    if embedded:
        channels = image.shape[1]
        base: Any = EmbeddedMeans(
            0.5, noise=0.05, patch_size=3, patch_distance=2, channels=channels, **kind
        )
    else:
        base = BilateralFilter(0.4, 1.5, **kind)
    return NonlocalEnergyStep(base, **{"lam": 0.3, "step": 0.7} | settings, **kind)


def _reached(images: Any) -> Any:
    """Images to step from, other than those observed: the same, upside down."""
    return images.flip(-2) if isinstance(images, Tensor) else images[..., ::-1, :]


def _solve(layer: NonlocalEnergyStep, images: Array, *, u: Any = _reached) -> Array:
    return np.stack([_step(layer, u(image), image) for image in images])


def _step(layer: NonlocalEnergyStep, u: Array, f: Array) -> Array:
    K = pixel_weights(layer.base, f)
    at, observed, lam = pixels_of(u), pixels_of(f), head_value(layer.lam, 0)
    gradient = energy_gradient(at, observed, K, lam, fidelity="degree")
    stepped = at - head_value(layer.step, 0) * gradient / K.sum(axis=1, keepdims=True)
    return image_of(stepped, f)


def _certify(twin: Twin, layer: NonlocalEnergyStep, inputs: Tensors) -> float:
    """Minimises ``s sum_j a_ij |v - u_j|^2 + s lam |v - f_i|^2 + (1 - s - s lam) |v - u_i|^2``."""
    f, stepped = as_array(inputs[0][0]), layer_output(twin, layer, inputs)[0]
    u, K = pixels_of(_reached(f)), pixel_weights(layer.base, f)
    s, lam = head_value(layer.step, 0), head_value(layer.lam, 0)
    own = np.eye(len(K))
    weights = [s * K / K.sum(axis=1, keepdims=True), s * lam * own, (1 - s - s * lam) * own]
    found = pixels_of(stepped)
    return gradient_residual(
        lambda moved: pair_energies(
            np.concatenate(weights, axis=1), moved, np.concatenate([u, pixels_of(f), u])
        ),
        found,
        gradient=0.0,
        curvature=np.ones(len(K)),
        unit=found,
    )


register(
    Twin(
        name="nonlocal-energy-step",
        family="nonlocal_energy",
        relation=Identity(),
        equation="NT-10, NT-22",
        source="Nguyen, Nguyen and Baraniuk (2023); Gilboa and Osher (2007)",
        layer=NonlocalEnergyStep,
        build=_build,
        options={
            "heavy-fidelity": partial(_build, lam=1.0, step=0.4),
            "of-embedded-means": partial(_build, embedded=True),
        },
        apply=lambda layer, image: layer(_reached(image), image),
        solve=_solve,
        certificate=_certify,
        task={
            "apply": lambda layer, image: layer(image, image),
            "solve": partial(_solve, u=lambda image: image),
            "certificate": None,
        },
        inputs="image",
        logit_range=lambda layer, images: float(np.ptp(images)) ** 2 / 0.16,
    )
)
