"""BartForCausalLM of transformers 5.24.0: left padding.

Behind masked padding, tokens have the output that they have alone, in batches and not. Error: 3.4e-01."""
import torch
import torch.nn.functional as F
from transformers import BartConfig, BartForCausalLM

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
        given = {name: x for name, x in {'attention_mask': mask}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'bos_token_id': 1, 'd_model': 32, 'decoder_attention_heads': 4, 'decoder_ffn_dim': 48, 'decoder_layers': 4,
    'dropout': 0.0, 'encoder_attention_heads': 4, 'encoder_ffn_dim': 48, 'encoder_layers': 4, 'max_position_embeddings':
    512, 'pad_token_id': 0, 'tie_word_embeddings': False, 'vocab_size': 97, 'is_decoder': True,}
torch.manual_seed(0)
network = BartForCausalLM(BartConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = left_padding(Model(network), inputs, None)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
