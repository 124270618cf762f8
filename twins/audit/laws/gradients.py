"""Derivatives: gradients, padded and in pieces, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..inputs import cast, convert, count_positions, fill_no_chunk, hide
from .law import Measured, NotApplicable, Pair, network_law
from .tokens import in_pieces

if TYPE_CHECKING:
    from ..model import Model

MOST = 1e-2  # of a tolerance: noise beyond a third of a thousandth shows little
WHY = "what differences can show"


def aim(slope: Tensor, draw: torch.Generator) -> Tensor:
    """Draw a random direction, plus that of the slope: the loss then moves far beyond rounding."""
    return torch.randn(
        slope.shape, generator=draw
    ) / slope.numel() ** 0.5 + slope / slope.norm().clamp(1e-99)


def differences_along(
    evaluate: Callable[[], Tensor], weights: Sequence[Tensor], along: Sequence[Tensor]
) -> Tensor:
    """Return central differences of four step sizes along a direction, and of half of each.

    A choice, as of experts, or a kink may stand within larger steps, and float32 inside a network
    rounds smaller ones.
    """
    sizes, values, at = [2.0**-i for i in (10, 11, 13, 14, 17, 18, 21, 22)], [], 0.0
    for step in (*sizes, *(-size for size in sizes), 0.0):
        for weight, direction in zip(weights, along, strict=True):
            weight.data.add_(direction, alpha=step - at)
        values.append(evaluate().detach())
        at = step
    ahead, behind = torch.stack(values[:-1]).chunk(2)
    return (ahead - behind) / (2 * torch.tensor(sizes).to(ahead))


def weights_of(model: Model, inputs: Tensor) -> list[Tensor]:
    """Return the tensors with gradients: the network's weights, and inputs that are no ids."""
    return [x for x in [*model.network.parameters(), inputs] if x.requires_grad]


class _Dtypes(TorchDispatchMode):
    """Collect the dtypes of all that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        output = func(*args, **kwargs or {})
        self.seen |= {x.dtype for x in tree_leaves(output) if isinstance(x, Tensor)}
        return output


def half_precision_in(evaluate: Callable[[], Tensor]) -> torch.dtype | None:
    """Return a dtype of 16 bits or fewer in which something is computed, if there is one."""
    with _Dtypes() as dtypes:
        evaluate()
    return next((x for x in dtypes.seen if x.is_floating_point and x.itemsize <= 2), None)


def differ(model: Model, inputs: Tensor, evaluate: Callable[[], Tensor]) -> Measured:
    """Return the derivative along three directions: exact, the nearest difference, all differences.

    The exact one comes from backward passes of `evaluate`.
    """
    weights, rows = weights_of(model, inputs), []
    if half := half_precision_in(evaluate):
        raise NotApplicable(f"it computes in {half}, and is a step function at small differences")
    slopes = torch.autograd.grad(evaluate(), weights, allow_unused=True, materialize_grads=True)
    if not is_finite(model, inputs, torch.float64) and is_finite(model, inputs, torch.float32):
        raise NotApplicable("its gradient is finite in float32 and not in float64")
    draw = torch.Generator(inputs.device).manual_seed(1)
    for _ in range(3):
        along = [aim(slope, draw) for slope in slopes]
        slope = torch.stack([(x * y).sum() for x, y in zip(along, slopes, strict=True)]).sum()
        differences = differences_along(evaluate, weights, along)
        rows.append((slope, differences[(differences - slope).abs().argmin()], differences))
    found, expected, every = map(torch.stack, zip(*rows, strict=True))
    if max(found.abs().max(), every.abs().max()) <= 1e-9 * evaluate().abs():
        raise NotApplicable("the output does not move")
    return found, expected, every


def is_finite(model: Model, inputs: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient of the outputs is finite in this dtype."""
    other, x = convert(model, dtype), cast(inputs.detach(), dtype)
    weights = weights_of(other, x.requires_grad_(inputs.requires_grad))
    total = other(x)[0].sum()
    slopes = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    return all(bool(slope.isfinite().all()) for slope in slopes)


def weigh(output: Tensor) -> Tensor:
    """Return a loss: the sum of the outputs times factors without a pattern."""
    return (output * torch.arange(output.numel()).to(output).square().sin().view_as(output)).sum()


@network_law("module", tolerance=MOST, why=WHY, grad=True, exact=True)
def gradients(model: Model, inputs: Tensor) -> Measured:
    """The gradient in weights and features agrees with central differences."""
    return differ(model, inputs, lambda: weigh(model(inputs)[0]))


@network_law("module", "mask", tolerance=MOST, why=WHY, grad=True, exact=True)
def gradients_with_padding(model: Model, inputs: Tensor) -> Measured:
    """Behind padding, the gradient of a loss on other tokens agrees with central differences."""

    def evaluate() -> Tensor:
        padded, seen, positions = hide(inputs, 0, 4)
        return weigh(model(padded, mask=seen, positions=positions)[0][seen == 1])

    return differ(model, inputs, evaluate)


def close_gates(
    model: Model, inputs: Tensor, shift: float, dtype: torch.dtype
) -> tuple[Model, Tensor]:
    """Return the model with half of its gates moved by `shift`, and 67 tokens, in this dtype."""
    if shift < 0 and model.config is not None:
        raise NotApplicable("the names of its gates tell at which end they close")
    other, inputs, grad = convert(model, dtype), inputs.detach(), inputs.requires_grad
    for name in model.gates:
        other.network.get_parameter(name).data[..., ::2] += shift
    text = cast(inputs, dtype)
    return other, fill_no_chunk(text)[:, : model.longest].requires_grad_(grad)


@network_law("module", "gates", cases=(6.0, -6.0), tolerance=0.0, why="none may be", grad=True)
def finite_gradients_under_strong_decay(model: Model, inputs: Tensor, shift: float) -> Pair:
    """Where half of the gates nearly close, over 67 tokens, no gradient in float32 is NaN."""
    other, text = close_gates(model, inputs, shift, torch.float32)
    output, weights = other(text)[0], weights_of(other, text)
    if not output.isfinite().all():
        raise NotApplicable("the output is not finite")
    slopes = torch.autograd.grad(weigh(output), weights, allow_unused=True, materialize_grads=True)
    finite = torch.cat([slope.isfinite().flatten() for slope in slopes])
    return finite, torch.ones_like(finite)


@network_law("module", "gates", cases=(6.0, -6.0), tolerance=MOST, why=WHY, grad=True, exact=True)
def gradients_under_strong_decay(model: Model, inputs: Tensor, shift: float) -> Measured:
    """There the gradient of outputs and states agrees with central differences."""
    other, text = close_gates(model, inputs, shift, torch.float64)

    def evaluate() -> Tensor:
        output, state = other(text)
        arrays = (output, *state) if isinstance(state, tuple) else (output, state)
        return torch.stack([weigh(x) for x in arrays if torch.is_tensor(x)]).sum()

    return differ(other, text, evaluate)


def slopes_in_pieces(model: Model, inputs: Tensor, ends: Sequence[int]) -> Tensor:
    """Return the gradient of a loss on outputs that are computed in these pieces."""
    weights = weights_of(model, inputs)
    loss = weigh(in_pieces(model, inputs, ends, positions=count_positions(inputs)))
    slopes = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([slope.flatten() for slope in slopes])


@network_law("module", "cache", grad=True)
def gradients_in_pieces(model: Model, inputs: Tensor) -> Pair:
    """In pieces through the cache, one of them short, the gradient is that of the full pass."""
    n = inputs.shape[1]
    found = slopes_in_pieces(model, inputs, [n // 3, n // 3 + 2, n])
    return found, slopes_in_pieces(model, inputs, [n])


@network_law("module", "smooth", tolerance=MOST, why=WHY, grad=True, exact=True)
def second_derivatives(model: Model, inputs: Tensor) -> Measured:
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""

    def evaluate() -> Tensor:
        loss, weights = weigh(model(inputs)[0].square()), weights_of(model, inputs)
        slopes = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        return torch.stack([weigh(slope) for slope in slopes if slope is not None]).sum()

    return differ(model, inputs, evaluate)
