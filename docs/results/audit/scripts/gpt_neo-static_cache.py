"""GPTNeoForCausalLM of transformers 5.24.0: static cache.

In a `StaticCache` of transformers, outputs are those of the full pass. Error: 6.0e-01."""
from itertools import pairwise
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

def in_pieces(model, inputs, ends, *, positions=None, cache=None):
    outputs = []
    for start, end in pairwise([0, *ends]):
        first = 0
        output, cache = model(inputs[:, start:end], cache=cache, positions=None if positions is None else positions[:, start:end])
        outputs.append(output)
    return torch.cat(outputs, 1)

def static_cache(model, inputs):
    from transformers import StaticCache
    n, config = (inputs.shape[1], model.network.config)
    cache = StaticCache(config=config.get_text_config(decoder=True), max_cache_len=n + 3)
    ends, positions = (range(n // 2, n + 1), torch.arange(inputs.shape[1]).expand(len(inputs), -1))
    return (in_pieces(model, inputs, ends, positions=positions, cache=cache), model(inputs)[0])

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None, positions=None):
        given = {name: x for name, x in {'cache': cache, 'position_ids': positions}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'bos_token_id': 1, 'classifier_dropout': 0.0, 'eos_token_id': 2, 'hidden_size': 32,
    'max_position_embeddings': 512, 'num_heads': 4, 'num_layers': 4, 'pad_token_id': 0, 'tie_word_embeddings': False,
    'vocab_size': 97, 'window_size': 8, 'attention_types': [[['global', 'local'], 2]],}
torch.manual_seed(0)
network = GPTNeoForCausalLM(GPTNeoConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = static_cache(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
