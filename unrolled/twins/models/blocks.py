"""Twins: stacks of blocks, with each of the parts that the papers exchange."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import Context
from ...boosting import GeneralizedResidual
from ...models import Block
from ...models.stacks import make_blocks
from ...models.stacks import run_blocks as run_layers
from ...spectral_filtering import FeatScale, LayerScale
from ..heads import Array
from .block_pass import Settings, run_blocks
from .fitted import PATCH_HEADS, cleaning_patches, read_patches
from .small_models import (
    DIM,
    HEADS,
    add,
    drawn,
    hidden_pairs,
    hidden_tokens,
    joined,
    logit_range,
    over_batch,
    sequences,
)

# Two that read what layers share, behind so many others that first and previous ones differ.
_OPERATORS = ["softmax", "twicing", "elliptical", "neutreno"]


def _inputs(images: Tensor) -> tuple[Tensor, Tensor]:
    x = sequences(images)
    return x, hidden_tokens(images, x.shape[1])


def _add(name: str, equation: str, source: str, settings: Settings, **options: Any) -> None:
    def build(images: Array) -> nn.Module:
        made = make_blocks(
            len(_OPERATORS), DIM, HEADS, operator=_OPERATORS, mlp_ratio=2.0, **options
        )
        return drawn(made)

    def apply(blocks: nn.ModuleList, images: Tensor) -> Tensor:
        x, hidden = _inputs(images)
        of_heads = torch.from_numpy(hidden_pairs(x.shape[1])).repeat(len(x), 1, 1)
        masks: tuple[dict[str, Any], ...] = (
            {},
            {"key_padding_mask": hidden, "is_causal": True},
            {"attn_mask": of_heads[0]},
            {"key_padding_mask": hidden, "attn_mask": of_heads},
        )
        return joined(*(run_layers(blocks, x, Context(), **given) for given in masks))

    def solve(blocks: Any, x: Array, hidden: Array) -> tuple[Array, ...]:
        padding, of_heads = hidden.astype(bool), hidden_pairs(len(x))
        masks: tuple[dict[str, Any], ...] = (
            {},
            {"padding": padding, "is_causal": True},
            {"pairs": of_heads[0]},
            {"padding": padding, "pairs": of_heads},
        )
        return tuple(run_blocks(blocks, x, settings, **given) for given in masks)

    add(
        name, Block, source=source, equation=equation,
        build=build, apply=apply, solve=over_batch(solve, _inputs), logit_range=logit_range(apply),
        task=_cleaning(settings, options),
    )  # fmt: skip


def _cleaning(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """One block, whose skip keeps the brightness of patches, which its norm removes.

    Without a skip it is to clean points that have no brightness to lose.
    """
    skip = settings.attention_skip
    settings = replace(settings, num_heads=PATCH_HEADS if skip else 1)

    def build(dim: int) -> nn.ModuleList:
        blocks: Any = make_blocks(
            1, dim, settings.num_heads, operator="gaussian", **options
        ).double()
        read_patches(blocks[0].attention, **{} if skip else {"local": 1.3})
        for part in blocks.modules():
            if isinstance(part, LayerScale):
                nn.init.ones_(part.gamma)
        return blocks

    def linear_maps(blocks: Any) -> list[nn.Linear]:
        (block,) = blocks
        return [block.attention.out_proj] + (
            [block.feed_forward.fc2] if settings.feed_forward else []
        )

    task = cleaning_patches(
        build,
        linear_maps,
        lambda blocks, x: run_layers(blocks, x, Context()),
        lambda blocks, X: run_blocks(blocks, X, settings),
    )
    inputs = {} if skip else {"inputs": "features"}
    return task | inputs | {"logit_range": logit_range(task["apply"])}


_BOOSTING_PAPER = "Revisiting Transformers with Insights from Image Filtering"
_add("block", "SE-3", "Dosovitskiy et al. (2021)", Settings(HEADS, norm_eps=1e-3), norm_eps=1e-3)
_add(
    "block-without-skips",
    "SK-7",
    "Always Skip Attention",
    Settings(HEADS, attention_skip=False, feed_forward_skip=False, scale="layer"),
    attention_skip=False,
    feed_forward_skip=False,
    scale=LayerScale,
)
_add(
    "block-feat-scale",
    "AO-10",
    "Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
    Settings(HEADS, scale="feat"),
    scale=FeatScale,
)
_add(
    "block-boosted",
    "IF-26",
    _BOOSTING_PAPER,
    Settings(HEADS, residual="boosting"),
    residual=GeneralizedResidual,
)
_add(
    "block-generalized-residual",
    "IF-GRC",
    _BOOSTING_PAPER,
    Settings(HEADS, residual=0, feed_forward=False),
    residual=lambda: GeneralizedResidual(0),
    feed_forward=False,
)
