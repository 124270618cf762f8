"""Twins: denoisers that code overlapping patches, layer by layer, and at their start as ISTA."""

from functools import partial
from typing import Any, cast

import numpy as np
import torch

from ....solvers.sparse_coding import denoise_ista, denoise_patches
from ....solvers.sparse_coding.patch_codes import CodingParameters, coded_by
from ...models.denoisers import GroupCodingDenoiser, PatchCodingDenoiser
from ...sparse_coding.coding_step import CodingStep, GroupCodingStep
from ..heads import as_array
from ..nearest_patches import nearest_patches
from ..registry import Array, Twin, Way, register
from ..relations import Identity


def _build(
    images: Array, network: type[PatchCodingDenoiser] = PatchCodingDenoiser, **settings: Any
) -> PatchCodingDenoiser:
    """At a penalty that leaves some codes of images that are noise."""
    settings = {"n_layers": 2, "lam": 0.3, "patch_size": 4, "n_frequencies": 5} | settings
    return network(channels=images.shape[1], dtype=torch.float64, **settings)


def _build_moved(images: Array, **settings: Any) -> PatchCodingDenoiser:
    """Every parameter moved by some percent on its own, and thresholds that attend."""
    layer, generator = _build(images, **settings), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * parameter.square().mean().sqrt() * noise)
        for step in _steps(layer):
            if isinstance(step, GroupCodingStep):
                step.sharing.uniform_(0.2, 0.8, generator=generator)
    return layer


def layer_parameters(layer: CodingStep) -> CodingParameters:
    """What one layer's iteration has in the solver."""
    analysis = as_array(layer.analysis)
    return CodingParameters(
        analysis,
        np.zeros_like(analysis) if layer.synthesis is None else as_array(layer.synthesis),
        float(layer.step().detach()),
        as_array(layer.threshold()),
        as_array(layer.sharing) if isinstance(layer, GroupCodingStep) else 0.0,
    )


def _steps(layer: PatchCodingDenoiser) -> list[CodingStep]:
    return cast(list[CodingStep], list(layer.layers))


def _solve(layer: PatchCodingDenoiser, images: Array) -> Array:
    return np.stack([_denoise(layer, image) for image in images])


def _denoise(layer: PatchCodingDenoiser, image: Array) -> Array:
    layers, W = [layer_parameters(step) for step in _steps(layer)], as_array(layer.dictionary)
    similar = _similar(layer, image) if isinstance(layer, GroupCodingDenoiser) else None
    return denoise_patches(
        image,
        lambda rows: coded_by(rows, layers, similar) @ W,
        patch_size=layer.patch_size,
        channel_axis=0,
        in_bands=False,
    )


def _similar(layer: GroupCodingDenoiser, image: Array) -> Array:
    around = {"window": layer.window, "n_similar": layer.n_similar}
    return nearest_patches(layer, image, layer.patch_size, **around)


def _is_ista(layer: PatchCodingDenoiser) -> bool:
    """Whether all layers are ISTA steps with one penalty in the dictionary of reconstruction."""
    W, step = layer.dictionary, _steps(layer)[0].step()
    eps = 100 * torch.finfo(W.dtype).eps
    return all(
        not (isinstance(each, GroupCodingStep) and bool(each.sharing.any()))
        and torch.equal(each.analysis, W)
        and (each.synthesis is None or torch.equal(each.synthesis, W))
        and bool((each.step() - step).abs() <= eps * step)
        and bool((each.threshold() - step * layer.lam / 2).abs().max() <= eps * step * layer.lam)
        for each in _steps(layer)
    )


def _solve_ista(layer: PatchCodingDenoiser, images: Array) -> Array:
    denoise = partial(
        denoise_ista,
        dictionary=as_array(layer.dictionary),
        lam=layer.lam,
        n_iter=layer.n_layers,
        step=layer_parameters(_steps(layer)[0]).step,
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


def _register(
    prefix: str,
    network: type[PatchCodingDenoiser],
    source: str,
    options: dict[str, dict[str, Any]],
    differentiable_twice: tuple[Way, ...],
) -> None:
    """One twin for the start, and one for any parameters."""
    start = partial(_build, network=network)
    moved = partial(_build_moved, network=network)
    common: dict[str, Any] = {
        "family": "sparse_coding",
        "relation": Identity(),
        "layer": network,
        "inputs": "image",
        "passes": lambda layer: layer.n_layers,
    }
    register(
        Twin(
            name=f"{prefix}-ista",
            equation="SE-15",
            source="Gregor and LeCun (2010); Elad and Aharon (2006)",
            build=start,
            options={"one-layer": partial(start, n_layers=1)},
            solve=_solve_ista,
            evidence="solver",
            covers=_is_ista,
            **common,
        )
    )
    register(
        Twin(
            name=prefix,
            equation="SE-17",
            source=source,
            build=moved,
            options={
                name: partial(moved, **setting) for name, setting in (_OPTIONS | options).items()
            },
            solve=_solve,
            differentiable_twice=differentiable_twice,
            **common,
        )
    )


_OPTIONS: dict[str, dict[str, Any]] = {
    "one-layer": {"n_layers": 1},
    "three-layers": {"n_layers": 3},
    "orthonormal": {"patch_size": 3, "n_frequencies": 3},
    "default-penalty": {"sigma": 0.2, "lam": None},
}

_register(
    "patch-coding", PatchCodingDenoiser, "Simon and Elad (2019)", {}, ("backward", "torch.func")
)
_register(
    "group-coding",
    GroupCodingDenoiser,
    "Lecouat, Ponce and Mairal (2020)",
    {"small-window": {"window": 2, "n_similar": 5}, "one-similar": {"n_similar": 1}},
    ("backward",),
)
