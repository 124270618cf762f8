"""MiniMaxForCausalLM of transformers 5.24.0: decoding.

Token by token through the cache, the output is that of the full pass. Error: 7.3e-01."""
from itertools import pairwise
import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

def in_pieces(model, inputs, ends, *, cache=None):
    outputs = []
    for start, end in pairwise([0, *ends]):
        first = 0
        output, cache = model(inputs[:, start:end], cache=cache)
        outputs.append(output)
    return torch.cat(outputs, 1)

def decoding(model, inputs):
    expected = model(inputs)[0]
    ends = range(1, inputs.shape[1] + 1)
    return (in_pieces(model, inputs, ends), expected)

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None):
        given = {name: x for name, x in {'cache': cache}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'block_size': 8, 'head_dim': 8, 'hidden_size': 32, 'intermediate_size': 48, 'layer_types':
    ['linear_attention', 'full_attention', 'linear_attention', 'full_attention'], 'max_position_embeddings': 512,
    'num_attention_heads': 4, 'num_hidden_layers': 4, 'num_key_value_heads': 2, 'num_local_experts': 4, 'pad_token_id':
    0, 'vocab_size': 97, 'experts_implementation': 'eager',}
torch.manual_seed(0)
network = MiniMaxForCausalLM(MiniMaxConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = decoding(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
