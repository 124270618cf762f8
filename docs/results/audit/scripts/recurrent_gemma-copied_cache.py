"""RecurrentGemmaForCausalLM of transformers 5.24.0: copied cache.

A copy of the cache stays as it was while the cache goes on. Error: 2.0e-01.
"""


import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM


def step_after(model, inputs, cache, n):
    """The output of token n after a cache of the n tokens before it."""
    positions = torch.full((len(inputs), 1), n)
    return model(inputs[:, n:n + 1], cache=cache, positions=positions)[0]


def step_anew(model, inputs, n):
    """The output of token n after a new cache, so that only what is done with a cache differs."""
    return step_after(model, inputs, model(inputs[:, :n])[1], n)


def copied_cache(model, inputs):
    """A copy of the cache stays as it was while the cache goes on."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    copied = copy.deepcopy(cache)
    step_after(model, inputs.flip(0), cache, half)
    return (step_after(model, inputs, copied, half), step_anew(model, inputs, half))


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {'use_cache': True}
        if cache is None:
            cache = transformers.DynamicCache(config=self.network.config)
        if cache is not None:
            given["cache"] = cache
        if mask is not None:
            given["attention_mask"] = mask
        if positions is not None:
            given["position_ids"] = positions + 0
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


settings = {'attention_dropout': 0.0,
 'attention_window_size': 8,
 'bos_token_id': 1,
 'eos_token_id': 2,
 'head_dim': 8,
 'hidden_size': 32,
 'intermediate_size': 48,
 'logits_soft_cap': 2.0,
 'lru_width': 32,
 'num_attention_heads': 4,
 'num_hidden_layers': 4,
 'num_key_value_heads': 2,
 'pad_token_id': 0,
 'tie_word_embeddings': False,
 'vocab_size': 97}
torch.manual_seed(0)
network = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))


found, expected = copied_cache(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
