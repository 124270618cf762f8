"""What one call gives, or calls on pieces: whatever its batch, its length, and the tokens after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import EXACT, Pair, network_law

if TYPE_CHECKING:
    from ..model import Model


@network_law(seeded=False)
def determinism(model: Model, inputs: Tensor) -> Pair:
    """Two calls in eval mode give the same output."""
    return model(inputs)[0], model(inputs)[0]


@network_law(tolerance=0.0, why=EXACT)
def arguments(model: Model, inputs: Tensor) -> Pair:
    """The caller's inputs stay as they were."""
    given = inputs.clone()
    model(given)
    return given, inputs


@network_law()
def rows_of_a_batch(model: Model, inputs: Tensor) -> Pair:
    """A row of a batch has the output that it has alone."""
    alone = [model(row[None])[0] for row in inputs]
    return model(inputs)[0], torch.cat(alone)


@network_law("causal", cases=range(12))
def later_tokens(model: Model, inputs: Tensor, draw: int) -> Pair:
    """Later tokens change nothing, whatever they are: others, and weaker or stronger features."""
    cut = inputs.shape[1] * (draw // 3 + 1) // 5
    chance = torch.Generator(inputs.device).manual_seed(draw)
    tokens = inputs.flatten(0, 1)
    later = tokens[torch.randint(len(tokens), inputs[:, cut:].shape[:2], generator=chance)]
    later = later * 4.0 ** (draw % 3 - 1) if later.is_floating_point() else later
    changed = torch.cat([inputs[:, :cut], later], 1)
    return model(changed)[0][:, :cut], model(inputs)[0][:, :cut]


@network_law("causal", cases=(1, 2, 3, 5, 8, 10, -4, -1))
def shorter_inputs(model: Model, inputs: Tensor, length: int) -> Pair:
    """The first tokens alone have the output that they have in the whole, whatever the length."""
    return model(inputs[:, :length])[0], model(inputs)[0][:, :length]


def in_pieces(
    model: Model,
    inputs: Tensor,
    ends: Sequence[int],
    *,
    positions: Tensor | None = None,
    mask: Tensor | None = None,
    cache: Any = None,
) -> Tensor:
    """Return the outputs of pieces that end at `ends`, each run after the cache of the last."""
    outputs = []
    for start, end in pairwise([0, *ends]):
        first = start if model.mask_of_call else 0
        output, cache = model(
            inputs[:, start:end],
            cache=cache,
            positions=None if positions is None else positions[:, start:end],
            mask=None if mask is None else mask[:, first:end],
        )
        outputs.append(output)
    return torch.cat(outputs, 1)
