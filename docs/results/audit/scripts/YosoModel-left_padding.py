"""YosoModel of transformers 5.24.0: left padding.

Behind masked padding, tokens have the output that they have alone, in batches and not. Error: 3.6e-01."""
import torch
import torch.nn.functional as F
from transformers import YosoConfig, YosoModel

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
        given = {name: x for name, x in {'attention_mask': mask, 'position_ids': None if positions is None else positions + 2}.items() if x is not None}
        output = self.network(inputs, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], None

settings = {'attention_probs_dropout_prob': 0.0, 'bos_token_id': 1, 'hidden_dropout_prob': 0.0, 'hidden_size': 32,
    'intermediate_size': 48, 'max_position_embeddings': 512, 'num_attention_heads': 4, 'num_hidden_layers': 4,
    'pad_token_id': 0, 'tie_word_embeddings': False, 'vocab_size': 97,}
torch.manual_seed(0)
network = YosoModel(YosoConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = left_padding(Model(network), inputs, None)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
