"""LEDForConditionalGeneration of transformers 5.24.0: static cache.

In a `StaticCache` of transformers, outputs are those of the full pass. Error: 2.3e-01."""
import torch
from transformers import LEDConfig, LEDForConditionalGeneration

def scores_of(model, generated, lengths):
    found, ids = (torch.stack(generated.logits, 1), generated.sequences)
    n = found.shape[1]
    rows = [ids[i:i + 1, -n - length:-1] for i, length in enumerate(lengths)]
    return (found, torch.cat([model(row)[0][:, -n:] for row in rows]))

def generate(model, ids, n, **given):
    of_decoder = 'decoder_'
    given[f'{of_decoder}input_ids'] = ids
    given[f'{of_decoder}attention_mask'] = given.pop('mask', torch.ones_like(ids))
    given['decoder_start_token_id'] = ids[:, 0].tolist()
    model.network.generation_config = type(model.network.generation_config)()
    return model.network.generate(max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, suppress_tokens=[0], output_logits=True, return_dict_in_generate=True, **given, **model.source_of(ids))

def static_cache(model, inputs):
    from transformers import StaticCache
    n, config = (inputs.shape[1], model.network.config)
    static = {'cache_implementation': 'static', 'disable_compile': True}
    return scores_of(model, generate(model, inputs, 8, **static), [n] * len(inputs))

class Model:
    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask

    def source_of(self, inputs):  # the first token tells
        first = (inputs != 0).int().argmax(1)
        rows = inputs[range(len(inputs)), first] % len(self.source)
        return {'input_ids': self.source[rows]}

    @torch.no_grad()
    def __call__(self, inputs, mask=None):
        given = {name: x for name, x in {'decoder_attention_mask': mask}.items() if x is not None}
        output = self.network(decoder_input_ids=inputs, use_cache=True, **given, **self.source_of(inputs))
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'bos_token_id': 1, 'd_model': 32, 'decoder_attention_heads': 4, 'decoder_ffn_dim': 48, 'decoder_layers': 4,
    'dropout': 0.0, 'encoder_attention_heads': 4, 'encoder_ffn_dim': 48, 'encoder_layers': 4, 'pad_token_id': 0,
    'tie_word_embeddings': False, 'vocab_size': 97, 'attention_window': 8,}
torch.manual_seed(0)
network = LEDForConditionalGeneration(LEDConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
source = torch.randint(3, 97, (2, 13), generator=torch.Generator().manual_seed(2))[:2]
inputs = 2 * torch.randint(2, 48, (2, 21), generator=torch.Generator().manual_seed(1)) + torch.arange(2)[:, None]

found, expected, *_ = static_cache(Model(network, source), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
