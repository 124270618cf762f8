"""Where the parameters of image layers and denoisers start, from their constructors' arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from torch import nn

from ...solvers.nonlocal_energy import dct_filters
from ...solvers.sparse_coding import dct_dictionary
from ..image_filters import EmbeddedMeans
from ..models.denoisers import (
    ConvexRidgeDenoiser,
    FilterDiffusionDenoiser,
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    NonlocalFilterDiffusionDenoiser,
    NonLocalMeansDenoiser,
    PatchCodingDenoiser,
)
from ..models.denoisers.nonlocal_means import NonLocalMeansStep
from ..nonlocal_energy import ConvexRidge, FilterDiffusion, NonlocalFilterDiffusion
from ..sparse_coding import PatchSparseCoding
from ..sparse_coding.coding_step import CodingStep, GroupCodingStep, PursuitStep
from ..sparse_coding.patches import photograph_dictionary
from .heads import as_array
from .registry import Array

Comparison = tuple[str, Any, Any]
Held = Callable[[Any, dict[str, Any]], Iterable[Comparison]]


def _embedded_means(layer: EmbeddedMeans, given: dict[str, Any]) -> Iterator[Comparison]:
    size, channels = given["patch_size"], given["channels"]
    taps = np.ones(size)
    if given["patch_weights"] == "gaussian" and size > 1:
        taps = np.exp(-2 * np.linspace(-1, 1, size) ** 2)
    taps /= taps.sum()
    weights = np.tile(np.outer(taps, taps).ravel(), channels) / channels
    yield "embedding", layer.embedding.flatten(1), np.diag(weights**0.5)
    yield from (("h", layer.h, given["h"]), ("noise", layer.noise, given["noise"]))


def _nonlocal_means_step(layer: NonLocalMeansStep, given: dict[str, Any]) -> Iterator[Comparison]:
    h, noise = given.pop("h"), given.pop("noise")
    yield from _embedded_means(layer.means, {"h": h, "noise": noise, **given.pop("settings")})
    yield from (("lam", layer.lam, 0.0), ("tau", layer.tau, given["tau"]))
    yield "rho", layer.rho, given["rho"]


def _nonlocal_means_denoiser(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    names = ("patch_size", "patch_distance", "patch_weights", "channels")
    settings = {name: given[name] for name in names}
    for k, step in enumerate(layer.layers):
        h, noise, tau, rho = (
            (given["h_later"], given["noise_later"], given["tau"], -1.0)
            if k
            else (given["h"], 1.0, 1.0, 0.0)
        )
        start = {"h": h * given["sigma"], "noise": noise * given["sigma"], "tau": tau, "rho": rho}
        yield from _within(
            f"layers.{k}", _nonlocal_means_step(step, start | {"settings": settings})
        )


def _filter_diffusion(layer: FilterDiffusion, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "filters", layer.filters(), dct_filters(given["filter_size"])
    yield "threshold", layer.log_threshold.exp(), given.pop("threshold")
    yield "weights", layer.weights, _first(layer.weights, 1.0)
    yield "lam", layer.lam, given["lam"]


def _filter_diffusion_denoiser(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    start = {"lam": given["lam"], "filter_size": given["filter_size"]}
    for k, step in enumerate(layer.steps):
        threshold = given["threshold"] * given["sigma"]
        yield from _within(f"steps.{k}", _filter_diffusion(step, {"threshold": threshold, **start}))


def _nonlocal_filter_diffusion(
    layer: NonlocalFilterDiffusion, given: dict[str, Any]
) -> Iterator[Comparison]:
    yield from _filter_diffusion(layer, given)
    yield "sharing", layer.sharing, 0.0


def _nonlocal_filter_diffusion_denoiser(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    yield from _filter_diffusion_denoiser(layer, given)
    for k, step in enumerate(layer.steps):
        yield f"steps.{k}.sharing", step.sharing, 0.0


def _convex_ridge(layer: ConvexRidge, given: dict[str, Any]) -> Iterator[Comparison]:
    lam, threshold = given.pop("lam"), given.pop("threshold")
    yield "coefficients", layer.coefficients, np.eye(given["filter_size"] ** 2 - 1)
    yield "threshold", layer.log_threshold.exp(), threshold
    yield "curvatures", layer.curvatures(), _first(layer.log_curvature, lam / threshold)


def _convex_ridge_denoiser(
    layer: ConvexRidgeDenoiser, given: dict[str, Any]
) -> Iterator[Comparison]:
    size = given["filter_size"]
    unit = given["sigma"] / size
    start = {"lam": given["lam"] * unit, "threshold": given["threshold"] * unit}
    yield from _within("ridge", _convex_ridge(layer.ridge, start | {"filter_size": size}))


def _patch_sparse_coding(layer: PatchSparseCoding, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "step", layer.step, np.linalg.norm(as_array(layer.dictionary), 2) ** -2.0
    yield "penalties", layer.log_lam.exp(), given["lam"]


def _coding_step(layer: CodingStep, given: dict[str, Any]) -> Iterator[Comparison]:
    D = given.pop("dictionary")
    yield "analysis", layer.analysis, D
    yield "synthesis", layer.synthesis, None if given.pop("from_zero") else D
    yield "threshold", layer.threshold(), given["step"] * given.pop("lam") / 2
    yield "step", layer.step, given["step"]


def _group_coding_step(layer: GroupCodingStep, given: dict[str, Any]) -> Iterator[Comparison]:
    given.clear()  # passed on to `CodingStep`
    yield "sharing", layer.sharing, 0.0


def _patch_coding(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    if given["lam"] is None:
        given["lam"] = 3 * given["sigma"]
    D = dct_dictionary(given["patch_size"], given["n_frequencies"], given["channels"])
    start = {"dictionary": D, "lam": given["lam"], "step": np.linalg.norm(D, 2) ** -2.0}
    for k, step in enumerate(layer.layers):
        yield from _within(f"layers.{k}", _coding_step(step, start | {"from_zero": k == 0}))
    yield "dictionary", layer.dictionary, D


def _group_coding(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    yield from _patch_coding(layer, given)
    for k, step in enumerate(layer.layers):
        yield from _within(f"layers.{k}", _group_coding_step(step, {}))


def _pursuit_step(layer: PursuitStep, given: dict[str, Any]) -> Iterator[Comparison]:
    D = given.pop("dictionary")
    for name in ("router", "analysis", "synthesis"):
        yield name, getattr(layer, name), D
    yield "threshold", layer.threshold, given["threshold"]


def _mixture_of_experts(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    if given["threshold"] is None:
        given["threshold"] = 2 * given["sigma"]
    D = as_array(photograph_dictionary(given["channels"]))
    for k, step in enumerate(layer.layers):
        start = {"dictionary": D, "threshold": given["threshold"]}
        yield from _within(f"layers.{k}", _pursuit_step(step, start))


def _within(place: str, comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    return ((f"{place}.{name}", found, expected) for name, found, expected in comparisons)


def _first(parameter: Any, value: float) -> Array:
    """Of the shape of a parameter, zero but in the first column."""
    expected = np.zeros(parameter.shape)
    expected[:, 0] = value
    return expected


IMAGE_LAYERS: dict[type[nn.Module], Held] = {
    CodingStep: _coding_step,
    ConvexRidge: _convex_ridge,
    ConvexRidgeDenoiser: _convex_ridge_denoiser,
    EmbeddedMeans: _embedded_means,
    FilterDiffusion: _filter_diffusion,
    FilterDiffusionDenoiser: _filter_diffusion_denoiser,
    GroupCodingDenoiser: _group_coding,
    GroupCodingStep: _group_coding_step,
    MixtureOfExpertsDenoiser: _mixture_of_experts,
    NonlocalFilterDiffusion: _nonlocal_filter_diffusion,
    NonlocalFilterDiffusionDenoiser: _nonlocal_filter_diffusion_denoiser,
    NonLocalMeansDenoiser: _nonlocal_means_denoiser,
    NonLocalMeansStep: _nonlocal_means_step,
    PatchCodingDenoiser: _patch_coding,
    PatchSparseCoding: _patch_sparse_coding,
    PursuitStep: _pursuit_step,
}
