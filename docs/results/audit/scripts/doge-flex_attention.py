"""DogeForCausalLM of transformers 5.24.0: flex attention.
The implementations "eager" and "flex_attention" give the same output, padded and not. Error: 5.1e-01."""
import copy
import torch
import torch.nn.functional as F
from transformers import DogeConfig, DogeForCausalLM
def pad_left(inputs, n):
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = torch.zeros_like(inputs[:, :n])
    return (torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0))
def load(network, weights):
    network.load_state_dict(weights)
    return network
def rebuild(network, **changes):
    config = copy.deepcopy(network.config)
    for name, value in changes.items():
        owner = config if hasattr(config, name) else config.get_text_config(decoder=True)
        setattr(owner, name, value)
    return load(type(network)(config).eval(), network.state_dict())
def compare_implementations(model, inputs, names, n_padding):
    given = {}
    if n_padding:
        inputs, given['mask'], given['positions'] = pad_left(inputs, n_padding)
    outputs = []
    for name in names:
        other = model.of(rebuild(model.network, _attn_implementation=name))
        with torch.compiler.set_stance('force_eager'):
            outputs.append(other(inputs, **given)[0][:, -3:])
    return (outputs[0], outputs[1])
def flex_attention(model, inputs, n_padding):
    return compare_implementations(model, inputs, ['flex_attention', 'eager'], n_padding)
class Model:
    def __init__(self, network):
        self.network = network
    def of(self, network):
        return Model(network)
    @torch.no_grad()
    def __call__(self, inputs, mask=None, positions=None):
        given = {name: x for name, x in {'attention_mask': mask, 'position_ids': positions}.items() if x is not None}
        output = self.network(inputs, use_cache=True, **given)
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache
settings = {'hidden_size': 32, 'intermediate_size': 48, 'max_position_embeddings': 512, 'num_attention_heads': 4,
    'num_experts': 4, 'num_experts_per_tok': 2, 'num_hidden_layers': 4, 'num_key_value_heads': 2, 'pad_token_id': 0,
    'vocab_size': 97, 'experts_implementation': 'eager',}
torch.manual_seed(0)
network = DogeForCausalLM(DogeConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
found, expected, *_ = flex_attention(Model(network), inputs, 3)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
