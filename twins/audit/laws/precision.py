"""Digits: half precision and long inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..inputs import cast, convert
from .law import HALF, Pair, network_law

if TYPE_CHECKING:
    from ..model import Model


def jostle(model: Model, inputs: Tensor, draw: int) -> Tensor:
    """Return the output with noise on weights and features, as large as rounding to bfloat16."""
    chance = torch.Generator(inputs.device).manual_seed(draw)
    other = convert(model, torch.float32)
    if inputs.is_floating_point():
        inputs = inputs * (1 + 2**-8 * torch.randn(inputs.shape, generator=chance))
    with torch.no_grad():
        for weight in other.network.parameters():
            weight.mul_(1 + 2**-8 * torch.randn(weight.shape, generator=chance))
    return other(inputs)[0]


@network_law("module", "smooth", tolerance=1.0, why=HALF)
def half_precision(model: Model, inputs: Tensor) -> Pair:
    """In bfloat16, a token moves by at most 4 times what noise of that size in the weights does.

    A choice near a tie falls the other way under some of the noise, so its tokens may move as far.
    """
    half = cast(inputs, torch.bfloat16)
    rounded = convert(model, torch.bfloat16)
    single, given = convert(rounded, torch.float32), cast(half, torch.float32)
    expected = single(given)[0]
    jostled = torch.stack([jostle(single, given, draw) for draw in range(16)])
    moved = (jostled - expected).abs().amax((0, -1))
    allowed = 4 * torch.maximum(moved, moved.median()) + 2**-4 * expected.abs().max()
    error = (rounded(half)[0].float() - expected).abs().amax(-1)
    return 1 + error / allowed, torch.ones_like(error)


@network_law("module", "cache", "smooth", growth=4)
def long_inputs(model: Model, inputs: Tensor) -> Pair:
    """Over 16 times as many tokens, float32 strays from float64 by 4 times as much at most."""
    many = inputs.repeat(1, 16, *[1] * (inputs.ndim - 2))[:, : model.longest]
    return model(many)[0], convert(model, torch.float64)(cast(many, torch.float64))[0].float()
