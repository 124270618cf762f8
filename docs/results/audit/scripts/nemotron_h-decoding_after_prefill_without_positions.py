"""NemotronHForCausalLM of transformers 5.24.0: decoding after prefill without positions.

As decoding after prefill, where the network counts positions itself. Error: 2.3e-04.
"""


import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import NemotronHConfig, NemotronHForCausalLM


def in_pieces(model, inputs, ends, *, positions=None, mask=None, cache=None, grad=False):
    """The outputs of consecutive pieces that end at `ends`, each after the cache of the last."""
    outputs, start = ([], 0)
    for end in ends:
        given = {}
        if positions is not None:
            given['positions'] = positions[:, start:end]
        if mask is not None:
            given['mask'] = mask[:, start:end] if model.mask_of_call else mask[:, :end]
        output, cache = model(inputs[:, start:end], cache=cache, grad=grad, **given)
        outputs.append(output)
        start = end
    return torch.cat(outputs, 1)


def decoding_after_prefill_without_positions(model, inputs):
    """As decoding after prefill, where the network counts positions itself."""
    n = inputs.shape[1]
    return (in_pieces(model, inputs, range(n // 2, n + 1)), model(inputs)[0])


class Model:
    mask_of_call = False
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
 'bos_token_id': 1,
 'chunk_size': 8,
 'eos_token_id': 2,
 'experts_implementation': 'eager',
 'head_dim': 8,
 'hidden_dropout': 0.0,
 'hidden_size': 32,
 'hybrid_override_pattern': 'MM*-',
 'intermediate_size': 48,
 'mamba_head_dim': 8,
 'mamba_num_heads': 8,
 'max_position_embeddings': 512,
 'moe_intermediate_size': 48,
 'moe_shared_expert_intermediate_size': 48,
 'n_group': 1,
 'n_groups': 1,
 'n_routed_experts': 4,
 'num_attention_heads': 4,
 'num_experts_per_tok': 2,
 'num_key_value_heads': 2,
 'pad_token_id': 0,
 'ssm_state_size': 8,
 'topk_group': 1,
 'vocab_size': 97}
torch.manual_seed(0)
network = NemotronHForCausalLM(NemotronHConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))


found, expected = decoding_after_prefill_without_positions(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
