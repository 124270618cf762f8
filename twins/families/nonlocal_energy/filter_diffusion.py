"""Twins: steps of diffusion by learned filters, and networks of such steps."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ....solvers.nonlocal_energy import (
    FilterBank,
    NonlocalFilterBank,
    Potentials,
    dct_filters,
    filter_diffusion_step,
)
from ....unrolled.models.denoisers import (
    FilterDiffusionDenoiser,
    NoiseLevelDiffusionDenoiser,
    NonlocalFilterDiffusionDenoiser,
)
from ....unrolled.nonlocal_energy import (
    FilterDiffusion,
    NoiseLevelFilterDiffusion,
    NonlocalFilterDiffusion,
)
from ....unrolled.sparse_coding.patches import Similar
from ...heads import Array, Tensors, image_builder
from ...laws.subject import as_array
from ...pairs import Derivatives, Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import Identity
from ..sparse_coding.patches import nearest_patches
from .image_energies import upside_down

_Step = Callable[[Any, Any, Any], Any]
_RATIOS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_SIGMA = 0.1
_N_DIRECTIONS = 16


_STEP: dict[str, Any] = {"threshold": _SIGMA, "lam": 0.2, "filter_size": 3}
_NETWORK: dict[str, Any] = {"sigma": 5 * _SIGMA, "n_layers": 3, "filter_size": 3}
_build_step = image_builder(FilterDiffusion, **_STEP)
_build_network = image_builder(FilterDiffusionDenoiser, **_NETWORK)


_RATIO = 1.7  # of the noise level to that of the parameters without slopes


def _parameters_of(layer: FilterDiffusion, ratio: float) -> dict[str, Any]:
    """Return the parameters of a step, computed from the definition if they have slopes."""
    held = {name: as_array(parameter) for name, parameter in layer.named_parameters()}
    if isinstance(layer, NoiseLevelFilterDiffusion):
        t = np.log(np.clip(ratio, 0.2, 3.0))
        held["coefficients"] = held["coefficients"] + t * held["coefficient_slopes"]
        held["log_threshold"] = held["log_threshold"] + np.log(ratio)
        for name, slopes in (("weights", "weight_slopes"), ("lam", "lam_slopes")):
            held[name] = held[name] + np.tensordot([t, t**2], held[slopes], axes=1)
    return held


def energy_of(
    layer: FilterDiffusion, similar: Array | None = None, *, ratio: float = 1.0
) -> dict[str, Any]:
    """Return the solver's bank, potentials and lam at the layer's parameters.

    For a `NonlocalFilterDiffusion`, `similar` holds the indices of the windows similar to each. A
    `NoiseLevelFilterDiffusion` is that for `ratio`.
    """
    held = _parameters_of(layer, ratio)
    filters = np.tensordot(held["coefficients"], dct_filters(layer.filter_size), axes=1)
    thresholds = np.exp(held["log_threshold"])[:, None] * _RATIOS
    if isinstance(layer, NonlocalFilterDiffusion):
        assert similar is not None
        bank: FilterBank = NonlocalFilterBank(filters, similar, sharing=as_array(layer.sharing))
    else:
        bank = FilterBank(filters)
    potentials = Potentials(thresholds, held["weights"])
    return {"bank": bank, "potentials": potentials, "lam": float(held["lam"])}


def step_of(
    layer: FilterDiffusion,
    u: Array,
    f: Array,
    similar: dict[tuple[int, ...], Array] | None = None,
    *,
    ratio: float = 1.0,
) -> Array:
    """Take the solver's step from u near f at the layer's parameters, for any leading shape.

    For a `NonlocalFilterDiffusion`, `similar` holds the indices of similar windows of each image. A
    `NoiseLevelFilterDiffusion` is that for `ratio`.
    """
    stepped = np.empty(u.shape)
    energy = energy_of(layer, ratio=ratio) if similar is None else {}
    for place in np.ndindex(u.shape[:-2]):
        if similar is not None:
            energy = energy_of(layer, similar[place])
        stepped[place] = filter_diffusion_step(u[place], f[place], **energy)
    return stepped


def _certify(
    twin: Twin, layer: FilterDiffusion, inputs: Tensors, *, similar: Any = None, ratio: float = 1.0
) -> float:
    """Check the step v of u by its optimality condition along random directions d.

    It is ``<n (u - v), d> = sum_i <rho_i'(K_i u), K_i d> + lam <n (u - f), d>``, n the number of
    windows of each pixel.
    """
    (u, *_), (v, *_) = as_array(inputs[0][0]), layer_output(twin, layer, inputs)[0]
    f = upside_down(u)
    nearest = similar(layer, f) if similar is not None else None
    energy = energy_of(layer, nearest, ratio=ratio)
    bank, lam = energy["bank"], energy["lam"]
    counts, pull = bank.counts(u.shape), energy["potentials"].influence(bank(u))
    residuals = []
    for direction in np.random.default_rng(0).standard_normal((_N_DIRECTIONS, *u.shape)):
        d = direction / counts
        expected = (pull * bank(d)).sum() + lam * ((u - f) * direction).sum()
        residuals.append(abs(((u - v) * direction).sum() - expected))
    return max(residuals) / np.abs(v).max()


def _map_images(function: Callable[[Array], Array], images: Array) -> dict[tuple[int, ...], Array]:
    """Return ``function(image)`` for each image, by its index in the leading axes."""
    return {place: function(images[place]) for place in np.ndindex(images.shape[:-2])}


def _similar_in(network: Any, image: Array) -> Array:
    around = {"window": network.window, "n_similar": network.n_similar}
    return nearest_patches(network, image[None], network.filter_size, **around)


def _solve_network(network: FilterDiffusionDenoiser, images: Array) -> Array:
    """Run the network's steps, each by the solver."""
    nonlocally = isinstance(network, NonlocalFilterDiffusionDenoiser)
    u, similar = images, _map_images(partial(_similar_in, network), images) if nonlocally else None
    for step in network.steps:
        u = step_of(cast(FilterDiffusion, step), u, images, similar)
    return u


_AROUND: dict[str, Any] = {"window": 2, "n_similar": 4}


def _build_shared(image: Array, **settings: Any) -> NonlocalFilterDiffusion:
    """Build the layer with weights of the similar windows that differ from the initial ones."""
    return _move_sharing(image_builder(NonlocalFilterDiffusion, **_STEP)(image, **settings))


def _build_nonlocal(
    image: Array, shared: bool = True, **settings: Any
) -> NonlocalFilterDiffusionDenoiser:
    """Build the nonlocal network; `shared` moves the weights of similar windows."""
    build = image_builder(NonlocalFilterDiffusionDenoiser, **_NETWORK, **_AROUND)
    network: NonlocalFilterDiffusionDenoiser = build(image, **settings)
    for step in network.steps if shared else ():
        _move_sharing(cast(NonlocalFilterDiffusion, step))
    return network


def _move_sharing(layer: NonlocalFilterDiffusion) -> NonlocalFilterDiffusion:
    """Set the layer's weights of similar windows to values from -0.2 to 1.2."""
    with torch.no_grad():
        layer.sharing.copy_(torch.linspace(-0.2, 1.2, len(layer.sharing)))
    return layer


def _apply_shared(layer: NonlocalFilterDiffusion, u: Tensor, f: Tensor) -> Tensor:
    planes = f.flatten(0, 1)[:, None]
    return layer(u, f, Similar.around(planes, layer.filter_size, **_AROUND))


def _similar_to(layer: FilterDiffusion, image: Array) -> Array:
    return nearest_patches(layer, image[None], layer.filter_size, **_AROUND)


def _solve_shared(layer: NonlocalFilterDiffusion, u: Array, f: Array) -> Array:
    return step_of(layer, u, f, _map_images(partial(_similar_to, layer), f))


def _build_with_slopes(image: Array, **settings: Any) -> NoiseLevelFilterDiffusion:
    """Build the layer with parameters that differ from one noise level to the next."""
    layer: NoiseLevelFilterDiffusion
    layer = image_builder(NoiseLevelFilterDiffusion, **_STEP)(image, **settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for slopes in (layer.coefficient_slopes, layer.weight_slopes, layer.lam_slopes):
            drawn = torch.randn(slopes.shape, generator=generator, dtype=slopes.dtype)
            slopes.copy_(0.1 * drawn)
    return layer


def _step_fields(apply: _Step, solve: _Step, observe: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the fields of a twin that steps from an image near ``observe(image)``."""
    return {
        "inputs": Inputs("image", apply=lambda layer, image: apply(layer, image, observe(image))),
        "solve": lambda layer, images: solve(layer, images, observe(images)),
    }


_add = partial(add_twin, family="nonlocal_energy", derivatives=Derivatives(twice=()))
for name, source, layer, build, apply, solve, certificate in (
    ("filter-diffusion", "Chen and Pock (2017)", FilterDiffusion, _build_step,
     lambda layer, u, f: layer(u, f), step_of, _certify),
    ("nonlocal-filter-diffusion", "Qiao et al. (2017)", NonlocalFilterDiffusion, _build_shared,
     _apply_shared, _solve_shared, partial(_certify, similar=_similar_to)),
    ("noise-level-diffusion", "Chen and Pock (2017)", NoiseLevelFilterDiffusion,
     _build_with_slopes, lambda layer, u, f: layer(u, f, u.new_tensor(_RATIO)),
     partial(step_of, ratio=_RATIO), partial(_certify, ratio=_RATIO)),
):  # fmt: skip
    _add(
        name=name,
        relation=Identity(certificate=certificate),
        equation="FE-1",
        source=source,
        layer=layer,
        build=build,
        options={
            "even-windows": partial(build, filter_size=4),
            "no-fidelity": partial(build, lam=0.0),
        },
        **_step_fields(apply, solve, upside_down),
        task=_step_fields(apply, solve, lambda images: images) | {"relation": Identity()},
    )
_network = partial(
    _add,
    relation=Identity(),
    equation="FE-1, FE-2",
    solve=_solve_network,
    inputs=Inputs("image"),
    numerics=Numerics(passes=lambda network: network.n_layers),
)
_network(
    name="filter-diffusion-network",
    source="Chen and Pock (2017)",
    layer=FilterDiffusionDenoiser,
    build=_build_network,
    options={
        "one-layer": partial(_build_network, n_layers=1, threshold=1.5),
        "wide-filters": partial(_build_network, n_layers=2, filter_size=5, lam=0.3),
    },
    task={"build": partial(_build_network, sigma=_SIGMA)},
)
_network(
    name="nonlocal-filter-diffusion-network",
    source="Qiao et al. (2017)",
    layer=NonlocalFilterDiffusionDenoiser,
    build=_build_nonlocal,
    options={
        "start": partial(_build_nonlocal, shared=False),
        "one-layer": partial(_build_nonlocal, n_layers=1, threshold=1.5),
        "small-window": partial(_build_nonlocal, window=1, n_similar=6, lam=0.3),
    },
    task={"build": partial(_build_nonlocal, sigma=_SIGMA)},
)
_network(
    name="noise-level-diffusion-network",
    source="Chen and Pock (2017)",
    layer=NoiseLevelDiffusionDenoiser,
    build=image_builder(NoiseLevelDiffusionDenoiser, **_NETWORK),
    options={
        "one-layer": partial(
            image_builder(NoiseLevelDiffusionDenoiser, **_NETWORK), n_layers=1, threshold=1.5
        )
    },
    task={"build": image_builder(NoiseLevelDiffusionDenoiser, **_NETWORK | {"sigma": _SIGMA})},
)
