"""FSMTForConditionalGeneration of transformers 5.24.0: later tokens.

Later tokens change nothing, whatever they are: others, and weaker or stronger features. Error: 3.1e-01."""
import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration

def later_tokens(model, inputs, draw):
    cut = inputs.shape[1] * (draw // 3 + 1) // 5
    chance = torch.Generator(inputs.device).manual_seed(draw)
    tokens = inputs.flatten(0, 1)
    later = tokens[torch.randint(len(tokens), inputs[:, cut:].shape[:2], generator=chance)]
    later = later
    changed = torch.cat([inputs[:, :cut], later], 1)
    return (model(changed)[0][:, :cut], model(inputs)[0][:, :cut])

class Model:
    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask

    def source_of(self, inputs):  # the first token tells
        first = (inputs != 0).int().argmax(1)
        rows = inputs[range(len(inputs)), first] % len(self.source)
        return {'input_ids': self.source[rows]}

    @torch.no_grad()
    def __call__(self, inputs):
        output = self.network(decoder_input_ids=inputs, use_cache=True, **self.source_of(inputs))
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

found, expected, *_ = later_tokens(Model(network, source), inputs, 0)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
