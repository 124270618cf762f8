"""Twins: mixtures of experts on overlapping patches, and at their start as matching pursuit."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from ....solvers.sparse_coding import denoise_matching, denoise_patches
from ....solvers.sparse_coding.patch_codes import ExpertParameters, left_by
from ...models.denoisers import MixtureOfExpertsDenoiser
from ...sparse_coding.coding_step import PursuitStep
from ..heads import as_array
from ..registry import Array, Twin, register
from ..relations import Identity


def _build(images: Array, **settings: Any) -> MixtureOfExpertsDenoiser:
    settings = {"n_layers": 3, "threshold": 0.25, "channels": images.shape[1]} | settings
    return MixtureOfExpertsDenoiser(dtype=torch.float64, **settings)


def _build_moved(images: Array, **settings: Any) -> MixtureOfExpertsDenoiser:
    """Every parameter moved by some percent on its own."""
    layer, generator = _build(images, **settings), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * parameter.square().mean().sqrt() * noise)
    return layer


def layer_parameters(layer: PursuitStep) -> ExpertParameters:
    """What one layer's step has in the solver."""
    return ExpertParameters(
        as_array(layer.router),
        as_array(layer.analysis),
        as_array(layer.synthesis),
        float(layer.threshold().detach()),
    )


def _steps(layer: MixtureOfExpertsDenoiser) -> list[PursuitStep]:
    return cast(list[PursuitStep], list(layer.layers))


def _solve(layer: MixtureOfExpertsDenoiser, images: Array) -> Array:
    layers = [layer_parameters(step) for step in _steps(layer)]
    denoise = partial(
        denoise_patches,
        code=lambda rows: rows - left_by(rows, layers),
        patch_size=layer.patch_size,
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


def _is_pursuit(layer: MixtureOfExpertsDenoiser) -> bool:
    """Whether all layers have one dictionary and one threshold."""
    first = _steps(layer)[0]
    return all(
        bool(each.threshold() == first.threshold())
        and all(
            torch.equal(rows, first.router) for rows in (each.router, each.analysis, each.synthesis)
        )
        for each in _steps(layer)
    )


def _solve_pursuit(layer: MixtureOfExpertsDenoiser, images: Array) -> Array:
    D, _, _, threshold = layer_parameters(_steps(layer)[0])
    denoise = partial(
        denoise_matching,
        dictionary=D,
        threshold=threshold,
        n_iter=layer.n_layers,
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


def _register(name: str, build: Callable[..., MixtureOfExpertsDenoiser], **fields: Any) -> None:
    register(
        Twin(
            name=name,
            family="sparse_coding",
            relation=Identity(),
            equation="IF-32",
            source="Revisiting Transformers with Insights from Image Filtering, eq. 32 and 33",
            layer=MixtureOfExpertsDenoiser,
            build=build,
            options={
                "one-layer": partial(build, n_layers=1),
                "default-threshold": partial(build, sigma=0.1, threshold=None),
            },
            inputs="image",
            passes=lambda layer: layer.n_layers,
            **fields,
        )
    )


_register(
    "patch-experts-pursuit", _build, solve=_solve_pursuit, covers=_is_pursuit, evidence="solver"
)
_register("patch-experts", _build_moved, solve=_solve)
