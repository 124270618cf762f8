"""GroupViTVisionModel of transformers 5.24.0: gradients.

The gradient in weights and features agrees with central differences. Error: 4.3e-02."""
import torch
from transformers import GroupViTVisionConfig, GroupViTVisionModel

def differences_along(evaluate, weights, along):
    sizes, values, at = ([2.0 ** (-i) for i in (10, 11, 13, 14, 17, 18, 21, 22)], [], 0.0)
    for step in (*sizes, *(-size for size in sizes), 0.0):
        for weight, direction in zip(weights, along, strict=True):
            weight.data.add_(direction, alpha=step - at)
        values.append(evaluate().detach())
        at = step
    ahead, behind = torch.stack(values[:-1]).chunk(2)
    return (ahead - behind) / (2 * torch.tensor(sizes).to(ahead))

def differ(model, inputs, evaluate):
    weights, rows = ([x for x in [*model.network.parameters(), inputs] if x.requires_grad], [])
    slopes = torch.autograd.grad(evaluate(), weights, allow_unused=True, materialize_grads=True)
    draw = torch.Generator(inputs.device).manual_seed(1)
    for _ in range(3):
        along = [torch.randn(slope.shape, generator=draw) / slope.numel() ** 0.5 + slope / slope.norm().clamp(1e-99) for slope in slopes]
        slope = torch.stack([(x * y).sum() for x, y in zip(along, slopes, strict=True)]).sum()
        differences = differences_along(evaluate, weights, along)
        rows.append((slope, differences[(differences - slope).abs().argmin()], differences))
    return map(torch.stack, zip(*rows, strict=True))

def weigh(output):
    return (output * torch.arange(output.numel()).to(output).square().sin().view_as(output)).sum()

def gradients(model, inputs):
    return differ(model, inputs, lambda: weigh(model(inputs)[0]))

class Model:
    def __init__(self, network):
        self.network = network

    def __call__(self, inputs):
        output = self.network(inputs)
        return output["logits" if "logits" in output else "last_hidden_state"], None

settings = {'hidden_size': 32, 'image_size': 32, 'intermediate_size': 48, 'num_attention_heads': 4, 'num_hidden_layers':
    4, 'patch_size': 8,}
torch.manual_seed(0)
network = GroupViTVisionModel(GroupViTVisionConfig(**settings)).eval()
draw = torch.Generator().manual_seed(0)
for name, weight in network.named_parameters():
    noise = torch.randn(weight.shape, generator=draw)
    scale = (weight[0].numel() if weight.ndim > 3 or weight.shape[1:-1] == (1,) else weight.shape[-1]) ** 0.5
    weight.data = weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale
inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
network, inputs = network.double(), inputs.double()
inputs.requires_grad_()

found, expected, *_ = gradients(Model(network), inputs)
print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
