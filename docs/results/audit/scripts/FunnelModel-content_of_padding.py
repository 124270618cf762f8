"""FunnelModel of transformers 5.24.0: content of padding.

Which tokens stand under the mask, before the others or among them, changes nothing. Error: 7.8e-03.
"""


import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import FunnelConfig, FunnelModel


def content_of_padding(model, inputs):
    """Which tokens stand under the mask, before the others or among them, changes nothing."""
    n, half, outputs = (inputs.shape[1], inputs.shape[1] // 2, [])
    seen = torch.tensor([0] * 3 + [1] * half + [0] * 3 + [1] * (n - half))
    mask = seen.expand(len(inputs), -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for hidden in (inputs[:, -3:], torch.zeros_like(inputs[:, -3:])):
        padded = torch.cat([hidden, inputs[:, :half], hidden, inputs[:, half:]], 1)
        outputs.append(model(padded, mask=mask, positions=positions)[0][:, seen == 1])
    return (outputs[0], outputs[1])


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {}
        if mask is not None:
            given["attention_mask"] = mask
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


settings = {'activation_dropout': 0.0,
 'attention_dropout': 0.0,
 'd_model': 32,
 'hidden_dropout': 0.0,
 'n_head': 4,
 'num_decoder_layers': 4,
 'pad_token_id': 0,
 'tie_word_embeddings': False,
 'vocab_size': 97}
torch.manual_seed(0)
network = FunnelModel(FunnelConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))


found, expected = content_of_padding(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
