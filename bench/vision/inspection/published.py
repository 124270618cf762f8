"""Vision transformers that Hugging Face transformers saved, without that library."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from ....unrolled import VisionTransformer
from ....unrolled.models import load_huggingface_state_dict

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = "model.safetensors"
_KEPT = {"model_type": "vit", "hidden_act": "gelu", "qkv_bias": True}  # what our blocks compute
_ABSENT = {"hidden_act": "gelu", "qkv_bias": True}  # the library's defaults


class Published(NamedTuple):
    """A model, and mean and standard deviation by which its pixels in [0, 1] are normalised."""

    model: VisionTransformer
    mean: list[float]
    std: list[float]


def load_published(folder: Path, *, untrained: bool = False) -> Published:
    """Read a ``ViTModel`` or ``ViTForImageClassification`` from its folder.

    Parameters
    ----------
    folder : Path
        With config.json and model.safetensors, as ``save_pretrained`` leaves them.
    untrained : bool, default=False
        The same model with weights drawn anew.

    Raises
    ------
    FileNotFoundError
        If there are no weights of that form.
    ValueError
        If it is another model than a plain ViT.
    """
    config = json.loads((folder / CONFIG).read_text())
    for key, value in _KEPT.items():
        if config.get(key, _ABSENT.get(key)) != value:
            raise ValueError(
                f"{folder}: must be a ViT of Hugging Face with {key} {value!r}, got "
                f"{config.get(key)!r}"
            )
    if not (folder / _WEIGHTS).is_file():
        raise FileNotFoundError(f"{folder}: has no {_WEIGHTS}; pickled weights are not read")
    state = load_file(folder / _WEIGHTS)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = _model(config, state)
    if not untrained:
        load_huggingface_state_dict(model, state)
    return Published(model.eval(), *_normalisation(folder))


def _model(config: dict[str, Any], state: dict[str, Tensor]) -> VisionTransformer:
    return VisionTransformer(
        config.get("image_size", 224), config.get("patch_size", 16), config.get("num_channels", 3),
        len(state["classifier.bias"]) if "classifier.bias" in state else 0,
        config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
        mlp_ratio=config["intermediate_size"] / config["hidden_size"],
        norm_eps=config.get("layer_norm_eps", 1e-12),
    )  # fmt: skip


def _normalisation(folder: Path) -> tuple[list[float], list[float]]:
    path = folder / PREPROCESSOR
    said: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    half = [0.5, 0.5, 0.5]  # the library's own
    return said.get("image_mean", half), said.get("image_std", half)
