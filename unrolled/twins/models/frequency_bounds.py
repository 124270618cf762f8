"""Twin: high frequencies after a block that nearly reaches the bound of its weights."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import split_frequencies
from ...diagnostics import high_frequency_bounds
from ...diagnostics.block_bounds import GELU_SLOPE
from ...kernel_smoothing import Gaussian
from ...models import Block
from ..heads import Array, as_array
from ..pairs import Inputs
from ..registry import Twin, register
from ..relations import Bound, Identity, Inequalities
from .block_pass import Settings, run_block
from .fitted import cleaning_patches, read_patches
from .shell_pass import Shared
from .small_models import grouped, over_batch

_DIM = 4


def _build(images: Array) -> Block:
    """Attention that hardly mixes, and GELU where its slope is 1: weights are identities."""
    block = Block(_DIM, 1, operator=Gaussian(0.1), mlp_ratio=1.0).double()
    network: Any = block.feed_forward
    with torch.no_grad():
        block.attention.in_proj_weight.copy_(torch.eye(_DIM).repeat(3, 1))
        block.attention.out_proj.weight.copy_(torch.eye(_DIM))
        for layer in (network.fc1, network.fc2):
            layer.weight.copy_(torch.eye(_DIM))
        network.fc1.bias.fill_(16.0)
    return block


def _build_wide(dim: int) -> Block:
    block = Block(dim, 1, operator=Gaussian(0.5), mlp_ratio=1.0).double()
    read_patches(block.attention)
    network: Any = block.feed_forward
    with torch.no_grad():
        network.fc1.weight.copy_(torch.eye(dim))
    return block


def _tokens(images: Tensor) -> Tensor:
    return images.reshape(len(images), -1, _DIM)


def _bound(block: Block, images: Tensor) -> Inequalities:
    """Of each part, and of the block's own output.

    Two opposite tokens that the norm maps to themselves, too far apart to be mixed, reach the
    bound: all branches are parallel to them, and all that is missing is GELU's slope.
    """
    sides, tokens = Inequalities(), _tokens(images)
    parts = high_frequency_bounds(block, tokens)
    for side in parts:
        sides.at_most(side.measured.numpy(), side.sharp.numpy())
        sides.at_most(side.sharp.numpy(), side.bound.numpy())
    high = [np.linalg.norm(split_frequencies(x)[1]) for x in as_array(block(tokens))]
    sides.at_most(high, parts[-1].sharp.numpy())
    token = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=images.dtype)
    pair = torch.stack([token, -token])
    reached = {side.part: side.sharp.numpy() for side in high_frequency_bounds(block, pair)}
    along = (as_array(block(pair)) * as_array(pair)).sum() / np.linalg.norm(as_array(pair))
    sides.attained(along, reached["attention_skip"] + reached["feed_forward"] / GELU_SLOPE)
    return sides


register(
    Twin(
        name="block-high-frequencies",
        family="models",
        relation=Bound(sides=_bound),
        equation="AO-P6",
        source="Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
        layer=Block,
        build=_build,
        solve=over_batch(
            lambda block, x: (run_block(block, x, Shared(), Settings(num_heads=1))[0],),
            lambda images: (_tokens(images),),
        ),
        inputs=Inputs("model", apply=lambda block, images: block(_tokens(images)).flatten(1)),
        covers=lambda layer: False,  # `high_frequency_bounds` is for a user's own blocks
        task=grouped(
            cleaning_patches(
                _build_wide,
                lambda block: [block.attention.out_proj, block.feed_forward.fc2],
                lambda block, x: block(x),
                lambda block, X: run_block(block, X, Shared(), Settings(num_heads=1))[0],
            )
        )
        | {"relation": Identity()},
    )
)
