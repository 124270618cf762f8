"""Weights that bite: at the initialisation of a library, layers do nearly nothing."""

import math
from typing import Any

import torch
from torch import nn

SEED = 0
GATES = {"A_log": 0.0, "dt_bias": 0.0, "time_decay": -0.5, "recurrent_param": 0.0}


def draw_weights(network: nn.Module) -> nn.Module:
    """Draw the weights of a network anew: outputs of unit size, gates in mid range.

    Matrices and kernels are drawn from N(0, 1 / fan_in), embeddings from N(0, 1) unless the output
    layer shares them, and vectors (gains, biases) move by N(0, 0.01) from where they start. Every
    second entry of a gate moves to mid range, so that both ends of it are tried. What takes no
    gradient, such as a table of sines, stays as it is.
    """
    draw = torch.Generator().manual_seed(SEED)
    embedding = _weight_of(network, "get_input_embeddings")
    head = _weight_of(network, "get_output_embeddings")
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if not weight.requires_grad:
                continue
            noise = torch.randn(weight.shape, generator=draw)
            gate = GATES.get(name.rpartition(".")[2])
            if gate is not None:
                weight[..., ::2] = gate + 0.5 * noise[..., ::2]
            elif weight is embedding:
                shared = weight is head
                weight.copy_(noise / (math.sqrt(weight.shape[-1]) if shared else 1))
            elif weight.ndim < 2:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise / math.sqrt(_fan_in(weight)))
    return network


def write_draw(network: nn.Module) -> list[str]:
    """Return lines that draw the weights of this network as `draw_weights` does."""
    weights = dict(network.named_parameters())
    gates = {name: GATES[name] for name in GATES if any(x.split(".")[-1] == name for x in weights)}
    scale, embedding = "weight.shape[-1] ** 0.5", _weight_of(network, "get_input_embeddings")
    if any(_fan_in(x) != x.shape[-1] for x in weights.values() if x.ndim > 1):
        kernel = "weight.ndim > 3 or weight.shape[1:-1] == (1,)"
        scale = f"(weight[0].numel() if {kernel} else weight.shape[-1]) ** 0.5"
    if embedding is not None and embedding is not _weight_of(network, "get_output_embeddings"):
        scale = f"1 if weight is network.get_input_embeddings().weight else {scale}"
    lines = [
        *([f"gates = {gates}"] if gates else []),
        f"draw = torch.Generator().manual_seed({SEED})",
        "for name, weight in network.named_parameters():"
        if all(x.requires_grad for x in weights.values())
        else "for name, weight in [x for x in network.named_parameters() if x[1].requires_grad]:",
    ]
    lines += ["    noise = torch.randn(weight.shape, generator=draw)"]
    new_values = "weight.data + 0.1 * noise if weight.ndim < 2 else noise / scale"
    if gates:
        new_values = f"weight.data if name.split('.')[-1] in gates else {new_values}"
        half = "gates[name.split('.')[-1]] + 0.5 * noise[..., ::2]"
        lines += ["    if name.split('.')[-1] in gates:", f"        weight.data[..., ::2] = {half}"]
    return [*lines, f"    scale = {scale}", f"    weight.data = {new_values}"]


def _weight_of(network: nn.Module, getter: str) -> Any:
    """Return the weight of the embedding or of the head, or None if it cannot be found."""
    try:
        return getattr(getattr(network, getter)(), "weight", None)
    except (AttributeError, NotImplementedError):
        return None


def _fan_in(weight: Any) -> int:
    """Return how many entries an output sums: of a convolution all axes but the first."""
    convolution = weight.ndim > 3 or (weight.ndim == 3 and weight.shape[1] == 1)
    return math.prod(weight.shape[1:]) if convolution else weight.shape[-1]
