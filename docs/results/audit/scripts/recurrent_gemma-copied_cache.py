"""RecurrentGemmaForCausalLM of transformers 5.24.0: copied cache.

A copy of the cache stays as it was while the cache goes on. Error: 2.0e-01."""
import copy
import torch
import transformers
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

def step_after(model, inputs, cache, n):
    positions = torch.full((len(inputs), 1), n)
    return model(inputs[:, n:n + 1], cache=cache, positions=positions)[0]

def copied_cache(model, inputs):
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    copied = copy.deepcopy(cache)
    step_after(model, inputs.flip(0), cache, half)
    return (step_after(model, inputs, copied, half), step_after(model, inputs, model(inputs[:, :half])[1], half))

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None, positions=None):
        cache = cache or transformers.DynamicCache(config=self.network.config)
        given = {name: x for name, x in {'cache': cache, 'position_ids': positions}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], cache

settings = {'attention_window_size': 8, 'bos_token_id': 1, 'eos_token_id': 2, 'head_dim': 8, 'hidden_size': 32,
    'intermediate_size': 48, 'logits_soft_cap': 2.0, 'lru_width': 32, 'num_attention_heads': 4, 'num_hidden_layers': 4,
    'num_key_value_heads': 2, 'tie_word_embeddings': False, 'vocab_size': 97,}
torch.manual_seed(0)
network = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**settings)).eval()
gates = {'recurrent_param': 0.0}
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    if name.split('.')[-1] in gates:
        weight.data[..., ::2] = gates[name.split('.')[-1]] + 0.5 * noise[..., ::2]
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data if name.split('.')[-1] in gates else weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = copied_cache(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
