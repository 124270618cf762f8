"""T5Gemma2ForConditionalGeneration of transformers 5.24.0: generation of left padded.
`generate` scores the tokens of a row of a padded batch as the row alone is scored. Error: 2.4e-01."""
import torch
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration
def hide(inputs, start, n):
    padding = torch.zeros_like(inputs[1:, :n])
    later = torch.cat([inputs[1:, :start], padding, inputs[1:, start:-n]], 1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long)
    mask[1:, start:start + n] = 0
    return (torch.cat([inputs[:1], later]), mask, (mask.cumsum(1) - 1).clamp(min=0))
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
def generation_of_left_padded(model, inputs):
    n = inputs.shape[1]
    padded, mask, _ = hide(inputs, 0, 4)
    lengths = [n, *[n - 4] * (len(inputs) - 1)]
    return scores_of(model, generate(model, padded, 8, mask=mask), lengths)
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
settings = {'bos_token_id': 1, 'decoder': {'model_type': 't5gemma2_decoder', 'bos_token_id': 1, 'dropout_rate': 0.0,
    'eos_token_id': 2, 'head_dim': 8, 'hidden_size': 32, 'intermediate_size': 48, 'layer_types': ['sliding_attention',
    'full_attention', 'sliding_attention', 'full_attention'], 'max_position_embeddings': 512, 'num_attention_heads': 4,
    'num_hidden_layers': 4, 'num_key_value_heads': 2, 'sliding_window': 8, 'tie_word_embeddings': False, 'vocab_size':
    97}, 'encoder': {'model_type': 't5gemma2_encoder', 'text_config': {'model_type': 't5gemma2_text', 'bos_token_id': 1,
    'dropout_rate': 0.0, 'eos_token_id': 2, 'head_dim': 8, 'hidden_size': 32, 'intermediate_size': 48, 'layer_types':
    ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'], 'max_position_embeddings': 512,
    'num_attention_heads': 4, 'num_hidden_layers': 4, 'num_key_value_heads': 2, 'sliding_window': 8,
    'tie_word_embeddings': False, 'vocab_size': 97}, 'tie_word_embeddings': False, 'vision_config': {'model_type':
    'siglip_vision_model', 'hidden_size': 32, 'image_size': 32, 'intermediate_size': 48, 'num_attention_heads': 4,
    'num_hidden_layers': 4, 'patch_size': 8}}, 'eos_token_id': 2, 'tie_word_embeddings': False, 'vocab_size': 97,}
torch.manual_seed(0)
network = T5Gemma2ForConditionalGeneration(T5Gemma2Config(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else (weight[0].numel() if weight.ndim > 3 or weight.shape[1:-1] == (1,) else weight.shape[-1]) ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
source = torch.randint(3, 97, (2, 13), generator=torch.Generator().manual_seed(2))[:2]
inputs = 2 * torch.randint(2, 48, (2, 21), generator=torch.Generator().manual_seed(1)) + torch.arange(2)[:, None]
found, expected, *_ = generation_of_left_padded(Model(network, source), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
