"""Several texts in one row, told apart by positions that start anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .law import Pair, network_law

if TYPE_CHECKING:
    from ..model import Model


def restart(inputs: Tensor, starts: Sequence[int]) -> Tensor:
    """Positions that count from 0 in each row, and anew from each of these tokens."""
    lengths = [end - start for start, end in pairwise([0, *starts, inputs.shape[1]])]
    return torch.cat([torch.arange(n) for n in lengths]).expand(len(inputs), -1)


def withhold_cache(model: Model) -> Model:
    """The model in calls that make no cache, where it can be told so."""
    if "use_cache" not in model.asks:
        return model

    def call(*ids: Tensor, **given: Any) -> Any:
        return model.network(*ids, **(given | {"use_cache": False}))

    return model.of(call)


@network_law("positions that part texts", cases=((9,), (4, 10), (1, 2)))
def packed_texts(model: Model, inputs: Tensor, starts: Sequence[int]) -> Pair:
    """Where positions start anew in a row, as in packed texts, each has the output it has alone."""
    single, positions = withhold_cache(model), restart(inputs, starts)
    texts = [slice(start, end) for start, end in pairwise([0, *starts, inputs.shape[1]])]
    alone = [single(inputs[:, text], positions=positions[:, text])[0] for text in texts]
    return single(inputs, positions=positions)[0], torch.cat(alone, 1)
