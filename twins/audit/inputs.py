"""Inputs and networks as laws give them: packed, padded, in another dtype; what differs.

Scripts that show a broken law contain the source of what it calls here, which uses torch alone.
`difference`, which judges, is in no script.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..laws import largest_difference
from ..laws.subject import as_array


def count_positions(inputs: Tensor) -> Tensor:
    """Return the positions 0 to n - 1 for each row."""
    return torch.arange(inputs.shape[1]).expand(len(inputs), -1)


def restart(inputs: Tensor, starts: Sequence[int]) -> Tensor:
    """Return positions that count from 0 in each row, and anew from each of these tokens."""
    lengths = [end - start for start, end in pairwise([0, *starts, inputs.shape[1]])]
    return torch.cat([torch.arange(n) for n in lengths]).expand(len(inputs), -1)


def fill_no_chunk(inputs: Tensor) -> Tensor:
    """Repeat the inputs to 67 tokens, which are no whole number of chunks.

    Features are mixed with those of the token before, each time by more: equal tokens would tie,
    and where they tie a network that chooses has no slope.
    """
    n_rounds, rounds = 67 // inputs.shape[1] + 1, [inputs]
    for i in range(1, n_rounds):
        share = i / (2 * n_rounds) if inputs.is_floating_point() else 0
        rounds.append((1 - share) * inputs + share * inputs.roll(1, 1))
    return torch.cat(rounds, 1)[:, :67]


def withhold_cache(model: Any) -> Any:
    """Return the model, in calls that make no cache if it can be told so."""
    if "use_cache" not in model.asks:
        return model

    def call(*ids: Tensor, **given: Any) -> Any:
        return model.network(*ids, **(given | {"use_cache": False}))

    return model.of(call)


def hide(inputs: Tensor, start: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Put n tokens of padding at `start` in all rows but the first; return also mask and positions.

    The last n tokens of these rows are left out, so that all rows have the same length.
    """
    padding = inputs[1:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[1:, :n])
    later = torch.cat([inputs[1:, :start], padding, inputs[1:, start:-n]], 1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long)
    mask[1:, start : start + n] = 0
    return torch.cat([inputs[:1], later]), mask, (mask.cumsum(1) - 1).clamp(min=0)


def read_texts_alone(model: Any, inputs: Tensor, n: int) -> Tensor:
    """Return the outputs of the first row, and of the others without their last n tokens."""
    outputs = model(inputs[:1])[0][0], model(inputs[1:, :-n])[0].flatten(0, 1)
    return torch.cat(outputs)[None]


def convert(model: Any, dtype: torch.dtype) -> Any:
    """Return the model with a copy of the network in another dtype."""
    other = model.of(copy.deepcopy(model.network).to(dtype))
    return other if model.source is None else other.reading(cast(model.source, dtype), None)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs in another dtype; ids stay as they are."""
    return x.to(dtype) if x.is_floating_point() else x


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest expected entry; of ids, how many differ."""
    if found.shape != expected.shape:
        return float("inf")
    if not expected.is_floating_point():
        return (found != expected).double().mean().item()
    error = largest_difference(as_array(found), as_array(expected))
    return error if error == error else float("inf")
