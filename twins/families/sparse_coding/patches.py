"""Twins: layers and networks that code overlapping patches.

At their initial parameters they are ISTA, or matching pursuit for mixtures of experts.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

from ....solvers.sparse_coding import (
    dct_dictionary,
    denoise_ista,
    denoise_matching,
    denoise_patches,
)
from ....solvers.sparse_coding.patch_codes import (
    CodingParameters,
    ExpertParameters,
    coded_by,
    left_by,
)
from ....solvers.sparse_coding.similar_patches import similar_patches
from ....unrolled.models.denoisers import (
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    PatchCodingDenoiser,
)
from ....unrolled.sparse_coding import PatchSparseCoding
from ....unrolled.sparse_coding.coding_step import CodingStep, GroupCodingStep, PursuitStep
from ....unrolled.sparse_coding.patches import Similar
from ...heads import Array, image_builder, perturb_parameters, solve_each_image
from ...laws.subject import as_array
from ...pairs import Derivatives, Inputs, Numerics
from ...registry import add_twin
from ...relations import Identity

_ROUNDINGS = 4  # roundings of the sum of squares of an image, in the layer's running sums


def nearest_patches(
    layer: nn.Module, planes: Array, size: int, *, window: int, n_similar: int
) -> Array:
    """Return the indices of similar patches, of shape (n_patches, n_similar).

    There are fewer if the window of a corner has fewer. Images of few grey levels have many equal
    distances: the layer's choice for a patch is taken if its distances equal those of the solver's
    choice up to the rounding of the layer's dtype.
    """
    fewest = math.prod(min(window, side - size) + 1 for side in planes.shape[1:])
    exact_choice = similar_patches(planes, size, window, min(n_similar, fewest))
    dtype = next(layer.parameters()).dtype
    images = torch.from_numpy(np.ascontiguousarray(planes))[None].to(dtype)
    chosen = Similar.around(images, size, window, n_similar).indices.numpy()
    windows = sliding_window_view(planes, (size, size), axis=(1, 2))
    rows = np.moveaxis(windows, 0, 2).reshape(len(exact_choice), -1)
    slack = _ROUNDINGS * torch.finfo(dtype).eps * float((planes**2).sum())
    difference = np.abs(_distances(rows, exact_choice) - _distances(rows, chosen)).max(axis=1)
    return np.where(difference[:, None] <= slack, chosen, exact_choice)


def _distances(rows: Array, indices: Array) -> Array:
    """Return the sorted squared distances of each row to the rows with its indices."""
    return np.sort(((rows[:, None] - rows[indices]) ** 2).sum(axis=2), axis=1)


def _build_perturbed(build: Any, **settings: Any) -> Any:
    """Return the build with noise on every parameter and with weights of similar patches."""

    def build_perturbed(images: Array) -> nn.Module:
        layer: nn.Module = perturb_parameters(build(images, **settings))
        generator = torch.Generator().manual_seed(0)
        for step in layer.modules():
            if isinstance(step, GroupCodingStep):
                step.sharing.data.uniform_(0.2, 0.8, generator=generator)
        return layer

    return build_perturbed


# The penalty leaves some non-zero codes for images of noise.
_NETWORK: dict[str, Any] = {"n_layers": 2, "lam": 0.3, "patch_size": 4, "n_frequencies": 5}


def layer_parameters(layer: CodingStep) -> CodingParameters:
    """Return the parameters of one layer's iteration as the solver takes them."""
    analysis = as_array(layer.analysis)
    return CodingParameters(
        analysis,
        np.zeros_like(analysis) if layer.synthesis is None else as_array(layer.synthesis),
        float(layer.step().detach()),
        as_array(layer.threshold()),
        as_array(layer.sharing) if isinstance(layer, GroupCodingStep) else 0.0,
    )


def _list_steps(network: Any) -> list[Any]:
    return list(network.layers)


def _denoise(layer: PatchCodingDenoiser, image: Array) -> Array:
    """Denoise by the solver's codes with the parameters of each layer."""
    layers, W = [layer_parameters(step) for step in _list_steps(layer)], as_array(layer.dictionary)
    similar = _find_similar(layer, image) if isinstance(layer, GroupCodingDenoiser) else None
    return denoise_patches(
        image,
        lambda rows: coded_by(rows, layers, similar) @ W,
        patch_size=layer.patch_size,
        channel_axis=0,
        in_bands=False,
    )


def _find_similar(layer: GroupCodingDenoiser, image: Array) -> Array:
    around = {"window": layer.window, "n_similar": layer.n_similar}
    return nearest_patches(layer, image, layer.patch_size, **around)


def _is_ista(layer: PatchCodingDenoiser) -> bool:
    """Whether all layers are ISTA steps with one penalty in the dictionary of reconstruction."""
    W, step = layer.dictionary, _list_steps(layer)[0].step()
    eps = 100 * torch.finfo(W.dtype).eps
    return all(
        not (isinstance(other, GroupCodingStep) and bool(other.sharing.any()))
        and torch.equal(other.analysis, W)
        and (other.synthesis is None or torch.equal(other.synthesis, W))
        and bool((other.step() - step).abs() <= eps * step)
        and bool((other.threshold() - step * layer.lam / 2).abs().max() <= eps * step * layer.lam)
        for other in _list_steps(layer)
    )


def _denoise_ista(layer: PatchCodingDenoiser, image: Array) -> Array:
    """Denoise by ISTA with one step, penalty and dictionary."""
    return denoise_ista(
        image,
        dictionary=as_array(layer.dictionary),
        lam=layer.lam,
        n_iter=layer.n_layers,
        step=layer_parameters(_list_steps(layer)[0]).step,
        channel_axis=0,
    )


def _build(images: Array, n_frequencies: int = 5, **settings: Any) -> PatchSparseCoding:
    """Build the layer with a cosine dictionary of patches of 4 x 4."""
    channels = images.shape[1]
    D = dct_dictionary(4, n_frequencies, channels)
    return PatchSparseCoding(D, **({"lam": 0.3, "n_iter": 2} | settings), channels=channels)


def _code(layer: PatchSparseCoding, image: Array) -> Array:
    """Denoise by the solver's codes with the layer's thresholds."""
    D, step = as_array(layer.dictionary), float(layer.step().detach())
    parameters = CodingParameters(D, D, step, step * np.exp(as_array(layer.log_lam)) / 2)
    return denoise_patches(
        image,
        lambda rows: coded_by(rows, [parameters] * layer.n_iter) @ D,
        patch_size=layer.patch_size,
        channel_axis=0,
    )


def _has_one_penalty(layer: PatchSparseCoding) -> bool:
    return bool((layer.log_lam == layer.log_lam[0]).all())


def _code_ista(layer: PatchSparseCoding, image: Array) -> Array:
    """Denoise by ISTA with one penalty."""
    return denoise_ista(
        image,
        dictionary=as_array(layer.dictionary),
        lam=float(np.exp(as_array(layer.log_lam)[0])),
        n_iter=layer.n_iter,
        step=float(layer.step().detach()),
        channel_axis=0,
    )


_build_experts = image_builder(
    MixtureOfExpertsDenoiser, of_channels=True, n_layers=3, threshold=0.25
)


def expert_parameters(layer: PursuitStep) -> ExpertParameters:
    """Return the parameters of one layer's step as the solver takes them."""
    return ExpertParameters(
        as_array(layer.router),
        as_array(layer.analysis),
        as_array(layer.synthesis),
        float(layer.threshold().detach()),
    )


def _denoise_by_experts(layer: MixtureOfExpertsDenoiser, image: Array) -> Array:
    """Denoise by the solver's pursuit with the parameters of each layer."""
    layers = [expert_parameters(step) for step in _list_steps(layer)]
    return denoise_patches(
        image,
        lambda rows: rows - left_by(rows, layers),
        patch_size=layer.patch_size,
        channel_axis=0,
    )


def _is_pursuit(layer: MixtureOfExpertsDenoiser) -> bool:
    """Whether all layers have one dictionary and one threshold."""
    first = _list_steps(layer)[0]
    return all(
        bool(other.threshold() == first.threshold())
        and all(
            torch.equal(rows, first.router)
            for rows in (other.router, other.analysis, other.synthesis)
        )
        for other in _list_steps(layer)
    )


def _pursue(layer: MixtureOfExpertsDenoiser, image: Array) -> Array:
    """Denoise by matching pursuit with one dictionary and threshold."""
    D, _, _, threshold = expert_parameters(_list_steps(layer)[0])
    return denoise_matching(
        image, dictionary=D, threshold=threshold, n_iter=layer.n_layers, channel_axis=0
    )


_add = partial(
    add_twin,
    family="sparse_coding",
    relation=Identity(),
    inputs=Inputs("image"),
    numerics=Numerics(passes=lambda network: network.n_layers),
)
_start = partial(_add, relation=Identity(evidence="solver"))
_OPTIONS: dict[str, dict[str, Any]] = {
    "one-layer": {"n_layers": 1},
    "three-layers": {"n_layers": 3},
    "orthonormal": {"patch_size": 3, "n_frequencies": 3},
    "default-penalty": {"sigma": 0.2, "lam": None},
}
_SIMILAR: dict[str, dict[str, Any]] = {
    "small-window": {"window": 2, "n_similar": 5},
    "one-similar": {"n_similar": 1},
}
for prefix, network, source, options, derivatives in (
    ("patch-coding", PatchCodingDenoiser, "Simon and Elad (2019)", _OPTIONS, Derivatives()),
    ("group-coding", GroupCodingDenoiser, "Lecouat, Ponce and Mairal (2020)",
     _OPTIONS | _SIMILAR, Derivatives(twice=("backward",))),
):  # fmt: skip
    build = image_builder(network, of_channels=True, **_NETWORK)
    _start(
        name=f"{prefix}-ista",
        equation="SE-15",
        source="Gregor and LeCun (2010); Elad and Aharon (2006)",
        layer=network,
        build=build,
        options={"one-layer": partial(build, n_layers=1)},
        solve=solve_each_image(_denoise_ista),
        covers=_is_ista,
    )
    _add(
        name=prefix,
        equation="SE-17",
        source=source,
        layer=network,
        build=_build_perturbed(build),
        options={name: _build_perturbed(build, **setting) for name, setting in options.items()},
        solve=solve_each_image(_denoise),
        derivatives=derivatives,
    )

_ITERATIONS: dict[str, Any] = {
    "equation": "SE-15",
    "source": "Elad and Aharon (2006)",
    "layer": PatchSparseCoding,
    "numerics": Numerics(passes=lambda layer: layer.n_iter),
}
_start(
    name="patch-sparse-coding-ista",
    build=_build,
    options={"orthonormal": partial(_build, n_frequencies=4)},
    solve=solve_each_image(_code_ista),
    covers=_has_one_penalty,
    **_ITERATIONS,
)
_add(
    name="patch-sparse-coding",
    build=_build_perturbed(_build),
    options={"one-iteration": _build_perturbed(_build, n_iter=1)},
    solve=solve_each_image(_code),
    **_ITERATIONS,
)

_EXPERTS: dict[str, Any] = {
    "equation": "IF-32",
    "source": "Revisiting Transformers with Insights from Image Filtering, eq. 32 and 33",
    "layer": MixtureOfExpertsDenoiser,
}
_FEW: dict[str, dict[str, Any]] = {
    "one-layer": {"n_layers": 1},
    "default-threshold": {"sigma": 0.1, "threshold": None},
}
_start(
    name="patch-experts-pursuit",
    build=_build_experts,
    options={name: partial(_build_experts, **setting) for name, setting in _FEW.items()},
    solve=solve_each_image(_pursue),
    covers=_is_pursuit,
    **_EXPERTS,
)
_add(
    name="patch-experts",
    build=_build_perturbed(_build_experts),
    options={name: _build_perturbed(_build_experts, **setting) for name, setting in _FEW.items()},
    solve=solve_each_image(_denoise_by_experts),
    **_EXPERTS,
)
