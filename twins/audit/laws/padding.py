"""Tokens that a mask hides: in one call, and in decoding after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..inputs import hide, read_texts_alone
from .law import NotApplicable, Pair, network_law
from .tokens import in_pieces

if TYPE_CHECKING:
    from ..model import Model


def pad_left(inputs: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs behind n tokens of padding (id 0, or features), mask and positions."""
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (n, 0))
    padding = inputs[:, -n:] if inputs.is_floating_point() else torch.zeros_like(inputs[:, :n])
    return torch.cat([padding, inputs], 1), mask, (mask.cumsum(1) - 1).clamp(min=0)


@network_law("mask", cases=(None, 1))
def left_padding(model: Model, inputs: Tensor, n_rows: int | None) -> Pair:
    """Behind masked padding, tokens have the output that they have alone, in batches and not."""
    inputs = inputs[:n_rows]
    padded, mask, positions = pad_left(inputs, 3)
    return model(padded, mask=mask, positions=positions)[0][:, 3:], model(inputs)[0]


@network_law("mask")
def right_padding(model: Model, inputs: Tensor) -> Pair:
    """Before masked padding, tokens have the output that they have alone."""
    padding = torch.zeros_like(inputs[:, :3])
    mask = F.pad(torch.ones(inputs.shape[:2], dtype=torch.long), (0, 3))
    output = model(torch.cat([inputs, padding], 1), mask=mask)[0]
    return output[:, :-3], model(inputs)[0]


def paddings_that_differ(model: Model, inputs: Tensor, start: int, flipped: bool) -> Pair:
    """Return outputs of rows of which all but one have four tokens of padding, and without it."""
    padded, mask, positions = hide(inputs, start, 4)
    given = [x.flip(0) if flipped else x for x in (padded, mask, positions)]
    output = model(given[0], mask=given[1], positions=given[2])[0]
    output = output.flip(0) if flipped else output
    return output[mask == 1][None], read_texts_alone(model, inputs, 4)


@network_law("mask", cases=(False, True))
def right_paddings_that_differ(model: Model, inputs: Tensor, flipped: bool) -> Pair:
    """Rows of a batch, the first or the last alone without padding, have their own outputs."""
    return paddings_that_differ(model, inputs, inputs.shape[1] - 4, flipped)


@network_law("mask", "positions", cases=(False, True))
def left_paddings_that_differ(model: Model, inputs: Tensor, flipped: bool) -> Pair:
    """Behind padding, rows of a batch have the outputs of their own masks and positions."""
    return paddings_that_differ(model, inputs, 0, flipped)


@network_law("mask")
def content_of_padding(model: Model, inputs: Tensor) -> Pair:
    """Which tokens stand under the mask, before the others or among them, changes nothing."""
    n, half, outputs = inputs.shape[1], inputs.shape[1] // 2, []
    seen = torch.tensor([0] * 3 + [1] * half + [0] * 3 + [1] * (n - half))
    mask = seen.expand(len(inputs), -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for hidden in (inputs[:, -3:], torch.zeros_like(inputs[:, -3:])):
        padded = torch.cat([hidden, inputs[:, :half], hidden, inputs[:, half:]], 1)
        outputs.append(model(padded, mask=mask, positions=positions)[0][:, seen == 1])
    return outputs[0], outputs[1]


def hidden_in_pieces(model: Model, inputs: Tensor, start: int, ends: Sequence[int]) -> Pair:
    """Return outputs in pieces of rows with four tokens of padding, and of rows without any."""
    padded, mask, positions = hide(inputs, start, 4)
    found = in_pieces(model, padded, ends, positions=positions, mask=mask)
    return found[mask == 1][None], read_texts_alone(model, inputs, 4)


@network_law("mask", "cache")
def decoding_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """Rows behind paddings that differ decode to the outputs that they have alone."""
    n = inputs.shape[1]
    return hidden_in_pieces(model, inputs, 0, range(n // 2, n + 1))


@network_law("mask", "cache")
def pieces_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """In three pieces, rows behind paddings that differ have the outputs that they have alone."""
    n = inputs.shape[1]
    return hidden_in_pieces(model, inputs, 0, [n // 3, n // 3 + n // 2, n])


@network_law("mask", "positions", "cache", "gaps")
def decoding_of_right_padded(model: Model, inputs: Tensor) -> Pair:
    """Rows that are padded on the right and then decoded have the outputs that they have alone."""
    n, half = inputs.shape[1], inputs.shape[1] // 2
    return hidden_in_pieces(model, inputs, half - 4, range(half, n + 1))


@network_law("mask", "cache", cases=(0, 1, 2))
def padding_in_later_pieces(model: Model, inputs: Tensor, place: int) -> Pair:
    """Where padding begins in a later piece, the other tokens have the outputs of one call."""
    n, third = inputs.shape[1], inputs.shape[1] // 3
    if place == 2 and "config" in model.offers:
        raise NotApplicable("transformers takes no single token for padding")
    start = (third, 2 * third - 3, 2 * third)[place]
    padded, mask, positions = hide(inputs, start, 3)
    ends = [third, 2 * third, 2 * third + 1, n]
    found = in_pieces(model, padded, ends, positions=positions, mask=mask)
    return found[mask == 1][None], model(padded, mask=mask, positions=positions)[0][mask == 1][None]
