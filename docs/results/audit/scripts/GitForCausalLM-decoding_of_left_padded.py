"""GitForCausalLM of transformers 5.24.0: decoding of left padded.

Rows behind paddings that differ decode to the outputs that they have alone. Error: 6.1e-01."""
from itertools import pairwise
import torch
from transformers import GitConfig, GitForCausalLM

def hide(inputs, start, n):
    padding = torch.zeros_like(inputs[1:, :n])
    later = torch.cat([inputs[1:, :start], padding, inputs[1:, start:-n]], 1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long)
    mask[1:, start:start + n] = 0
    return (torch.cat([inputs[:1], later]), mask, (mask.cumsum(1) - 1).clamp(min=0))

def in_pieces(model, inputs, ends, *, positions=None, mask=None, cache=None):
    outputs = []
    for start, end in pairwise([0, *ends]):
        first = 0
        output, cache = model(inputs[:, start:end], cache=cache, positions=None if positions is None else positions[:, start:end], mask=None if mask is None else mask[:, first:end])
        outputs.append(output)
    return torch.cat(outputs, 1)

def read_texts_alone(model, inputs, n):
    outputs = (model(inputs[:1])[0][0], model(inputs[1:, :-n])[0].flatten(0, 1))
    return torch.cat(outputs)[None]

def hidden_in_pieces(model, inputs, start, ends):
    padded, mask, positions = hide(inputs, start, 4)
    found = in_pieces(model, padded, ends, positions=positions, mask=mask)
    return (found[mask == 1][None], read_texts_alone(model, inputs, 4))

def decoding_of_left_padded(model, inputs):
    n = inputs.shape[1]
    return hidden_in_pieces(model, inputs, 0, range(n // 2, n + 1))

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None, mask=None, positions=None):
        given = {name: x for name, x in {'cache': cache, 'attention_mask': mask, 'position_ids': positions}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'attention_probs_dropout_prob': 0.0, 'bos_token_id': 1, 'eos_token_id': 2, 'hidden_dropout_prob': 0.0,
    'hidden_size': 32, 'intermediate_size': 48, 'max_position_embeddings': 512, 'num_attention_heads': 4,
    'num_hidden_layers': 4, 'vision_config': {'model_type': 'git_vision_model', 'hidden_size': 32, 'image_size': 32,
    'intermediate_size': 48, 'num_attention_heads': 4, 'num_hidden_layers': 4, 'patch_size': 8}, 'vocab_size': 97,}
torch.manual_seed(0)
network = GitForCausalLM(GitConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else (weight[0].numel() if weight.ndim > 3 or weight.shape[1:-1] == (1,) else weight.shape[-1]) ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = decoding_of_left_padded(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
