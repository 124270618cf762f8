"""NllbMoeForConditionalGeneration of transformers 5.24.0: dropout in eval.

In eval mode, dropout of one half changes nothing. Error: 2.0e-01."""
import copy
import torch
from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration

def load(network, weights):
    network.load_state_dict(weights)
    return network

def rebuild(network, **changes):
    config = copy.deepcopy(network.config)
    for name, value in changes.items():
        owner = config if hasattr(config, name) else config.get_text_config(decoder=True)
        setattr(owner, name, value)
    return load(type(network)(config).eval(), network.state_dict())

def dropout_in_eval(model, inputs):
    settings = vars(model.network.config.get_text_config(decoder=True)).items()
    changes = {name: 0.5 for name, x in settings if 'drop' in name and isinstance(x, float)}
    return (model.of(rebuild(model.network, **changes))(inputs)[0], model(inputs)[0])

class Model:
    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask

    def of(self, network):
        return Model(network, self.source, self.mask)

    def source_of(self, inputs):  # the first token tells
        first = (inputs != 0).int().argmax(1)
        rows = inputs[range(len(inputs)), first] % len(self.source)
        return {'input_ids': self.source[rows]}

    @torch.no_grad()
    def __call__(self, inputs):
        torch.manual_seed(0)
        output = self.network(decoder_input_ids=inputs, use_cache=True, **self.source_of(inputs))
        return output["logits" if "logits" in output else "last_hidden_state"], output.cache

settings = {'attention_dropout': 0.0, 'bos_token_id': 1, 'd_model': 32, 'decoder_attention_heads': 4, 'decoder_ffn_dim':
    48, 'decoder_layerdrop': 0.0, 'decoder_layers': 4, 'dropout': 0.0, 'encoder_attention_heads': 4, 'encoder_ffn_dim':
    48, 'encoder_layerdrop': 0.0, 'encoder_layers': 4, 'max_position_embeddings': 512, 'moe_token_dropout': 0.0,
    'num_experts': 4, 'pad_token_id': 0, 'tie_word_embeddings': False, 'vocab_size': 97, 'experts_implementation':
    'eager',}
torch.manual_seed(0)
network = NllbMoeForConditionalGeneration(NllbMoeConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = 1 if weight is network.get_input_embeddings().weight else weight.shape[-1] ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
source = torch.randint(3, 97, (2, 13), generator=torch.Generator().manual_seed(2))[:2]
inputs = 2 * torch.randint(2, 48, (2, 21), generator=torch.Generator().manual_seed(1)) + torch.arange(2)[:, None]

found, expected, *_ = dropout_in_eval(Model(network, source), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
