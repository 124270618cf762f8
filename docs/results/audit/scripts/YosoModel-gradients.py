"""YosoModel of transformers 5.24.0: gradients.

The gradient in weights and features agrees with central differences. Error: 2.5e-01.
"""


import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import YosoConfig, YosoModel


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


def gradients(model, inputs):
    """The gradient in weights and features agrees with central differences."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    output = exact(inputs, grad=True)[0]
    upstream = torch.randn(output.shape, generator=draw).double()
    slopes = torch.autograd.grad((output * upstream).sum(), weights, allow_unused=True)
    return differ(lambda: (exact(inputs)[0] * upstream).sum(), weights, slopes)


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    source, source_of = None, lambda self, inputs: {}

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {}
        if mask is not None:
            given["attention_mask"] = mask
        if positions is not None:
            given["position_ids"] = positions + 2
        with torch.set_grad_enabled(grad):
            output = self.network(inputs, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], cache


SEED = 0
GATES = {'A_log': 0.0, 'dt_bias': 0.0, 'time_decay': -0.5, 'recurrent_param': 0.0}


def _weight_of(network, getter):
    """The weight of the embedding or of the head; None where a network has or tells none."""
    try:
        return getattr(getattr(network, getter)(), 'weight', None)
    except (AttributeError, NotImplementedError):
        return None


def _fan_in(weight):
    """Entries that an output sums: of a convolution all axes but the first, of experts the last."""
    convolution = weight.ndim > 3 or (weight.ndim == 3 and weight.shape[1] == 1)
    return math.prod(weight.shape[1:]) if convolution else weight.shape[-1]


def draw_weights(network):
    """Draw the weights of a network anew: outputs of unit size, gates in mid range."""
    draw = torch.Generator().manual_seed(SEED)
    embedding = _weight_of(network, 'get_input_embeddings')
    head = _weight_of(network, 'get_output_embeddings')
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if not weight.requires_grad:
                continue
            noise = torch.randn(weight.shape, generator=draw)
            gate = GATES.get(name.rpartition('.')[2])
            if gate is not None:
                weight[..., ::2] = gate + 0.5 * noise[..., ::2]
            elif weight is embedding:
                shared = weight is head
                weight.copy_(noise / (math.sqrt(weight.shape[-1]) if shared else 1))
            elif weight.ndim < 2:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise / math.sqrt(_fan_in(weight)))
    return network


settings = {'attention_probs_dropout_prob': 0.0,
 'bos_token_id': 1,
 'eos_token_id': 2,
 'hidden_dropout_prob': 0.0,
 'hidden_size': 32,
 'intermediate_size': 48,
 'max_position_embeddings': 512,
 'num_attention_heads': 4,
 'num_hidden_layers': 4,
 'pad_token_id': 0,
 'tie_word_embeddings': False,
 'vocab_size': 97}
torch.manual_seed(0)
network = YosoModel(YosoConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))


found, expected = gradients(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
