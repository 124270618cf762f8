"""BigBirdPegasusForCausalLM of transformers 5.24.0: generation of left padded.

`generate` scores the tokens of a row of a padded batch as the row alone is scored. Error: 5.0e-02.
"""


import math

import torch
import torch.nn.functional as F
from torch import nn
import transformers
from transformers import BigBirdPegasusConfig, BigBirdPegasusForCausalLM


def pad_left(inputs, n):
    """The inputs behind n tokens of padding (id 0, or features), their mask and positions."""
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = inputs[:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[:, :n])
    return (torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0))


def count_positions(inputs):
    """Positions 0 to n - 1 for each row."""
    return torch.arange(inputs.shape[1]).expand(len(inputs), -1)


def pad_later_rows(inputs):
    """The rows, all but the first without four tokens behind padding; mask and positions."""
    short, mask, positions = pad_left(inputs[1:, 4:], 4)
    first = inputs[:1]
    return (torch.cat([first, short]), torch.cat([torch.ones_like(mask[:1]), mask]), torch.cat([count_positions(first), positions]))


def scores_of(model, generated, lengths):
    """What `generate` scored its tokens with, and the full passes of rows of these lengths."""
    found, ids = (torch.stack(generated.logits, 1), generated.sequences)
    n = found.shape[1]
    rows = [ids[i:i + 1, -n - length:-1] for i, length in enumerate(lengths)]
    return (found, torch.cat([model(row)[0][:, -n:] for row in rows]))


def generate(model, ids, n, **given):
    """Append n tokens by the network's own greedy `generate`, without rules that force tokens."""
    of_decoder = '' if model.source is None else 'decoder_'
    given[f'{of_decoder}input_ids'] = ids
    given[f'{of_decoder}attention_mask'] = given.pop('mask', torch.ones_like(ids))
    if model.source is not None:
        given['decoder_start_token_id'] = ids[:, 0].tolist()
    model.network.generation_config = type(model.network.generation_config)()
    return model.network.generate(max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, suppress_tokens=[0], output_logits=True, return_dict_in_generate=True, **given, **model.source_of(ids))


def generation_of_left_padded(model, inputs):
    """`generate` scores the tokens of a row of a padded batch as the row alone is scored."""
    n = inputs.shape[1]
    padded, mask, _ = pad_later_rows(inputs)
    lengths = [n, *[n - 4] * (len(inputs) - 1)]
    return scores_of(model, generate(model, padded, 8, mask=mask), lengths)


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    source, source_of = None, lambda self, inputs: {}

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
 'block_size': 8,
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
network = BigBirdPegasusForCausalLM(BigBirdPegasusConfig(**settings)).eval()
draw_weights(network)
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
network = network.to('cuda')
inputs = inputs.to('cuda')
torch.set_default_device('cuda')


found, expected = generation_of_left_padded(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
