"""What a network costs: parameters, operations, and its speed beside another one's."""

from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..unrolled.kernel_smoothing import store_positions

_N_TIMED = 64  # inputs of a pass
_REPEATS = 5


def size_measures(model: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Trained parameters, and operations of one input: two for each product of multiplication.

    Parameters that a row holds fixed do not count. Operations are those that torch counts: of
    matrix products and convolutions, fixed ones too. Bilateral attention stores its positions.
    """
    counter = FlopCounterMode(display=False)
    # The counter cannot track expanded parameters.
    frozen = store_positions(model, inputs[:1]).requires_grad_(False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        frozen(inputs[:1])
    n_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"parameters": n_parameters, "flops": counter.get_total_flops()}


def speed_ratios(model: nn.Module, plain: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Inputs a processor second, over those of the plain network, taken in turns.

    ``inference`` is without gradients, with stored positions in bilateral attention; ``training``
    is forward and backward.
    """
    inputs = inputs[:_N_TIMED]
    served = {"inference": store_positions(model, inputs[:1]), "training": model}
    seconds: dict[str, list[float]] = {"inference": [], "training": []}
    for _ in range(1 + _REPEATS):
        for kind, found in seconds.items():
            found.append(_time_pass(plain, inputs, kind) / _time_pass(served[kind], inputs, kind))
    return {kind: float(np.median(found[1:])) for kind, found in seconds.items()}


def _time_pass(model: nn.Module, inputs: Tensor, kind: str) -> float:
    start = process_time()
    with torch.set_grad_enabled(kind == "training"):
        out: Any = model(inputs)
        if kind == "training":
            out.square().mean().backward()
    return process_time() - start
