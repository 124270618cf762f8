"""Twins: steps on the nonlocal energy of images, and minimisers of convex ridge regularisers."""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers.nonlocal_energy import (
    FilterBank,
    Potentials,
    convex_ridge,
    dct_filters,
    energy_gradient,
    minimize_convex_ridge,
)
from ....unrolled.image_filters import BilateralFilter, EmbeddedMeans
from ....unrolled.models.denoisers import ConvexRidgeDenoiser
from ....unrolled.nonlocal_energy import ConvexRidge, NonlocalEnergyStep
from ...heads import (
    Array,
    Tensors,
    build_moved,
    head_value,
    image_builder,
    move_parameters,
    solve_each_image,
)
from ...judging.certificates import gradient_residual, pair_energies
from ...laws import Measurement
from ...laws.subject import as_array
from ...pairs import Derivatives, Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import Identity
from ..image_filters import image_of, pixel_weights, pixels_of

_KNOTS = 2.0 ** np.arange(6)
_ACCURATE: dict[str, Any] = {"tol": 1e-13, "max_iter": 20_000}


_RIDGE: dict[str, Any] = {"lam": 0.05, "threshold": 0.1, "filter_size": 3}
_NETWORK: dict[str, Any] = {"sigma": 0.1, "threshold": 3.0, "filter_size": 3}
_build_ridge = image_builder(ConvexRidge, **_RIDGE, **_ACCURATE)
_build_network = image_builder(ConvexRidgeDenoiser, **_NETWORK, **_ACCURATE)
# At the start many frequencies attain the norm of W, so that it has no gradient there.
_off_ties = build_moved


def ridge_of(layer: ConvexRidge) -> tuple[FilterBank, Potentials]:
    """Return W and psi at the layer's parameters, as arguments of the solver."""
    coefficients, logs, log_curvatures = (
        as_array(x) for x in (layer.coefficients, layer.log_threshold, layer.log_curvature)
    )
    filters = np.tensordot(coefficients, dct_filters(layer.filter_size), axes=1)
    bank = FilterBank(filters / np.sqrt(FilterBank(filters).norm_bound()))
    curvatures = layer.rho * np.expm1(log_curvatures)
    beyond = np.pad(curvatures[:, 1:], ((0, 0), (0, 1)))
    return bank, Potentials(np.exp(logs)[:, None] * _KNOTS, curvatures - beyond)


def _measure_promise(layer: Any, inputs: Tensors, found: Array, expected: Array) -> Measurement:
    """Measure root mean square distances of planes against the layer's `tol` and rounding."""
    images = inputs[0]
    eps = torch.finfo(torch.promote_types(images.dtype, torch.float32)).eps
    rounding = 4 * eps * float(images.abs().max()) / (1 - layer.rho)
    distances = np.sqrt(((found - expected) ** 2).mean(axis=(-2, -1)))
    return Measurement(float(distances.max()), layer.tol + rounding)


def _solve_ridge(layer: ConvexRidge, images: Array) -> Array:
    """Minimise the energy of each plane by the solver."""
    bank, potentials = ridge_of(layer)
    solved = np.empty(images.shape)
    for place in np.ndindex(images.shape[:2]):
        solved[place] = minimize_convex_ridge(
            images[place], bank, potentials, lam=1.0, tol=1e-13, max_iter=20_000
        ).coef
    return solved


def _certify_ridge(twin: Twin, layer: ConvexRidge, inputs: Tensors) -> float:
    """Return the worst of two residuals: that of the output and that of the layer's own proof.

    The first is the distance of the output from the minimiser, in grey levels, which the solver's
    gradient proves. The second is the relative error of the distance that the layer proves for its
    input, also for a layer whose potentials are concave in parts.
    """
    outputs = layer_output(twin, layer, inputs)
    residuals = list(_bound_distances(layer, inputs[0], outputs))
    for ridge in (layer, move_parameters(copy.deepcopy(layer))):
        proved = as_array(ridge.certificate(inputs[0], inputs[0])).ravel()
        expected = _bound_distances(ridge, inputs[0], as_array(inputs[0]))
        residuals += list(np.abs(proved / expected - 1))
    return float(max(residuals))


def _bound_distances(layer: ConvexRidge, images: Tensor, outputs: Array) -> Array:
    """Return the distances of outputs from the minimisers that the solver's gradients prove."""
    bank, potentials = ridge_of(layer)
    pairs = zip(*(x.reshape(-1, *x.shape[-2:]) for x in (as_array(images), outputs)), strict=True)
    distances = []
    for plane, output in pairs:
        problem = convex_ridge(plane, bank, potentials, lam=1.0)
        gradient = problem.gradient(output)
        distances.append(np.linalg.norm(gradient) / problem.convexity / plane.size**0.5)
    return np.array(distances)


def _build(image: Array, embedded: bool = False, **settings: Any) -> NonlocalEnergyStep:
    """Build the step around embedded means or a bilateral filter."""
    kind: dict[str, Any] = {"dtype": torch.float64}
    if embedded:
        channels = image.shape[1]
        base: Any = EmbeddedMeans(
            0.5, noise=0.05, patch_size=3, patch_distance=2, channels=channels, **kind
        )
    else:
        base = BilateralFilter(0.4, 1.5, **kind)
    return NonlocalEnergyStep(base, **{"lam": 0.3, "step": 0.7} | settings, **kind)


def upside_down(images: Any) -> Any:
    """Turn images upside down: images that differ from the observed ones."""
    return images.flip(-2) if isinstance(images, Tensor) else images[..., ::-1, :]


def _step(layer: NonlocalEnergyStep, u: Array, f: Array) -> Array:
    """Take the step by the gradient of the solver's energy."""
    K = pixel_weights(layer.base, f)
    at, observed, lam = pixels_of(u), pixels_of(f), head_value(layer.lam, 0)
    gradient = energy_gradient(at, observed, K, lam, fidelity="degree")
    stepped = at - head_value(layer.step, 0) * gradient / K.sum(axis=1, keepdims=True)
    return image_of(stepped, f)


def _certify(twin: Twin, layer: NonlocalEnergyStep, inputs: Tensors) -> float:
    """Return how far the output is from minimising the step's energy for each pixel v.

    It is ``s sum_j a_ij |v - u_j|^2 + s lam |v - f_i|^2 + (1 - s - s lam) |v - u_i|^2``, with the
    step s and the pixels u_j before the step and f_i observed.
    """
    f, stepped = as_array(inputs[0][0]), layer_output(twin, layer, inputs)[0]
    u, K = pixels_of(upside_down(f)), pixel_weights(layer.base, f)
    s, lam = head_value(layer.step, 0), head_value(layer.lam, 0)
    identity = np.eye(len(K))
    weights = [
        s * K / K.sum(axis=1, keepdims=True),
        s * lam * identity,
        (1 - s - s * lam) * identity,
    ]
    after = pixels_of(stepped)
    return gradient_residual(
        lambda moved: pair_energies(
            np.concatenate(weights, axis=1), moved, np.concatenate([u, pixels_of(f), u])
        ),
        after,
        gradient=0.0,
        curvature=np.ones(len(K)),
        unit=after,
    )


_add = partial(add_twin, family="nonlocal_energy")
_ridge = partial(
    _add,
    equation="FE-3",
    source="Goujon, Neumayer and Unser (2024)",
    inputs=Inputs("image"),
    numerics=Numerics(passes=lambda layer: 10, promised=_measure_promise),
    derivatives=Derivatives(twice=()),
)
_ridge(
    name="convex-ridge",
    relation=Identity(1e-8, certificate=_certify_ridge, evidence="solver"),
    layer=ConvexRidge,
    build=_build_ridge,
    options={
        "even-windows": _off_ties(_build_ridge, filter_size=4),
        "less-concave": _off_ties(_build_ridge, rho=0.5),
    },
    solve=_solve_ridge,
)
_ridge(
    name="convex-ridge-network",
    relation=Identity(1e-8, evidence="solver"),
    layer=ConvexRidgeDenoiser,
    build=_build_network,
    options={
        "wide-filters": _off_ties(_build_network, filter_size=5),
        "less-concave": _off_ties(_build_network, lam=2.0, rho=0.5),
    },
    solve=lambda network, images: _solve_ridge(network.ridge, images),
)
_add(
    name="nonlocal-energy-step",
    relation=Identity(certificate=_certify),
    equation="NT-10, NT-22",
    source="Nguyen, Nguyen and Baraniuk (2023); Gilboa and Osher (2007)",
    layer=NonlocalEnergyStep,
    build=_build,
    options={
        "heavy-fidelity": partial(_build, lam=1.0, step=0.4),
        "of-embedded-means": partial(_build, embedded=True),
    },
    solve=solve_each_image(lambda layer, image: _step(layer, upside_down(image), image)),
    inputs=Inputs("image", apply=lambda layer, image: layer(upside_down(image), image)),
    numerics=Numerics(logit_range=lambda layer, images: float(np.ptp(images)) ** 2 / 0.16),
    task={
        "relation": Identity(),
        "inputs": Inputs("image", apply=lambda layer, image: layer(image, image)),
        "solve": solve_each_image(lambda layer, image: _step(layer, image, image)),
    },
)
