"""Applied: second derivatives.

The derivative of the gradient agrees with differences of the gradient, or is refused. Error: inf.
"""


import copy

import torch
import torch.nn.functional as F
from torch import nn


def cast(inputs, dtype):
    """Inputs in another dtype, but for ids."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def convert(model, dtype):
    """The model of a copy of the network in another dtype."""
    other = model.of(copy.deepcopy(model.network).to(dtype))
    return other if model.source is None else other.reading(cast(model.source, dtype), None)


def variables(network, inputs):
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return (weights, inputs)
    inputs = inputs.clone().requires_grad_()
    return ([*weights, inputs], inputs)


def has_gradient(model, inputs, dtype):
    """Whether the gradient in this dtype is finite."""
    exact = convert(model, dtype)
    weights, inputs = variables(exact.network, cast(inputs, dtype))
    output = exact(inputs, grad=True)[0]
    slopes = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return all((bool(s.isfinite().all()) for s in slopes if s is not None))


class NotApplicable(Exception):
    """Raised by a law that a network turns out not to promise."""


def run_in_float64(model, inputs):
    """The model in float64, unless it has a gradient in float32 alone."""
    exact, single = (torch.float64, torch.float32)
    if not has_gradient(model, inputs, exact) and has_gradient(model, inputs, single):
        raise NotApplicable('its gradient is finite in float32 and not in float64')
    return convert(model, exact)


def differ(evaluate, weights, slopes):
    """Derivatives along three random directions: of the slopes, and the nearest of differences."""
    draw, pairs, settled = (torch.Generator(weights[0].device).manual_seed(1), [], True)
    for _ in range(3):
        along = [torch.randn(p.shape, generator=draw).double() for p in weights]
        along = [direction / direction.norm() for direction in along]
        products = [(a * s).sum() for a, s in zip(along, slopes, strict=True) if s is not None]
        found, differences = (torch.stack(products).sum(), [])
        for size in (0.001, 0.0001, 1e-05, 1e-06):
            values = []
            for steps in (1, -2, 1):
                with torch.no_grad():
                    for p, direction in zip(weights, along, strict=True):
                        p.add_(direction, alpha=steps * size)
                values.append(evaluate().detach())
            differences.append((values[0] - values[1]) / (2 * size))
        nearest = [abs(slope.item() - found.item()) for slope in differences]
        pairs.append((found, differences[nearest.index(min(nearest))]))
        sizes = torch.stack(differences)
        settled &= bool((sizes.diff().abs() <= 0.1 * sizes[1:].abs()).any())
    found, expected = (torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]))
    if max(found.abs().max(), expected.abs().max()) <= 1e-09 * values[-1].abs():
        raise NotApplicable('the output does not move')
    if not settled and (found - expected).abs().max() > 0.03 * expected.abs().max():
        raise NotApplicable('differences of no size settle')
    return (found, expected)


def second_derivatives(model, inputs):
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    upstream = torch.randn(exact(inputs)[0].shape, generator=draw).double()
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad=False):
        loss = (exact(inputs, grad=True)[0].square() * upstream).sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, create_graph=grad)
        products = [(s * a).sum() for s, a in zip(slopes, along, strict=True) if s is not None]
        return torch.stack(products).sum()
    bends = torch.autograd.grad(slope(grad=True), weights, allow_unused=True)
    return differ(slope, weights, bends)


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    source, source_of = None, lambda self, inputs: {}

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {}
        with torch.set_grad_enabled(grad):
            output = self.network(inputs, **given)
        return output if isinstance(output, tuple) else (output, None)


from entmax import entmax15


class Applied(nn.Module):
    """A function with these options, as a network."""

    def __init__(self, function, **options):
        super().__init__()
        self.function, self.options = (function, options)

    def forward(self, x):
        return self.function(x, **self.options)


torch.manual_seed(0)
network = Applied(entmax15, dim=-1)
inputs = torch.randn(2, 21, 32, generator=torch.Generator().manual_seed(1))


found, expected = second_derivatives(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
