"""Derivatives: gradients, padded and in pieces, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import FACTOR, HALF_OF_FLOAT32, Measured, NotApplicable, network_law
from .padding import pad_later_rows
from .precision import cast, convert
from .tokens import count_positions, in_pieces

if TYPE_CHECKING:
    from ..model import Model

MOST = 1e-2  # of a tolerance: noise beyond a third of a thousandth shows little
WHY = "what differences can show"


def variables(network: Any, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return weights, inputs
    inputs = inputs.clone().requires_grad_()
    return [*weights, inputs], inputs


def differentiate(
    value: Tensor, weights: Sequence[Tensor], graph: bool = False
) -> Sequence[Tensor]:
    """The slopes of a value by weights; zeros by those that it does not depend on."""
    return torch.autograd.grad(
        value, weights, create_graph=graph, allow_unused=True, materialize_grads=True
    )


def sum_products(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
    """The sum of products of entries."""
    return torch.stack([(x * y).sum() for x, y in zip(xs, ys, strict=True)]).sum()


def aim(slope: Tensor, draw: torch.Generator) -> Tensor:
    """A random direction and that of the slope, so that the loss moves far beyond rounding."""
    drawn, slope = torch.randn(slope.shape, generator=draw).double(), slope.nan_to_num(0, 0, 0)
    return drawn / drawn.norm() + slope / slope.norm().clamp(1e-99)


def difference_along(
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], along: Sequence[Tensor], size: float
) -> Tensor:
    """The central difference of this size along a direction."""
    values = []
    for steps in (1, -2, 1):  # forth, back past the start, and to the start
        for weight, direction in zip(weights, along, strict=True):
            weight.data.add_(direction, alpha=steps * size)
        values.append(evaluate().detach())
    return (values[0] - values[1]) / (2 * size)


def differ(
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor]
) -> Measured:
    """Derivatives along three directions: of the slopes, and the nearest of differences.

    Central differences have four sizes, and half of each. A choice, as of experts, may jump within
    larger ones, and float32 inside a network rounds smaller ones. Their noise is how far one is
    from that of half its size, where these agree best. One that is zero may be rounded away.
    """
    draw, rows = torch.Generator(weights[0].device).manual_seed(1), []
    for _ in range(3):
        along = [aim(slope, draw) for slope in slopes]
        slope = sum_products(along, slopes)
        sizes = [size / half for size in (1e-3, 1e-4, 1e-5, 1e-6) for half in (1, 2)]
        differences = torch.stack([difference_along(evaluate, weights, along, x) for x in sizes])
        gaps = (differences[::2] - differences[1::2]).abs()
        gaps[(differences[::2] == 0) & differences.any()] = torch.inf
        rows.append([slope, differences[(differences - slope).abs().argmin()], gaps.min()])
    found, expected, gap = torch.tensor(rows).unbind(1)
    error, size = (found - expected).abs().max(), expected.abs().max()
    if max(found.abs().max(), size) <= 1e-9 * evaluate().abs():
        raise NotApplicable("the output does not move")
    if MOST * size < FACTOR * gap.max() >= error:
        raise NotApplicable(f"differences agree to {gap.max() / size:.0e} only")
    return found, expected, gap.max() / size


def is_finite(model: Model, inputs: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient in this dtype is."""
    exact = convert(model, dtype)
    weights, inputs = variables(exact.network, cast(inputs, dtype))
    slopes = differentiate(exact(inputs, grad=True)[0].sum(), weights)
    return all(bool(slope.isfinite().all()) for slope in slopes)


def upstream_of(output: Tensor) -> Tensor:
    """Random slopes of a loss by the outputs."""
    draw = torch.Generator(output.device).manual_seed(0)
    return torch.randn(output.shape, generator=draw).double()


def hold_gradients(
    model: Model, inputs: Tensor, seen: Tensor | None = None, positions: Tensor | None = None
) -> Measured:
    """The gradients of a loss on the tokens that are seen, and differences of that loss."""
    exact = convert(model, torch.float64)
    weights, x = variables(exact.network, cast(inputs, torch.float64))

    def evaluate(grad: bool = False) -> Tensor:
        output = exact(x, mask=seen, positions=positions, grad=grad)[0]
        losses = output * upstream_of(output)
        return losses.sum() if seen is None else losses[seen == 1].sum()

    slopes = differentiate(evaluate(grad=True), weights)
    if not is_finite(model, inputs, torch.float64) and is_finite(model, inputs, torch.float32):
        raise NotApplicable("its gradient is finite in float32 and not in float64")
    return differ(evaluate, weights, slopes)


@network_law("module", tolerance=MOST, why=WHY)
def gradients(model: Model, inputs: Tensor) -> Measured:
    """The gradient in weights and features agrees with central differences."""
    return hold_gradients(model, inputs)


@network_law("module", "mask", tolerance=MOST, why=WHY)
def gradients_with_padding(model: Model, inputs: Tensor) -> Measured:
    """Behind padding, the gradient of a loss on other tokens agrees with central differences."""
    return hold_gradients(model, *pad_later_rows(inputs))


def slopes_in_pieces(
    model: Model, inputs: Tensor, ends: Sequence[int], dtype: torch.dtype = torch.float64
) -> Tensor:
    """The gradient of a loss on the outputs of these pieces."""
    cut, positions = convert(model, dtype), count_positions(inputs)
    weights, inputs = variables(cut.network, cast(inputs, dtype))
    output = in_pieces(cut, inputs, ends, positions=positions, grad=True)
    slopes = differentiate((output * upstream_of(output)).sum(), weights)
    return torch.cat([slope.flatten().double() for slope in slopes])


@network_law("module", "cache", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def gradients_in_pieces(model: Model, inputs: Tensor) -> Measured:
    """In pieces through the cache, one of them short, the gradient is that of the full pass."""
    n = inputs.shape[1]
    found = slopes_in_pieces(model, inputs, [n // 3, n // 3 + 2, n])
    expected = slopes_in_pieces(model, inputs, [n])
    single = slopes_in_pieces(model, inputs, [n], torch.float32)
    return found, expected, (single - expected).abs().max() / expected.abs().max()


@network_law("module", "smooth", tolerance=MOST, why=WHY)
def second_derivatives(model: Model, inputs: Tensor) -> Measured:
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = convert(model, torch.float64)
    weights, x = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad: bool = False) -> Tensor:
        output = exact(x, grad=True)[0].square()
        slopes = differentiate((output * upstream_of(output)).sum(), weights, graph=grad)
        return sum_products(slopes, along)

    bends = differentiate(slope(grad=True), weights)
    if not is_finite(model, inputs, torch.float64) and is_finite(model, inputs, torch.float32):
        raise NotApplicable("its gradient is finite in float32 and not in float64")
    return differ(slope, weights, bends)
