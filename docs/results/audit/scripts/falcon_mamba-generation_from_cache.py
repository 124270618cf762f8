"""FalconMambaForCausalLM of transformers 5.24.0: generation from cache.

`generate` goes on from the cache of an earlier `generate`, with and without new tokens. Error: 8.4e-02."""
import torch
from transformers import FalconMambaConfig, FalconMambaForCausalLM

def generate(model, ids, n, **given):
    of_decoder = ''
    given[f'{of_decoder}input_ids'] = ids
    given[f'{of_decoder}attention_mask'] = given.pop('mask', torch.ones_like(ids))
    model.network.generation_config = type(model.network.generation_config)()
    return model.network.generate(max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, suppress_tokens=[0], output_logits=True, return_dict_in_generate=True, **given)

def scores_of(model, generated, lengths):
    found, ids = (torch.stack(generated.logits, 1), generated.sequences)
    n = found.shape[1]
    rows = [ids[i:i + 1, -n - length:-1] for i, length in enumerate(lengths)]
    return (found, torch.cat([model(row)[0][:, -n:] for row in rows]))

def generation_from_cache(model, inputs, n_new):
    first = generate(model, inputs, 4)
    cache = getattr(first, 'cache', None)
    if cache is None:
        raise NotImplementedError('generate returns no cache')
    text = torch.cat([first.sequences, inputs[:, :n_new]], 1)
    second = generate(model, text, 8, **{'cache': cache})
    return scores_of(model, second, [text.shape[1]] * len(text))

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None, mask=None):
        given = {name: x for name, x in {'cache': cache, 'attention_mask': mask}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'bos_token_id': 1, 'eos_token_id': 2, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 4,
    'state_size': 8, 'tie_word_embeddings': False, 'time_step_rank': 4, 'vocab_size': 97,}
torch.manual_seed(0)
network = FalconMambaForCausalLM(FalconMambaConfig(**settings)).eval()
gates = {'A_log': 0.0}
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    if name.split('.')[-1] in gates:
        weight.data[..., ::2] = gates[name.split('.')[-1]] + 0.5 * noise[..., ::2]
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data if name.split('.')[-1] in gates else weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = generation_from_cache(Model(network), inputs, 0)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
