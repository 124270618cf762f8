"""Vision transformers that Hugging Face transformers or timm saved, without these libraries."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from ....unrolled import VisionTransformer
from ....unrolled.models import load_huggingface_state_dict, load_timm_state_dict

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = "model.safetensors"
_KEPT = {"model_type": "vit", "hidden_act": "gelu", "qkv_bias": True}  # what our blocks compute
_ABSENT = {"hidden_act": "gelu", "qkv_bias": True}  # the library's defaults
_HEAD_DIM = 64  # of all of timm's plain ViT and DeiT whose settings do not say otherwise


class Published(NamedTuple):
    """A model, and mean and standard deviation by which its pixels in [0, 1] are normalised."""

    model: VisionTransformer
    mean: list[float]
    std: list[float]


def load_published(folder: Path, *, untrained: bool = False) -> Published:
    """Read a ViT from the folder in which Hugging Face transformers or timm saved it.

    Parameters
    ----------
    folder : Path
        With config.json and model.safetensors, as ``save_pretrained`` leaves them for a
        ``ViTModel`` or ``ViTForImageClassification``, and ``timm.models.save_for_hf`` for a plain
        ViT or DeiT.
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
    by_timm = "architecture" in config
    _check(config, by_timm)
    if not (folder / _WEIGHTS).is_file():
        raise FileNotFoundError(f"{folder}: has no {_WEIGHTS}; pickled weights are not read")
    state = load_file(folder / _WEIGHTS)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = _of_timm(config, state) if by_timm else _of_huggingface(config, state)
    if not untrained:
        (load_timm_state_dict if by_timm else load_huggingface_state_dict)(model, state)
    said = config.get("pretrained_cfg", config) if by_timm else _preprocessor(folder)
    prefix = "" if by_timm else "image_"
    half = [0.5, 0.5, 0.5]  # both libraries' own
    return Published(model.eval(), said.get(f"{prefix}mean", half), said.get(f"{prefix}std", half))


def _check(config: dict[str, Any], by_timm: bool) -> None:
    if by_timm:
        name, given = config["architecture"], config.get("model_args", {})
        if not name.startswith(("vit_", "deit_")) or given.get("global_pool", "token") != "token":
            raise ValueError(f"MODEL: must be a plain ViT or DeiT of timm, got {name!r}, {given}")
        return
    for key, value in _KEPT.items():
        if config.get(key, _ABSENT.get(key)) != value:
            raise ValueError(
                f"MODEL: must be a ViT of Hugging Face with {key} {value!r}, got "
                f"{config.get(key)!r}"
            )


def _of_huggingface(config: dict[str, Any], state: dict[str, Tensor]) -> VisionTransformer:
    return VisionTransformer(
        config.get("image_size", 224), config.get("patch_size", 16), config.get("num_channels", 3),
        len(state["classifier.bias"]) if "classifier.bias" in state else 0,
        config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
        mlp_ratio=config["intermediate_size"] / config["hidden_size"],
        norm_eps=config.get("layer_norm_eps", 1e-12),
    )  # fmt: skip


def _of_timm(config: dict[str, Any], state: dict[str, Tensor]) -> VisionTransformer:
    """Sizes from the weights themselves; heads, which these do not show, from the settings."""
    dim, channels, patch_size, _ = state["patch_embed.proj.weight"].shape
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5) * patch_size
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    return VisionTransformer(
        side, patch_size, channels, len(state.get("head.bias", ())), dim, depth,
        config.get("model_args", {}).get("num_heads", dim // _HEAD_DIM),
        mlp_ratio=len(state["blocks.0.mlp.fc1.bias"]) / dim, norm_eps=1e-6,
    )  # fmt: skip


def _preprocessor(folder: Path) -> dict[str, Any]:
    path = folder / PREPROCESSOR
    said: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return said
