"""UnlimitedOcrForConditionalGeneration of transformers 5.24.0: decoding.

Token by token through the cache, the output is that of the full pass. Error: 6.5e-01."""
from itertools import pairwise
import torch
from transformers import UnlimitedOcrConfig, UnlimitedOcrForConditionalGeneration

def in_pieces(model, inputs, ends, *, cache=None):
    outputs = []
    for start, end in pairwise([0, *ends]):
        first = 0
        output, cache = model(inputs[:, start:end], cache=cache)
        outputs.append(output)
    return torch.cat(outputs, 1)

def decoding(model, inputs):
    expected = model(inputs)[0]
    ends = range(1, inputs.shape[1] + 1)
    return (in_pieces(model, inputs, ends), expected)

class Model:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs, cache=None):
        given = {name: x for name, x in {'cache': cache}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'text_config': {'model_type': 'unlimited_ocr_text', 'bos_token_id': 1, 'eos_token_id': 2, 'head_dim': 8,
    'hidden_size': 32, 'intermediate_size': 48, 'max_position_embeddings': 512, 'moe_intermediate_size': 48,
    'n_routed_experts': 4, 'num_attention_heads': 4, 'num_experts_per_tok': 2, 'num_hidden_layers': 4,
    'num_key_value_heads': 2, 'pad_token_id': 0, 'sliding_window': 8, 'vocab_size': 97, 'experts_implementation':
    'eager'}, 'vision_config': {'model_type': 'unlimited_ocr_vision', 'encoder_config': {'model_type':
    'unlimited_ocr_vision_encoder', 'hidden_size': 32, 'image_size': 32, 'intermediate_size': 48, 'num_attention_heads':
    4, 'num_hidden_layers': 4, 'patch_size': 8}, 'sam_config': {'model_type': 'unlimited_ocr_sam_vision_model',
    'hidden_size': 32, 'image_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 4, 'patch_size': 8,
    'window_size': 8}}, 'experts_implementation': 'eager',}
torch.manual_seed(0)
network = UnlimitedOcrForConditionalGeneration(UnlimitedOcrConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else (weight[0].numel() if weight.ndim > 3 or weight.shape[1:-1] == (1,) else weight.shape[-1]) ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))

found, expected, *_ = decoding(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
