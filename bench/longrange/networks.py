"""Networks of sequences by plain words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...unrolled.diagnostics import token_similarity
from ...unrolled.models import SequenceClassifier
from ..parts import NetworkOfParts
from ..vision.classification.data import Images

PADDING = 0
_N_DEPTH = 64  # sequences of which tokens are measured


class SequenceNetwork(NetworkOfParts):
    """A `SequenceClassifier` of symbols, 0 being padding, or of levels, which it standardises.

    Parameters
    ----------
    options : dict
        As of `NetworkOfParts`.
    mean, std : float
        Of levels.
    """

    kind = SequenceClassifier

    def __init__(self, options: Mapping[str, Any], mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__(options)
        self.mean, self.std = mean, std

    def arguments(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the network takes: tokens, and a mask of padding."""
        if tokens.is_floating_point():
            return (tokens - self.mean) / self.std, None
        return tokens, tokens == PADDING

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores of sequences (batch, length)."""
        return self.network(*self.arguments(tokens))


@torch.no_grad()
def mean_cosine(model: SequenceNetwork, sequences: Images) -> float:
    """Of pairs of tokens of a sequence, behind the last block and without padding."""
    tokens, hidden = model.arguments(sequences.levels[:_N_DEPTH])
    last = model.network.intermediates(tokens, hidden)[-1].double()
    if hidden is None:
        return float(token_similarity(last).mean())
    shown = zip(last, ~hidden, strict=True)
    return float(torch.stack([token_similarity(x[own]) for x, own in shown]).mean())
