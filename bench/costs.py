"""Costs of a network: parameters, operations, and speed relative to another network."""

from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..unrolled.kernel_smoothing import store_positions

N_TIMED = 64  # inputs of a pass
_REPEATS = 5


def size_measures(model: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Number of trained parameters, and floating-point operations on one input.

    Fixed parameters do not count. Operations are counted by torch: two for each multiplication of
    a matrix product or convolution, also of a fixed one. Bilateral attention stores its positions.
    """
    counter = FlopCounterMode(display=False)
    # The counter cannot track expanded parameters.
    frozen = store_positions(model, inputs[:1]).requires_grad_(False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        frozen(inputs[:1])
    n_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"parameters": n_parameters, "flops": counter.get_total_flops()}


def speed_ratios(model: nn.Module, plain: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Inputs per processor second, relative to the plain network; both are timed in turns.

    ``inference`` is without gradients, with stored positions in bilateral attention; ``training``
    is forward and backward.
    """
    inputs = inputs[:N_TIMED]
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
