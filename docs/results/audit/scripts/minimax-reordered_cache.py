"""MiniMaxForCausalLM of transformers 5.24.0: reordered cache.

A cache whose rows are reordered, as for beams, serves the reordered inputs. Error: 9.1e-01."""
import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

def step_after(model, inputs, cache, n):
    positions = torch.full((len(inputs), 1), n)
    return model(inputs[:, n:n + 1], cache=cache, positions=positions)[0]

def step_anew(model, inputs, n):
    return step_after(model, inputs, model(inputs[:, :n])[1], n)

def reordered_cache(model, inputs):
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    cache.reorder_cache(torch.tensor([1, 0]))
    return (step_after(model, inputs.flip(0), cache, half), step_anew(model, inputs.flip(0), half))

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None, positions=None):
        given = {name: x for name, x in {'cache': cache, 'position_ids': positions}.items() if x is not None}
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

found, expected, *_ = reordered_cache(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
