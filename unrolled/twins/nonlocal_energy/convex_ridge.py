"""Twins: the minimiser of a convex ridge regulariser's energy, and the network that it is."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers.nonlocal_energy import (
    FilterBank,
    Potentials,
    convex_ridge,
    dct_filters,
    minimize_convex_ridge,
)
from ...models.denoisers import ConvexRidgeDenoiser
from ...nonlocal_energy import ConvexRidge
from ..heads import Tensors, as_array
from ..parameters import moved
from ..registry import Array, Twin, register
from ..relations import Identity, Measurement, layer_output

_KNOTS = 2.0 ** np.arange(6)
_SOLVED = Identity(tolerance=1e-8)
_ACCURATE = {"tol": 1e-13, "max_iter": 20_000}


def _build(image: Array, **settings: Any) -> ConvexRidge:
    settings = {"lam": 0.05, "threshold": 0.1, "filter_size": 3, **_ACCURATE} | settings
    return ConvexRidge(**settings, dtype=torch.float64)


def _build_network(image: Array, **settings: Any) -> ConvexRidgeDenoiser:
    settings = {"sigma": 0.1, "filter_size": 3, "threshold": 3.0, **_ACCURATE} | settings
    return ConvexRidgeDenoiser(**settings, dtype=torch.float64)


def _off_ties(build: Callable[..., Any], **settings: Any) -> Callable[[Array], Any]:
    """Off the start, where many frequencies attain the norm of W, which has no gradient there."""
    return lambda image: moved(build(image, **settings))


def ridge_of(layer: ConvexRidge) -> tuple[FilterBank, Potentials]:
    """W and psi at the layer's parameters, as the solver takes them."""
    coefficients, logs, log_curvatures = (
        x.detach().double().cpu().numpy()
        for x in (layer.coefficients, layer.log_threshold, layer.log_curvature)
    )
    filters = np.tensordot(coefficients, dct_filters(layer.filter_size), axes=1)
    bank = FilterBank(filters / np.sqrt(FilterBank(filters).norm_bound()))
    curvatures = layer.rho * np.expm1(log_curvatures)
    beyond = np.pad(curvatures[:, 1:], ((0, 0), (0, 1)))
    return bank, Potentials(np.exp(logs)[:, None] * _KNOTS, curvatures - beyond)


def _solve(layer: ConvexRidge, images: Array) -> Array:
    bank, potentials = ridge_of(layer)
    solved = np.empty(images.shape)
    for place in np.ndindex(images.shape[:2]):
        solved[place] = minimize_convex_ridge(
            images[place], bank, potentials, lam=1.0, tol=1e-13, max_iter=20_000
        ).coef
    return solved


def _promised(layer: Any, inputs: Tensors, found: Array, expected: Array) -> Measurement:
    """Root mean square distances of planes, in grey levels, as the layer's `tol` and rounding."""
    images = inputs[0]
    eps = torch.finfo(torch.promote_types(images.dtype, torch.float32)).eps
    rounding = 4 * eps * float(images.abs().max()) / (1 - layer.rho)
    distances = np.sqrt(((found - expected) ** 2).mean(axis=(-2, -1)))
    return Measurement(float(distances.max()), layer.tol + rounding)


def _certify(twin: Twin, layer: ConvexRidge, inputs: Tensors) -> float:
    """Distances from the minimiser: of the output, and what the layer's proof is off for the input.

    In grey levels the first, which the solver's gradient proves; as a share the second, of the
    layer and of one whose potentials are concave in parts.
    """
    outputs = layer_output(twin, layer, inputs)
    residuals = list(_distances(layer, inputs[0], outputs))
    for ridge in (layer, moved(copy.deepcopy(layer))):
        proved = as_array(ridge.certificate(inputs[0], inputs[0])).ravel()
        expected = _distances(ridge, inputs[0], as_array(inputs[0]))
        residuals += list(np.abs(proved / expected - 1))
    return float(max(residuals))


def _distances(layer: ConvexRidge, images: Tensor, outputs: Array) -> Array:
    """What the solver's gradients prove of the outputs' distance from the minimisers."""
    bank, potentials = ridge_of(layer)
    pairs = zip(*(x.reshape(-1, *x.shape[-2:]) for x in (as_array(images), outputs)), strict=True)
    distances = []
    for plane, output in pairs:
        problem = convex_ridge(plane, bank, potentials, lam=1.0)
        gradient = problem.gradient(output)
        distances.append(np.linalg.norm(gradient) / problem.convexity / plane.size**0.5)
    return np.array(distances)


register(
    Twin(
        name="convex-ridge",
        family="nonlocal_energy",
        relation=_SOLVED,
        equation="FE-3",
        source="Goujon, Neumayer and Unser (2024)",
        layer=ConvexRidge,
        build=_build,
        options={
            "even-windows": _off_ties(_build, filter_size=4),
            "less-concave": _off_ties(_build, rho=0.5),
        },
        solve=_solve,
        certificate=_certify,
        promised=_promised,
        inputs="image",
        evidence="solver",
        differentiable_twice=(),
        passes=lambda layer: 10,
    )
)

register(
    Twin(
        name="convex-ridge-network",
        family="nonlocal_energy",
        relation=_SOLVED,
        equation="FE-3",
        source="Goujon, Neumayer and Unser (2024)",
        layer=ConvexRidgeDenoiser,
        build=_build_network,
        options={
            "wide-filters": _off_ties(_build_network, filter_size=5),
            "less-concave": _off_ties(_build_network, lam=2.0, rho=0.5),
        },
        solve=lambda network, images: _solve(network.ridge, images),
        promised=_promised,
        inputs="image",
        evidence="solver",
        differentiable_twice=(),
        passes=lambda network: 10,
    )
)
