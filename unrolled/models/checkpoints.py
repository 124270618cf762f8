"""Published weights for `VisionTransformer`: state dicts of timm and of Hugging Face."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import Attention, keep_projected
from .vision_transformer import VisionTransformer

_TIMM = (
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "positions.weight"),
    (r"^patch_embed\.proj\.", "patch_embedding.projection."),
    (r"^(blocks\.\d+)\.norm1\.", r"\1.attention_norm."),
    (r"^(blocks\.\d+)\.norm2\.", r"\1.feed_forward_norm."),
    (r"^(blocks\.\d+)\.attn\.qkv\.", r"\1.attention.in_proj_"),
    (r"^(blocks\.\d+)\.attn\.proj\.", r"\1.attention.out_proj."),
    (r"^(blocks\.\d+)\.mlp\.", r"\1.feed_forward."),
    (r"^(blocks\.\d+)\.ls1\.", r"\1.attention_scale."),
    (r"^(blocks\.\d+)\.ls2\.", r"\1.feed_forward_scale."),
)
# Saved files have the longer names, models in memory since transformers 5 the shorter ones.
_HUGGINGFACE = (
    (r"^vit\.", ""),
    (r"^embeddings\.cls_token$", "class_token"),
    (r"^embeddings\.position_embeddings$", "positions.weight"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embedding.projection."),
    (r"^(?:encoder\.layer|layers)\.(\d+)\.", r"blocks.\1."),
    (r"\.layernorm_before\.", ".attention_norm."),
    (r"\.layernorm_after\.", ".feed_forward_norm."),
    (r"\.attention\.(?:attention\.query|q_proj)\.", ".attention.q."),
    (r"\.attention\.(?:attention\.key|k_proj)\.", ".attention.k."),
    (r"\.attention\.(?:attention\.value|v_proj)\.", ".attention.v."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attention.out_proj."),
    (r"^(blocks\.\d+)\.(?:intermediate\.dense|mlp\.fc1)\.", r"\1.feed_forward.fc1."),
    (r"^(blocks\.\d+)\.(?:output\.dense|mlp\.fc2)\.", r"\1.feed_forward.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)
# Parameters that the plain ViT lacks; they keep their present values.
_OWN = re.compile(r"\.attention\.operator\.|_scale\.|_residual\.|token_graying\.")


def load_timm_state_dict(
    model: VisionTransformer,
    state_dict: Mapping[str, Tensor],
    *,
    interpolate_positions: bool = False,
) -> None:
    """Load a state dict of timm's ``VisionTransformer`` (ViT and DeiT without distillation token).

    Parameters that the plain ViT lacks, of operators, branch scales and residual connections, keep
    their values.

    Parameters
    ----------
    model : VisionTransformer
        With ``pool="class"``, learned positions and, as in timm, ``norm_eps=1e-6``.
    state_dict : mapping of str to Tensor
    interpolate_positions : bool, default=False
        Resample positions of another square grid, bicubically, to the model's.

    Raises
    ------
    ValueError
        If names or shapes do not fit; nothing is loaded then.

    Examples
    --------
    >>> from twinsolve.unrolled import VisionTransformer
    >>> from twinsolve.unrolled.models import load_timm_state_dict
    >>> model = VisionTransformer(8, 4, 1, 10, 32, 0, 4)
    >>> keys = {
    ...     "cls_token": model.class_token,
    ...     "pos_embed": model.positions.weight[None],
    ...     "patch_embed.proj.weight": model.patch_embedding.projection.weight.view(32, 1, 4, 4),
    ...     "patch_embed.proj.bias": model.patch_embedding.projection.bias,
    ... }
    >>> keys |= {k: v for k, v in model.state_dict().items() if k.startswith(("norm", "head"))}
    >>> load_timm_state_dict(model, keys)
    """
    _load_state(model, _rename_keys(state_dict, _TIMM), interpolate_positions)


def load_huggingface_state_dict(
    model: VisionTransformer,
    state_dict: Mapping[str, Tensor],
    *,
    interpolate_positions: bool = False,
) -> None:
    """Load a state dict of Hugging Face's ``ViTModel`` or ``ViTForImageClassification``.

    Names of saved files and of models in memory are both understood. The pooler of ``ViTModel`` has
    no counterpart and is left out. Parameters that the plain ViT lacks keep their values.

    Parameters
    ----------
    model : VisionTransformer
        With ``pool="class"``, learned positions and the configuration's ``layer_norm_eps``
        (1e-12 by default) as `norm_eps`; ``num_classes=0`` for a ``ViTModel``.
    state_dict : mapping of str to Tensor
    interpolate_positions : bool, default=False
        Resample positions of another square grid, bicubically, to the model's.

    Raises
    ------
    ValueError
        If names or shapes do not fit; nothing is loaded then.

    Examples
    --------
    >>> from twinsolve.unrolled import VisionTransformer
    >>> from twinsolve.unrolled.models import load_huggingface_state_dict
    >>> model = VisionTransformer(8, 4, 1, 10, 32, 0, 4, norm_eps=1e-12)
    >>> try:
    ...     load_huggingface_state_dict(model, {"classifier.bias": model.head.bias})
    ... except ValueError as error:
    ...     print(str(error)[:42])
    state_dict: missing class_token, head.weig
    """
    renamed = _rename_keys(state_dict, _HUGGINGFACE)
    renamed = {k: v for k, v in renamed.items() if not k.startswith("pooler.")}
    for query in [name for name in renamed if ".attention.q." in name]:
        parts = [query.replace(".q.", f".{part}.") for part in "qkv"]
        if all(part in renamed for part in parts):
            joined = torch.cat([renamed.pop(part) for part in parts])
            renamed[query.replace(".q.", ".in_proj_")] = joined
    _load_state(model, renamed, interpolate_positions)


def _rename_keys(
    state_dict: Mapping[str, Tensor], rules: tuple[tuple[str, str], ...]
) -> dict[str, Tensor]:
    """Apply all rules, patterns and their replacements, to each name."""
    renamed = {}
    for name, value in state_dict.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


def _load_state(model: VisionTransformer, state: dict[str, Tensor], interpolate: bool) -> None:
    """Load a state dict with the model's names, after a check that names and shapes fit."""
    projection = "patch_embedding.projection.weight"
    if projection in state:
        state[projection] = state[projection].flatten(1)
    if "positions.weight" in state:
        state["positions.weight"] = _resize_positions(model, state["positions.weight"], interpolate)
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            keep_projected(module, state, f"{name}.")
    model_state = model.state_dict()
    missing = [name for name in model_state if name not in state and not _OWN.search(name)]
    unexpected = [name for name in state if name not in model_state]
    shapes = [
        f"{name} {tuple(value.shape)} for {tuple(model_state[name].shape)}"
        for name, value in state.items()
        if name in model_state and value.shape != model_state[name].shape
    ]
    mismatches = [
        f"{kind} {', '.join(sorted(names))}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("shape", shapes))
        if names
    ]
    if mismatches:
        raise ValueError(f"state_dict: {'; '.join(mismatches)}")
    model.load_state_dict(model_state | state)


def _resize_positions(model: VisionTransformer, positions: Tensor, interpolate: bool) -> Tensor:
    """Return positions (1, tokens, dim) as rows, resampled to the model's grid if it differs."""
    rows, grid = positions.flatten(0, -2), model.grid
    n_class = int(model.class_token is not None)
    if rows.shape[0] == grid[0] * grid[1] + n_class:
        return rows
    side = round((rows.shape[0] - n_class) ** 0.5)
    if not interpolate or side**2 != rows.shape[0] - n_class:
        raise ValueError(
            f"state_dict: has {rows.shape[0]} positions, but the model has {grid[0]} x {grid[1]} "
            f"patches and {n_class} class token"
            + ("" if interpolate else "; interpolate_positions=True resamples a square grid")
        )
    image = rows[n_class:].mT.unflatten(1, (side, side))[None]  # (1, dim, side, side)
    image = F.interpolate(image, size=grid, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([rows[:n_class], image[0].flatten(1).mT])
