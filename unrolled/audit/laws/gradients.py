"""Derivatives: gradients, padded and in pieces, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import HALF_OF_FLOAT32, Measured, NotApplicable, network_law
from .padding import pad_later_rows
from .precision import cast, convert
from .tokens import count_positions, in_pieces

if TYPE_CHECKING:
    from ..model import Model

MOST = 3e-2  # differences of a network with float32 inside
WHY = "differences of a network with float32 inside"


def variables(network: Any, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return weights, inputs
    inputs = inputs.clone().requires_grad_()
    return [*weights, inputs], inputs


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
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor | None]
) -> Measured:
    """Derivatives along three random directions: of the slopes, and the nearest of differences.

    Central differences have four sizes. A choice, as of experts, may jump within larger ones, and
    float32 inside a network rounds smaller ones. Their noise is how far the two sizes in a row that
    agree best are apart. If no two agree to a tenth, nothing is said of small errors.
    """
    draw, rows = torch.Generator(weights[0].device).manual_seed(1), []
    for _ in range(3):
        along = [torch.randn(p.shape, generator=draw).double() for p in weights]
        along = [direction / direction.norm() for direction in along]
        pairs = zip(along, slopes, strict=True)
        slope = torch.stack([(a * s).sum() for a, s in pairs if s is not None]).sum()
        sizes = (1e-3, 1e-4, 1e-5, 1e-6)
        differences = torch.stack([difference_along(evaluate, weights, along, x) for x in sizes])
        nearest = differences[(differences - slope).abs().argmin()]
        gaps = differences.diff().abs()
        rows.append(torch.stack([slope, nearest, gaps.min(), (gaps / differences[1:].abs()).min()]))
    found, expected, gap, unsettled = torch.stack(rows).unbind(1)
    if max(found.abs().max(), expected.abs().max()) <= 1e-9 * evaluate().abs():
        raise NotApplicable("the output does not move")
    if (unsettled > 0.1).any() and (found - expected).abs().max() > MOST * expected.abs().max():
        raise NotApplicable("differences of no size settle")
    return found, expected, gap.max() / expected.abs().max()


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


def upstream_of(output: Tensor) -> Tensor:
    """Random slopes of a loss by the outputs."""
    draw = torch.Generator(output.device).manual_seed(0)
    return torch.randn(output.shape, generator=draw).double()


def hold_gradients(
    model: Model, inputs: Tensor, seen: Tensor | None = None, positions: Tensor | None = None
) -> Measured:
    """The gradients of a loss on the tokens that are seen, and differences of that loss."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))

    def evaluate(grad: bool = False) -> Tensor:
        output = exact(inputs, mask=seen, positions=positions, grad=grad)[0]
        losses = output * upstream_of(output)
        return losses.sum() if seen is None else losses[seen == 1].sum()

    slopes = torch.autograd.grad(evaluate(grad=True), weights, allow_unused=True)
    return differ(evaluate, weights, slopes)


@network_law("module", tolerance=MOST, why=WHY)
def gradients(model: Model, inputs: Tensor) -> Measured:
    """The gradient in weights and features agrees with central differences."""
    return hold_gradients(model, inputs)


@network_law("module", "mask", tolerance=MOST, why=WHY)
def gradients_with_padding(model: Model, inputs: Tensor) -> Measured:
    """Behind padding, the gradient of a loss on other tokens agrees with central differences."""
    return hold_gradients(model, *pad_later_rows(inputs))


@network_law("module", "cache", tolerance=2**-11.5, why=HALF_OF_FLOAT32)
def gradients_in_pieces(model: Model, inputs: Tensor) -> Measured:
    """In pieces through the cache, one of them short, the gradient is that of the full pass."""
    n, slopes = inputs.shape[1], []
    pieces, whole = [n // 3, n // 3 + 2, n], [n]
    calls = [(torch.float64, pieces), (torch.float64, whole), (torch.float32, whole)]
    for dtype, ends in calls:
        cut = convert(model, dtype)
        weights, given = variables(cut.network, cast(inputs, dtype))
        output = in_pieces(cut, given, ends, positions=count_positions(inputs), grad=True)
        losses = output * upstream_of(output)
        parts = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
        slopes.append(torch.cat([x.flatten().double() for x in parts if x is not None]))
    found, expected, single = slopes
    return found, expected, (single - expected).abs().max() / expected.abs().max()


@network_law("module", "smooth", tolerance=MOST, why=WHY)
def second_derivatives(model: Model, inputs: Tensor) -> Measured:
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad: bool = False) -> Tensor:
        output = exact(inputs, grad=True)[0].square()
        loss = (output * upstream_of(output)).sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, create_graph=grad)
        products = [(s * a).sum() for s, a in zip(slopes, along, strict=True) if s is not None]
        return torch.stack(products).sum()

    bends = torch.autograd.grad(slope(grad=True), weights, allow_unused=True)
    return differ(slope, weights, bends)
