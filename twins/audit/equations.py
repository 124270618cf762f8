"""Laws of functions that name their recurrence: the numbers are those that they claim to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs import fill_no_chunk
from .laws import Pair, network_law
from .model import Model


def list_arrays(network: Any, output: Tensor, state: Any) -> list[Tensor]:
    """Return the output, and the states as (batch, heads, keys, values), in float64."""
    states = () if state is None else state if isinstance(state, tuple) else (state,)
    return [output.double(), *((x.mT if network.transposed else x).double() for x in states)]


def recur(network: Any, inputs: Tensor, state: Any) -> list[Tensor]:
    """Return the output and the last states of the literal recurrence, in float64."""
    x = {name: value.double() for name, value in network.quantities(inputs).items()}
    x["q"] = network.scale * x["q"]
    names, states = [*network.states.values()], list_arrays(network, inputs, state)[1:]
    x.update({f"initial_{name}": value for name, value in zip(names, states, strict=False)})
    found = network.recurrence(x)
    return [found["out"].transpose(1, 2).flatten(2), *(found[f"last_{name}"] for name in names)]


def join(arrays: Sequence[Tensor]) -> Tensor:
    """Join arrays as rows of one tensor (batch, rows, features)."""
    rows = [x if x.ndim == 3 else x.transpose(1, 2).flatten(2) for x in arrays]
    width = max(x.shape[-1] for x in rows)
    return torch.cat([F.pad(x, (0, width - x.shape[-1])) for x in rows], 1)


def follow(model: Model, inputs: Tensor) -> Pair:
    """Return outputs and last states of 67 tokens and of those after them, and their recurrence.

    Each array is divided by the largest number that is expected of it.
    """
    network: Any = model.network
    pairs: list[Pair] = []
    state = None
    for part in (fill_no_chunk(inputs), inputs):
        expected = recur(network, part, state)
        output, state = model(part, cache=state)
        arrays = zip(list_arrays(network, output, state), expected, strict=True)
        pairs += [(x / y.abs().max(), y / y.abs().max()) for x, y in arrays]
    return join([x for x, _ in pairs]), join([y for _, y in pairs])


@network_law("recurrence")
def equation(model: Model, inputs: Tensor) -> Pair:
    """The output and the last states are those of the literal recurrence in float64."""
    return follow(model, inputs)


def compare_slopes(model: Model, part: Tensor) -> Pair:
    """Return the gradient in the features, and that of the recurrence in float64."""
    network: Any = model.network
    x, exact = part.clone().requires_grad_(), part.double().requires_grad_()
    found = list_arrays(network, *model(x))
    draw = torch.Generator(x.device).manual_seed(0)
    weights = [torch.randn(y.shape, generator=draw, device=y.device).to(y) for y in found]
    slope = torch.autograd.grad(found, x, weights)[0].double()
    return slope, torch.autograd.grad(recur(network, exact, None), exact, weights)[0]


@network_law("recurrence", grad=True)
def gradients_of_equation(model: Model, inputs: Tensor) -> Pair:
    """The gradient in the features is that of the literal recurrence in float64."""
    return compare_slopes(model, fill_no_chunk(inputs))


@network_law("recurrence", "forget gate", grad=True)
def gradients_of_equation_under_strong_decay(model: Model, inputs: Tensor) -> Pair:
    """Where half of the forget gates nearly close, gradients are still those of the recurrence."""
    network: Any = model.network
    part = fill_no_chunk(inputs.detach())
    part[..., network.parts["forget"]][..., ::2] -= 20
    return compare_slopes(model, part)


@network_law("recurrence", "forget gate")
def closed_gates(model: Model, inputs: Tensor) -> Pair:
    """Where a forget gate is exactly 0, output and states are still those of the recurrence."""
    network: Any = model.network
    closed = inputs.clone()
    closed[:, inputs.shape[1] // 2, network.parts["forget"]] = -torch.inf
    return follow(model, closed)


@network_law("system")
def residual(model: Model, inputs: Tensor) -> Pair:
    """The system is solved: x (H + Diag(lam)) = q for the x that is read where G = I and v = 0."""
    network: Any = model.network
    without = inputs.clone()
    without[..., network.parts["v"]] = 0
    identity = torch.eye(network.dim).expand(len(inputs), network.heads, -1, -1).to(inputs)
    starts = {"H": torch.zeros_like(identity), "G": identity}
    output = model(without, cache=tuple(starts[name] for name in network.states.values()))[0]
    solved = output.double().unflatten(-1, (network.heads, -1)).transpose(1, 2)
    x = {name: value.double() for name, value in network.quantities(without).items()}
    H, kept, rows = starts["H"].double(), torch.ones(1), []
    for t in range(inputs.shape[1]):
        k, beta, a = (x[name][:, :, t, ..., None] for name in ("k", "beta", "forget"))
        H, kept = a[..., None] * H + beta[..., None] * k * k.mT, a * kept
        row = solved[:, :, t] / kept  # G is the product of the gates
        rows.append((row[..., None, :] @ H)[..., 0, :] + row * x["lam"])
    found, expected = torch.stack(rows, 2), network.scale * x["q"]
    return found.transpose(1, 2).flatten(2), expected.transpose(1, 2).flatten(2)
