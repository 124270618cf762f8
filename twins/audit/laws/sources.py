"""Cross-attention: what the decoder of an encoder-decoder reads of the encoder's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..inputs import count_positions
from .generation import generate
from .law import Pair, network_law
from .tokens import in_pieces

if TYPE_CHECKING:
    from ..model import Model


def pad_source(model: Model) -> Model:
    """Return the model with padding for the last three source tokens of all rows but the first."""
    source, mask = model.source.clone(), torch.ones_like(model.source)
    source[1:, -3:] = mask[1:, -3:] = 0
    return model.reading(source, mask)


def read_alone(model: Model, inputs: Tensor) -> Tensor:
    """Return the outputs of rows one by one, with sources as long as `pad_source` leaves them."""
    shorter = model.reading(model.source[:, :-3], None)
    later = [shorter(row[None])[0] for row in inputs[1:]]
    return torch.cat([model(inputs[:1])[0], *later])


@network_law("source", "source mask")
def padded_source(model: Model, inputs: Tensor) -> Pair:
    """Before masked padding in the encoder, a row has the output that it has alone."""
    return pad_source(model)(inputs)[0], read_alone(model, inputs)


@network_law("source", "source mask", "cache")
def decoding_from_padded_source(model: Model, inputs: Tensor) -> Pair:
    """Before masked padding in the encoder, rows decode to the outputs that they have alone."""
    n, positions = inputs.shape[1], count_positions(inputs)
    found = in_pieces(pad_source(model), inputs, range(n // 2, n + 1), positions=positions)
    return found, read_alone(model, inputs)


@network_law("source", "source mask", "generate", "causal")
def generation_from_padded_source(model: Model, inputs: Tensor) -> Pair:
    """`generate` scores the tokens of a row of a padded source as the row alone is scored."""
    generated = generate(pad_source(model), inputs, 8)
    found = torch.stack(generated.logits, 1)
    return found, read_alone(model, generated.sequences[:, :-1])[:, -8:]


@network_law("source", "source mask")
def content_of_source_padding(model: Model, inputs: Tensor) -> Pair:
    """Which tokens stand under the mask of the encoder, among others or after, changes nothing."""
    outputs, n = [], model.source.shape[1]
    hidden = torch.zeros(n, dtype=torch.bool)
    hidden[n // 2 : n // 2 + 3] = hidden[-3:] = True
    mask = (~hidden).long().expand(len(model.source), -1)
    for other in (model.source.flip(1), torch.zeros_like(model.source)):
        outputs.append(model.reading(torch.where(hidden, other, model.source), mask)(inputs)[0])
    return outputs[0], outputs[1]


@network_law("source", "cache")
def sources_by_turns(model: Model, inputs: Tensor) -> Pair:
    """Texts that are decoded by turns, each from its source, have the outputs of the full pass."""
    n, positions, caches = inputs.shape[1], count_positions(inputs), [None] * len(inputs)
    outputs: list[list[Tensor]] = [[] for _ in inputs]
    for start in range(n):
        at = slice(start, start + 1)
        for i in range(len(inputs)):
            output, caches[i] = model(
                inputs[i : i + 1, at], cache=caches[i], positions=positions[i : i + 1, at]
            )
            outputs[i].append(output)
    return torch.cat([torch.cat(pieces, 1) for pieces in outputs]), model(inputs)[0]
