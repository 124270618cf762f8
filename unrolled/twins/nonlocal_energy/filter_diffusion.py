"""Twins: steps of diffusion by learned filters, and the network of them."""

from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ....solvers.nonlocal_energy import (
    FilterBank,
    Potentials,
    dct_filters,
    filter_diffusion_step,
)
from ...models.denoisers import FilterDiffusionDenoiser
from ...nonlocal_energy import FilterDiffusion
from ..registry import Array, Twin, register
from ..relations import Identity

_RATIOS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_SIGMA = 0.1


def _build_step(image: Array, **settings: Any) -> FilterDiffusion:
    settings = {"threshold": _SIGMA, "lam": 0.2, "filter_size": 3} | settings
    return FilterDiffusion(**settings, dtype=torch.float64)


def _build_network(image: Array, **settings: Any) -> FilterDiffusionDenoiser:
    settings = {"sigma": 5 * _SIGMA, "n_layers": 3, "filter_size": 3} | settings
    return FilterDiffusionDenoiser(**settings, dtype=torch.float64)


def _observed(images: Any) -> Any:
    """Images to be near, other than the image stepped from: the same, upside down."""
    return images.flip(-2) if isinstance(images, Tensor) else images[..., ::-1, :]


def step_of(layer: FilterDiffusion, u: Array, f: Array) -> Array:
    """The solver's step at the layer's parameters, for images of any leading shape."""
    coefficients, logs, weights, lam = (
        x.detach().double().cpu().numpy()
        for x in (layer.coefficients, layer.log_threshold, layer.weights, layer.lam)
    )
    bank = FilterBank(np.tensordot(coefficients, dct_filters(layer.filter_size), axes=1))
    potentials = Potentials(np.exp(logs)[:, None] * _RATIOS, weights)
    stepped = np.empty(u.shape)
    for place in np.ndindex(u.shape[:-2]):
        stepped[place] = filter_diffusion_step(u[place], f[place], bank, potentials, lam=float(lam))
    return stepped


def _solve_network(network: FilterDiffusionDenoiser, images: Array) -> Array:
    u = images
    for step in network.steps:
        u = step_of(cast(FilterDiffusion, step), u, images)
    return u


register(
    Twin(
        name="filter-diffusion",
        family="nonlocal_energy",
        relation=Identity(),
        equation="FE-1",
        source="Chen and Pock (2017)",
        layer=FilterDiffusion,
        build=_build_step,
        options={
            "even-windows": partial(_build_step, filter_size=4),
            "no-fidelity": partial(_build_step, lam=0.0),
        },
        apply=lambda layer, image: layer(image, _observed(image)),
        solve=lambda layer, images: step_of(layer, images, _observed(images)),
        task={
            "apply": lambda layer, image: layer(image, image),
            "solve": lambda layer, images: step_of(layer, images, images),
        },
        inputs="image",
        differentiable_twice=(),
    )
)

register(
    Twin(
        name="filter-diffusion-network",
        family="nonlocal_energy",
        relation=Identity(),
        equation="FE-1, FE-2",
        source="Chen and Pock (2017)",
        layer=FilterDiffusionDenoiser,
        build=_build_network,
        options={
            "one-layer": partial(_build_network, n_layers=1, threshold=1.5),
            "wide-filters": partial(_build_network, n_layers=2, filter_size=5, lam=0.3),
        },
        solve=_solve_network,
        task={"build": partial(_build_network, sigma=_SIGMA)},
        inputs="image",
        differentiable_twice=(),
        passes=lambda network: network.n_layers,
    )
)
