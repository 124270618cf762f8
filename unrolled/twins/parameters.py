"""Layer parameters as the plain numbers that solvers take."""

from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ..attention import Positive


def head_value(parameter: Positive | nn.ModuleList, head: int, t: int = 0) -> float:
    """The parameter's value for one head (and iteration), rounded as the layer rounds it.

    Of iterations, later ones repeat the last. The layer's own evaluation is not called.
    """
    if not isinstance(parameter, Positive):
        parameter = cast(Positive, parameter[min(t, len(parameter) - 1)])
    if parameter.log is None:
        return parameter.initial
    values = parameter.log.detach().exp().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def iteration_values(parameters: nn.ModuleList, n_iter: int) -> np.ndarray:
    """Values for each of `n_iter` iterations; the last parameter serves all that follow."""
    return np.array([head_value(parameters, 0, t) for t in range(n_iter)])


def moved(layer: Any) -> Any:
    """The layer with its parameters off their initial values, by another amount in each head."""
    with torch.no_grad():
        for parameter in layer.parameters():
            shift = torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype)
            parameter += shift.reshape(parameter.shape) + 0.05
    return layer
