"""Tiny models of the architectures in transformers, at random weights, and inputs for them."""

import inspect
import logging

import torch
from torch.utils import _pytree

from twinsolve.twins.audit.architectures import find_architecture

try:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
except ImportError:  # the tests that need it are skipped
    CONFIG_MAPPING = {}


def tiny(kind, implementation=None):
    """A model of this type in float64, or an error of the library's if it cannot be so small."""
    made = find_architecture(CONFIG_MAPPING[kind].__name__.removesuffix("Config") + "Model")
    depths = getattr(made.config(), "depths", None)
    stages = {"depths": [1] * len(depths), "image_size": 64, "window_size": 2} if depths else {}
    torch.manual_seed(0)
    config = made.config(**(stages or made.settings))
    settings = {} if implementation is None else {"attn_implementation": implementation}
    model = made.network._from_config(config, **settings)
    if sum(p.numel() for p in model.parameters()) > 3e7:
        raise RuntimeError("too large")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.double().eval()


def inputs_of(model, padded=False):
    """Inputs by the names in the model's forward; sequences of 12 tokens."""
    config, names = model.config, inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 45, (2, 12), generator=generator)
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    sizes = {
        "pixel_values": (2, getattr(vision, "num_channels", 3), size, size),
        "input_values": (2, 2000),
        "input_features": (
            2, getattr(config, "num_mel_bins", 16), 2 * getattr(config, "max_source_positions", 32)
        ),
        "inputs_embeds": (2, 12, 32),
    }  # fmt: skip
    inputs = {"input_ids": ids} if "input_ids" in names else {}
    if not inputs or hasattr(model, "get_image_features"):
        name = next(name for name in sizes if name in names)
        inputs[name] = torch.randn(sizes[name], generator=generator).double()
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids[:, :7]
    if padded and "attention_mask" in names and "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones(2, 12, dtype=torch.long)
        inputs["attention_mask"][1, 8:] = 0
    return inputs


def outputs_of(model, inputs):
    """All tensors that the model returns, of visible tokens."""
    with torch.no_grad():
        torch.manual_seed(5)
        found = [x for x in _pytree.tree_leaves(dict(model(**inputs))) if torch.is_tensor(x)]
    found = [x for x in found if x.is_floating_point()]
    visible = inputs.get("attention_mask")
    if visible is None:
        return found
    return [x[visible.bool()] for x in found if x.shape[:2] == visible.shape]


logging.getLogger("transformers").setLevel(logging.ERROR)
