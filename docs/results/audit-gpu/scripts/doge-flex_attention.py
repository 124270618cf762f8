"""DogeForCausalLM of transformers 5.24.0: flex attention.

The implementations "eager" and "flex_attention" give the same output, padded and not. Error: 5.1e-01.
"""


import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import DogeConfig, DogeForCausalLM


def pad_left(inputs, n):
    """The inputs behind n tokens of padding (id 0, or features), their mask and positions."""
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = inputs[:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[:, :n])
    return (torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0))


class NotApplicable(Exception):
    """Raised by a law that a network turns out not to promise."""


def load(network, weights):
    """The network with these weights."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise NotApplicable('its weights depend on what changes') from error
    return network


def rebuild(network, **changes):
    """A network of the same weights, whose configuration has other values."""
    config = copy.deepcopy(network.config)
    for name, value in changes.items():
        owner = config if hasattr(config, name) else config.get_text_config(decoder=True)
        setattr(owner, name, value)
    return load(type(network)(config).eval(), network.state_dict())


def compare_implementations(model, inputs, names):
    """The last outputs of two implementations of attention, padded and not."""
    given = [(inputs, {})]
    if 'mask' in model.offers:
        padded, mask, positions = pad_left(inputs, 3)
        given.append((padded, {'mask': mask, 'positions': positions}))
    outputs = []
    for name in names:
        other = model.of(rebuild(model.network, _attn_implementation=name))
        with torch.compiler.set_stance('force_eager'):
            outputs.append(torch.cat([other(x, **more)[0][:, -3:] for x, more in given], 1))
    return (outputs[0], outputs[1])


def flex_attention(model, inputs):
    """The implementations "eager" and "flex_attention" give the same output, padded and not."""
    return compare_implementations(model, inputs, ['flex_attention', 'eager'])


class Model:
    offers = ['all keys', 'cache', 'cache object', 'causal', 'config', 'flex', 'generate', 'grouped', 'hidden states', 'implementations', 'mask', 'module', 'positions', 'same in training', 'smooth', 'use_cache']
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {'use_cache': True}
        if cache is not None:
            given["cache"] = cache
        if mask is not None:
            given["attention_mask"] = mask
        if positions is not None:
            given["position_ids"] = positions + 0
        with torch.set_grad_enabled(grad):
            output = self.network(inputs, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache


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


settings = {'attention_dropout': 0.0,
 'experts_implementation': 'eager',
 'hidden_dropout': 0.0,
 'hidden_size': 32,
 'intermediate_size': 48,
 'max_position_embeddings': 512,
 'num_attention_heads': 4,
 'num_experts': 4,
 'num_experts_per_tok': 2,
 'num_hidden_layers': 4,
 'num_key_value_heads': 2,
 'pad_token_id': 0,
 'vocab_size': 97}
torch.manual_seed(0)
network = DogeForCausalLM(DogeConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
network = network.to('cuda')
inputs = inputs.to('cuda')
torch.set_default_device('cuda')


found, expected = flex_attention(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
