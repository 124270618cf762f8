"""The same weights under other settings: modes, sizes of chunks, implementations of attention."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import NotApplicable, Pair, network_law
from .padding import pad_left

if TYPE_CHECKING:
    from ..model import Model


def rebuild(network: Any, **changes: Any) -> Any:
    """Return a network of the same weights, with other values in its configuration."""
    config = copy.deepcopy(network.config)
    for name, value in changes.items():
        owner = config if hasattr(config, name) else config.get_text_config(decoder=True)
        setattr(owner, name, value)
    return load(type(network)(config).eval(), network.state_dict())


def load(network: Any, weights: dict[str, Tensor]) -> Any:
    """Load these weights into the network and return it."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise NotApplicable("its weights depend on what changes") from error
    return network


@network_law("module", "same in training", seeded=False)
def training_mode(model: Model, inputs: Tensor) -> Pair:
    """Without dropout and batch norm, training mode gives the output of eval mode."""
    expected = model(inputs)[0]
    model.network.train()
    found, again = model(inputs)[0], model(inputs)[0]
    model.network.eval()
    if not torch.equal(found, again):
        raise NotApplicable("it draws random numbers in training, without dropout too")
    return found, expected


@network_law("config")
def dropout_in_eval(model: Model, inputs: Tensor) -> Pair:
    """In eval mode, dropout of one half changes nothing."""
    settings = vars(model.network.config.get_text_config(decoder=True)).items()
    changes = {name: 0.5 for name, x in settings if "drop" in name and isinstance(x, float)}
    return model.of(rebuild(model.network, **changes))(inputs)[0], model(inputs)[0]


@network_law("config", "chunks")
def chunk_sizes(model: Model, inputs: Tensor) -> Pair:
    """Another chunk size gives the same output."""
    other = rebuild(model.network, **dict.fromkeys(model.chunks, 5))
    return model.of(other)(inputs)[0], model(inputs)[0]


def compare_implementations(
    model: Model, inputs: Tensor, names: Sequence[str], n_padding: int
) -> Pair:
    """Return the last outputs of two implementations of attention, behind padding."""
    given: dict[str, Any] = {}
    if n_padding and "mask" not in model.offers:
        raise NotApplicable("needs mask")
    if n_padding:
        inputs, given["mask"], given["positions"] = pad_left(inputs, n_padding)
    outputs = []
    for name in names:
        other = model.of(rebuild(model.network, _attn_implementation=name))
        with torch.compiler.set_stance("force_eager"):  # to compile takes ten seconds
            outputs.append(other(inputs, **given)[0][:, -3:])
    return outputs[0], outputs[1]


@network_law("implementations", cases=(0, 3))
def attention_implementations(model: Model, inputs: Tensor, n_padding: int) -> Pair:
    """The implementations "eager" and "sdpa" give the same output, padded and not."""
    return compare_implementations(model, inputs, ["sdpa", "eager"], n_padding)


@network_law("flex", cases=(0, 3))
def flex_attention(model: Model, inputs: Tensor, n_padding: int) -> Pair:
    """The implementations "eager" and "flex_attention" give the same output, padded and not."""
    return compare_implementations(model, inputs, ["flex_attention", "eager"], n_padding)


@network_law("config", "grouped")
def grouped_heads(model: Model, inputs: Tensor) -> Pair:
    """Fewer heads of keys and values are those heads repeated."""
    config = copy.deepcopy(model.network.config)
    text = config.get_text_config(decoder=True)
    heads, copies = text.num_key_value_heads, text.num_attention_heads // text.num_key_value_heads
    text.num_key_value_heads = text.num_attention_heads
    other = type(model.network)(config).eval()
    wanted, repeated = other.state_dict(), {}
    for name, weight in model.network.state_dict().items():
        if name.split(".")[-2] in ("k_proj", "v_proj") and weight.shape != wanted[name].shape:
            weight = weight.unflatten(0, (heads, -1)).repeat_interleave(copies, 0).flatten(0, 1)
        repeated[name] = weight
    return model(inputs)[0], model.of(load(other, repeated))(inputs)[0]
