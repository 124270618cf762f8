"""Layer parameters as the plain numbers that solvers take."""

import numpy as np
from torch import nn

from ..attention import Positive
from ..sparse_coding import at_iteration


def head_value(parameter: Positive | nn.ModuleList, head: int, t: int = 0) -> float:
    """The parameter's value for one head (and iteration), as the layer itself computes it."""
    values = at_iteration(parameter, t).detach().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def iteration_values(parameters: nn.ModuleList, n_iter: int) -> np.ndarray:
    """Values for each of `n_iter` iterations; the last parameter serves all that follow."""
    return np.array([head_value(parameters, 0, t) for t in range(n_iter)])
