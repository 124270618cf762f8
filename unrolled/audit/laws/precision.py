"""Digits and derivatives: half precision, long inputs, gradients and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import DIFFERENCES, HALF, HALF_OF_FLOAT32, NotApplicable, Pair, network_law
from .tokens import count_positions, in_pieces

if TYPE_CHECKING:
    from ..model import Model


def convert(model: Model, dtype: torch.dtype) -> Model:
    """The model of a copy of the network in another dtype."""
    other = model.of(copy.deepcopy(model.network).to(dtype))
    return other if model.source is None else other.reading(cast(model.source, dtype), None)


def variables(network: Any, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return weights, inputs
    inputs = inputs.clone().requires_grad_()
    return [*weights, inputs], inputs


def cast(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs in another dtype, but for ids."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


@network_law("module", "smooth", tolerance=1.0, why=HALF)
def half_precision(model: Model, inputs: Tensor) -> Pair:
    """In bfloat16, the output moves by at most 16 times what rounding of the weights moves it."""
    half = cast(inputs, torch.bfloat16)
    rounded = convert(model, torch.bfloat16)
    expected = convert(rounded, torch.float32)(cast(half, torch.float32))[0]
    moved = (expected - model(inputs)[0]).abs().max() + 2**-8 * expected.abs().max()
    error = (rounded(half)[0].float() - expected).abs().max()
    return (1 + error / (16 * moved))[None], torch.ones(1)


def differ(
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor | None]
) -> Pair:
    """Derivatives along three random directions: of the slopes, and the nearest of differences.

    Central differences have four sizes. A choice, as of experts, may jump within larger ones, and
    float32 inside a network rounds smaller ones. If no two sizes in a row agree, nothing is said.
    """
    draw, pairs, settled = torch.Generator(weights[0].device).manual_seed(1), [], True
    for _ in range(3):
        along = [torch.randn(p.shape, generator=draw).double() for p in weights]
        along = [direction / direction.norm() for direction in along]
        products = [(a * s).sum() for a, s in zip(along, slopes, strict=True) if s is not None]
        found, differences = torch.stack(products).sum(), []
        for size in (1e-3, 1e-4, 1e-5, 1e-6):
            values = []
            for steps in (1, -2, 1):  # forth, back past the start, and to the start
                with torch.no_grad():
                    for p, direction in zip(weights, along, strict=True):
                        p.add_(direction, alpha=steps * size)
                values.append(evaluate().detach())
            differences.append((values[0] - values[1]) / (2 * size))
        nearest = [abs(slope.item() - found.item()) for slope in differences]
        pairs.append((found, differences[nearest.index(min(nearest))]))
        sizes = torch.stack(differences)
        settled &= bool((sizes.diff().abs() <= 0.1 * sizes[1:].abs()).any())
    found, expected = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    if max(found.abs().max(), expected.abs().max()) <= 1e-9 * values[-1].abs():
        raise NotApplicable("the output does not move")
    if not settled and (found - expected).abs().max() > 0.03 * expected.abs().max():
        raise NotApplicable("differences of no size settle")
    return found, expected


def has_gradient(model: Model, inputs: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient in this dtype is finite."""
    exact = convert(model, dtype)
    weights, inputs = variables(exact.network, cast(inputs, dtype))
    output = exact(inputs, grad=True)[0]
    slopes = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return all(bool(s.isfinite().all()) for s in slopes if s is not None)


def run_in_float64(model: Model, inputs: Tensor) -> Model:
    """The model in float64, unless it has a gradient in float32 alone."""
    exact, single = torch.float64, torch.float32
    if not has_gradient(model, inputs, exact) and has_gradient(model, inputs, single):
        raise NotApplicable("its gradient is finite in float32 and not in float64")
    return convert(model, exact)


@network_law("module", tolerance=3e-2, why=DIFFERENCES)
def gradients(model: Model, inputs: Tensor) -> Pair:
    """The gradient in weights and features agrees with central differences."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    output = exact(inputs, grad=True)[0]
    upstream = torch.randn(output.shape, generator=draw).double()
    slopes = torch.autograd.grad((output * upstream).sum(), weights, allow_unused=True)
    return differ(lambda: (exact(inputs)[0] * upstream).sum(), weights, slopes)


@network_law("module", "cache", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def gradients_in_pieces(model: Model, inputs: Tensor) -> Pair:
    """In pieces through the cache, one of them short, the gradient is that of the full pass."""
    exact = convert(model, torch.float64)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    n, slopes = inputs.shape[1], []
    for ends in ([n // 3, n // 3 + 2, n], [n]):
        output = in_pieces(exact, inputs, ends, positions=count_positions(inputs), grad=True)
        draw = torch.Generator(inputs.device).manual_seed(0)
        upstream = torch.randn(output.shape, generator=draw).double()
        found = torch.autograd.grad((output * upstream).sum(), weights, allow_unused=True)
        slopes.append(torch.cat([slope.flatten() for slope in found if slope is not None]))
    return slopes[0], slopes[1]


@network_law("module", "smooth", tolerance=3e-2, why=DIFFERENCES)
def second_derivatives(model: Model, inputs: Tensor) -> Pair:
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    upstream = torch.randn(exact(inputs)[0].shape, generator=draw).double()
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad: bool = False) -> Tensor:
        loss = (exact(inputs, grad=True)[0].square() * upstream).sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, create_graph=grad)
        products = [(s * a).sum() for s, a in zip(slopes, along, strict=True) if s is not None]
        return torch.stack(products).sum()

    bends = torch.autograd.grad(slope(grad=True), weights, allow_unused=True)
    return differ(slope, weights, bends)


@network_law("module", "cache", "smooth", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def long_inputs(model: Model, inputs: Tensor) -> Pair:
    """Over 16 times as many tokens, float32 stays with float64."""
    many = inputs.repeat(1, 16, *[1] * (inputs.ndim - 2))[:, : model.longest]
    return model(many)[0], convert(model, torch.float64)(cast(many, torch.float64))[0].float()
