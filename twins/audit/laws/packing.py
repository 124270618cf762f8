"""Several texts in one row, told apart by positions that start anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..inputs import restart, withhold_cache
from .law import Pair, network_law

if TYPE_CHECKING:
    from ..model import Model


@network_law("positions that part texts", cases=((9,), (4, 10), (1, 2)))
def packed_texts(model: Model, inputs: Tensor, starts: Sequence[int]) -> Pair:
    """Where positions start anew in a row, as in packed texts, each has the output it has alone."""
    single, positions = withhold_cache(model), restart(inputs, starts)
    texts = [slice(start, end) for start, end in pairwise([0, *starts, inputs.shape[1]])]
    alone = [single(inputs[:, text], positions=positions[:, text])[0] for text in texts]
    return single(inputs, positions=positions)[0], torch.cat(alone, 1)
