"""RecurrentGemmaForCausalLM of transformers 5.24.0: left padding.

Behind masked padding, tokens have the output that they have alone, in batches and not. Error: 1.7e-01."""
import torch
import torch.nn.functional as F
import transformers
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

def pad_left(inputs, n):
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = torch.zeros_like(inputs[:, :n])
    return (torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0))

def left_padding(model, inputs, n_rows):
    inputs = inputs[:n_rows]
    padded, mask, positions = pad_left(inputs, 3)
    return (model(padded, mask=mask, positions=positions)[0][:, 3:], model(inputs)[0])

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, mask=None, positions=None):
        cache = transformers.DynamicCache(config=self.network.config)
        given = {name: x for name, x in {'attention_mask': mask, 'position_ids': positions, 'cache': cache}.items() if x is not None}
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

found, expected, *_ = left_padding(Model(network), inputs, None)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
