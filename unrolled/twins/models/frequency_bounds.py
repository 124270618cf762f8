"""Twin: high frequencies after a block that nearly reaches the bound of its weights."""

from typing import Any

import torch
from torch import Tensor

from ...diagnostics import high_frequency_bounds
from ...kernel_smoothing import Gaussian
from ...models import Block
from ..inequalities import Inequalities
from ..registry import Array, Twin, register
from ..relations import Bound
from .block_pass import Settings, run_block
from .shell_pass import Shared
from .small_models import over_batch

_DIM = 4


def _build(images: Array) -> Block:
    """Attention that hardly mixes, and GELU where it is the identity: weights are identities."""
    block = Block(_DIM, 1, operator=Gaussian(0.1), mlp_ratio=1.0).double()
    network: Any = block.feed_forward
    with torch.no_grad():
        block.attention.in_proj_weight.copy_(torch.eye(_DIM).repeat(3, 1))
        block.attention.out_proj.weight.copy_(torch.eye(_DIM))
        for layer in (network.fc1, network.fc2):
            layer.weight.copy_(torch.eye(_DIM))
        network.fc1.bias.fill_(8.0)
    return block


def _tokens(images: Tensor) -> Tensor:
    return images.reshape(len(images), -1, _DIM)


def _bound(block: Block, images: Tensor) -> Inequalities:
    sides = Inequalities()
    for side in high_frequency_bounds(block, _tokens(images)):
        sides.attained(side.measured.numpy(), side.sharp.numpy(), share=0.5)
    return sides


register(
    Twin(
        name="block-high-frequencies",
        family="models",
        relation=Bound(),
        equation="AO-P6",
        source="Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis",
        layer=Block,
        build=_build,
        apply=lambda block, images: block(_tokens(images)).flatten(1),
        solve=over_batch(
            lambda block, x: (run_block(block, x, Shared(), Settings(num_heads=1))[0],),
            lambda images: (_tokens(images),),
        ),
        inputs="model",
        evidence="bound",
        covers=lambda layer: False,  # `high_frequency_bounds` is for a user's own blocks
        bound=_bound,
    )
)
