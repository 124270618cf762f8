"""FSMTForConditionalGeneration of transformers 5.24.0: content of padding.

Which tokens stand under the mask, before the others or among them, changes nothing. Error: 1.2e-01."""
import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration

def content_of_padding(model, inputs):
    n, half, outputs = (inputs.shape[1], inputs.shape[1] // 2, [])
    seen = torch.tensor([0] * 3 + [1] * half + [0] * 3 + [1] * (n - half))
    mask = seen.expand(len(inputs), -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for hidden in (inputs[:, -3:], torch.zeros_like(inputs[:, -3:])):
        padded = torch.cat([hidden, inputs[:, :half], hidden, inputs[:, half:]], 1)
        outputs.append(model(padded, mask=mask, positions=positions)[0][:, seen == 1])
    return (outputs[0], outputs[1])

class Model:
    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask

    def source_of(self, inputs):  # the first token tells
        first = (inputs != 0).int().argmax(1)
        rows = inputs[range(len(inputs)), first] % len(self.source)
        return {'input_ids': self.source[rows]}

    @torch.no_grad()
    def __call__(self, inputs, mask=None, positions=None):
        given = {name: x for name, x in {'decoder_attention_mask': mask}.items() if x is not None}
        output = self.network(decoder_input_ids=inputs, use_cache=True, **given, **self.source_of(inputs))
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'bos_token_id': 1, 'd_model': 32, 'decoder_attention_heads': 4, 'decoder_ffn_dim': 48, 'decoder_layers': 4,
    'dropout': 0.0, 'encoder_attention_heads': 4, 'encoder_ffn_dim': 48, 'encoder_layers': 4, 'max_position_embeddings':
    512, 'pad_token_id': 0,}
torch.manual_seed(0)
network = FSMTForConditionalGeneration(FSMTConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
source = torch.randint(3, 42024, (2, 13), generator=torch.Generator().manual_seed(2))[:2]
inputs = 2 * torch.randint(2, 21012, (2, 21), generator=torch.Generator().manual_seed(1)) + torch.arange(2)[:, None]

found, expected, *_ = content_of_padding(Model(network, source), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
