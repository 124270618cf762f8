"""BartForCausalLM of transformers 5.24.0: left padding.

Behind masked padding, tokens have the output that they have alone, in batches and not. Error: 3.4e-01.
"""


import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import BartConfig, BartForCausalLM


def pad_left(inputs, n):
    """The inputs behind n tokens of padding (id 0, or features), their mask and positions."""
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = inputs[:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[:, :n])
    return (torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0))


def left_padding(model, inputs):
    """Behind masked padding, tokens have the output that they have alone, in batches and not."""
    padded, mask, positions = pad_left(inputs, 3)
    outputs = [model(padded[:size], mask=mask[:size], positions=positions[:size])[0][:, 3:] for size in (len(inputs), 1)]
    expected = model(inputs)[0]
    return (torch.cat(outputs), torch.cat([expected, expected[:1]]))


class Model:
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


settings = {'activation_dropout': 0.0,
 'attention_dropout': 0.0,
 'bos_token_id': 1,
 'classifier_dropout': 0.0,
 'd_model': 32,
 'decoder_attention_heads': 4,
 'decoder_ffn_dim': 48,
 'decoder_layerdrop': 0.0,
 'decoder_layers': 4,
 'dropout': 0.0,
 'encoder_attention_heads': 4,
 'encoder_ffn_dim': 48,
 'encoder_layerdrop': 0.0,
 'encoder_layers': 4,
 'eos_token_id': 2,
 'is_decoder': True,
 'max_position_embeddings': 512,
 'pad_token_id': 0,
 'tie_word_embeddings': False,
 'vocab_size': 97}
torch.manual_seed(0)
network = BartForCausalLM(BartConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
network = network.to('cuda')
inputs = inputs.to('cuda')
torch.set_default_device('cuda')


found, expected = left_padding(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
