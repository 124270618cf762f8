"""Twins: sparse coding of overlapping patches as an image layer."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ....solvers.sparse_coding import dct_dictionary, denoise_ista, denoise_patches
from ....solvers.sparse_coding.patch_codes import CodingParameters, coded_by
from ...sparse_coding import PatchSparseCoding
from ..heads import as_array
from ..registry import Array, Twin, register
from ..relations import Identity


def _build(images: Array, n_frequencies: int = 5, **settings: Any) -> PatchSparseCoding:
    channels = images.shape[1]
    D = dct_dictionary(4, n_frequencies, channels)
    return PatchSparseCoding(D, **({"lam": 0.3, "n_iter": 2} | settings), channels=channels)


def _build_moved(images: Array, **settings: Any) -> PatchSparseCoding:
    """Every parameter moved by some percent on its own."""
    layer, generator = _build(images, **settings), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * parameter.square().mean().sqrt() * noise)
    return layer


def _solve(layer: PatchSparseCoding, images: Array) -> Array:
    D, step = as_array(layer.dictionary), float(layer.step().detach())
    parameters = CodingParameters(D, D, step, step * np.exp(as_array(layer.log_lam)) / 2)
    denoise = partial(
        denoise_patches,
        code=lambda rows: coded_by(rows, [parameters] * layer.n_iter) @ D,
        patch_size=layer.patch_size,
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


def _has_one_penalty(layer: PatchSparseCoding) -> bool:
    return bool((layer.log_lam == layer.log_lam[0]).all())


def _solve_ista(layer: PatchSparseCoding, images: Array) -> Array:
    denoise = partial(
        denoise_ista,
        dictionary=as_array(layer.dictionary),
        lam=float(np.exp(as_array(layer.log_lam)[0])),
        n_iter=layer.n_iter,
        step=float(layer.step().detach()),
        channel_axis=0,
    )
    return np.stack([denoise(image) for image in images])


_COMMON: dict[str, Any] = {
    "family": "sparse_coding",
    "relation": Identity(),
    "equation": "SE-15",
    "source": "Elad and Aharon (2006)",
    "layer": PatchSparseCoding,
    "inputs": "image",
    "passes": lambda layer: layer.n_iter,
}
register(
    Twin(
        name="patch-sparse-coding-ista",
        build=_build,
        options={"orthonormal": partial(_build, n_frequencies=4)},
        solve=_solve_ista,
        evidence="solver",
        covers=_has_one_penalty,
        **_COMMON,
    )
)
register(
    Twin(
        name="patch-sparse-coding",
        build=_build_moved,
        options={"one-iteration": partial(_build_moved, n_iter=1)},
        solve=_solve,
        **_COMMON,
    )
)
