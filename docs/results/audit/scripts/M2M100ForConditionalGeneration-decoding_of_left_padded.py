"""M2M100ForConditionalGeneration of transformers 5.24.0: decoding of left padded.
Rows behind paddings that differ decode to the outputs that they have alone. Error: 4.5e-01."""
from itertools import pairwise
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration
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
    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask
    def source_of(self, inputs):  # the first token tells
        first = (inputs != 0).int().argmax(1)
        rows = inputs[range(len(inputs)), first] % len(self.source)
        return {'input_ids': self.source[rows]}
    @torch.no_grad()
    def __call__(self, inputs, cache=None, mask=None, positions=None):
        given = {name: x for name, x in {'cache': cache, 'decoder_attention_mask': mask}.items() if x is not None}
        output = self.network(decoder_input_ids=inputs, use_cache=True, **given, **self.source_of(inputs))
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache
settings = {'attention_dropout': 0.0, 'bos_token_id': 1, 'd_model': 32, 'decoder_attention_heads': 4, 'decoder_ffn_dim':
    48, 'decoder_layerdrop': 0.0, 'decoder_layers': 4, 'dropout': 0.0, 'encoder_attention_heads': 4, 'encoder_ffn_dim':
    48, 'encoder_layerdrop': 0.0, 'encoder_layers': 4, 'max_position_embeddings': 512, 'pad_token_id': 0,
    'tie_word_embeddings': False, 'vocab_size': 97,}
torch.manual_seed(0)
network = M2M100ForConditionalGeneration(M2M100Config(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
source = torch.randint(3, 97, (2, 13), generator=torch.Generator().manual_seed(2))[:2]
inputs = 2 * torch.randint(2, 48, (2, 21), generator=torch.Generator().manual_seed(1)) + torch.arange(2)[:, None]
found, expected, *_ = decoding_of_left_padded(Model(network, source), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
