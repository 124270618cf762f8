"""Layer parameters as the plain numbers that solvers take."""

import numpy as np
from torch import nn

from ..attention import Positive


def head_value(parameter: Positive, head: int) -> float:
    """The parameter's value for one head, as the layer itself computes it."""
    values = parameter().detach().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def iteration_values(parameters: nn.ModuleList, n_iter: int) -> np.ndarray:
    """Values for each of `n_iter` iterations; the last parameter serves all that follow."""
    values = [float(parameter().detach().double()) for parameter in parameters]
    return np.array([values[min(t, len(values) - 1)] for t in range(n_iter)])
