"""Where the heads of a layer can be told apart: what the map that mixes them takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .model import Model


def find_mixing_maps(model: Model, layer: int) -> list[str]:
    """Return the names of the linear maps that mix the heads of a layer, in the order of a call.

    Such a map takes all heads side by side and gives the hidden size. It does not take what the
    first map of the layer takes, as those of queries, keys and values do, and no other map of its
    module comes after it. Layers without heads have none.
    """
    block = _find_block(model, layer)
    calls: list[tuple[str, Tensor, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda _, x, y, name=name: calls.append((name, x[0], y)))
        for name, module in model.network.named_modules()
        if name.startswith(block) and getattr(getattr(module, "weight", None), "ndim", 0) == 2
    ]
    try:
        model(model.inputs.clone())
    finally:
        for hook in hooks:
            hook.remove()
    last = {name.rpartition(".")[0]: name for name, _, _ in calls}
    return [
        name
        for name, features, output in calls
        if isinstance(output, Tensor)
        and features.shape[-1:] == (_width_of_heads(model.config),)
        and output.shape[-1] == model.config.hidden_size
        and last[name.rpartition(".")[0]] == name
        and not (features.shape == calls[0][1].shape and features.equal(calls[0][1]))
    ]


def _find_block(model: Model, layer: int) -> str:
    """Return the prefix of the names of a layer's modules; with an encoder too, the decoder's."""
    n, block = model.config.num_hidden_layers, ""
    for name, module in model.network.named_modules():
        inner = block and name.startswith(f"{block}.")
        if isinstance(module, nn.ModuleList) and len(module) == n and not inner:
            block = name
    return f"{block}.{layer}." if block else "none"


def _width_of_heads(config: Any) -> int:
    """Return the width of all heads side by side."""
    heads = config.num_attention_heads
    sizes = (getattr(config, name, None) for name in ("v_head_dim", "head_dim"))
    return heads * (next(filter(None, sizes), None) or config.hidden_size // heads)
