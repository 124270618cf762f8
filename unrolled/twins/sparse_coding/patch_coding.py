"""Twins: denoisers that code overlapping patches, layer by layer, and at their start as ISTA."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers.sparse_coding import denoise_ista, denoise_patches
from ....solvers.sparse_coding.patch_codes import CodingParameters, coded_by
from ...models.denoisers import PatchCodingDenoiser
from ...sparse_coding.coding_step import CodingStep
from ..heads import as_array
from ..registry import Array, Twin, register
from ..relations import Identity


def _build(images: Array, **settings: Any) -> PatchCodingDenoiser:
    """At a penalty that leaves some codes of images that are noise."""
    settings = {"n_layers": 3, "lam": 0.3, "patch_size": 4, "n_frequencies": 5} | settings
    return PatchCodingDenoiser(channels=images.shape[1], dtype=torch.float64, **settings)


def _build_moved(images: Array, **settings: Any) -> PatchCodingDenoiser:
    """Every parameter moved by some percent on its own."""
    layer, generator = _build(images, **settings), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * parameter.square().mean().sqrt() * noise)
    return layer


def layer_parameters(layer: CodingStep) -> CodingParameters:
    """What one layer's iteration has in the solver."""
    analysis = as_array(layer.analysis)
    return CodingParameters(
        analysis,
        np.zeros_like(analysis) if layer.synthesis is None else as_array(layer.synthesis),
        float(layer.step().detach()),
        as_array(layer.threshold()),
    )


def _solve(layer: PatchCodingDenoiser, images: Array) -> Array:
    layers = [layer_parameters(step) for step in layer.layers]
    W = as_array(layer.dictionary)
    denoise = partial(
        denoise_patches,
        code=lambda rows: coded_by(rows, layers) @ W,
        patch_size=layer.patch_size,
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


def _is_ista(layer: PatchCodingDenoiser) -> bool:
    """Whether all layers are ISTA steps with one penalty in the dictionary of reconstruction."""
    W, step = layer.dictionary, layer.layers[0].step()
    eps = 100 * torch.finfo(W.dtype).eps
    return all(
        torch.equal(each.analysis, W)
        and (each.synthesis is None or torch.equal(each.synthesis, W))
        and bool((each.step() - step).abs() <= eps * step)
        and bool((each.threshold() - step * layer.lam / 2).abs().max() <= eps * step * layer.lam)
        for each in layer.layers
    )


def _solve_ista(layer: PatchCodingDenoiser, images: Array) -> Array:
    step = layer_parameters(layer.layers[0]).step
    settings = {"lam": layer.lam, "n_iter": layer.n_layers, "step": step}
    W = as_array(layer.dictionary)
    return np.stack([denoise_ista(image, W, channel_axis=0, **settings) for image in images])


register(
    Twin(
        name="patch-coding-ista",
        family="sparse_coding",
        relation=Identity(),
        equation="SE-15",
        source="Gregor and LeCun (2010); Elad and Aharon (2006)",
        layer=PatchCodingDenoiser,
        build=_build,
        options={"one-layer": partial(_build, n_layers=1)},
        solve=_solve_ista,
        inputs="image",
        evidence="solver",
        covers=_is_ista,
        passes=lambda layer: layer.n_layers,
    )
)
register(
    Twin(
        name="patch-coding",
        family="sparse_coding",
        relation=Identity(),
        equation="SE-17",
        source="Gregor and LeCun (2010); Simon and Elad (2019)",
        layer=PatchCodingDenoiser,
        build=_build_moved,
        options={
            "one-layer": partial(_build_moved, n_layers=1),
            "even-dictionary": partial(_build_moved, patch_size=3, n_frequencies=3),
        },
        solve=_solve,
        inputs="image",
        passes=lambda layer: layer.n_layers,
    )
)
