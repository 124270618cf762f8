"""Positive parameters that differ from iteration to iteration."""

from typing import Any

from torch import Tensor, nn

from ..attention import Positive


def positive_per_iteration(initial: float, n_iter: int, name: str, **kwargs: Any) -> nn.ModuleList:
    """One learnable positive number for each of `n_iter` iterations, equal at first."""
    values = (Positive(initial, name=name, learnable=True, **kwargs) for _ in range(n_iter))
    return nn.ModuleList(values)


def at_iteration(values: nn.ModuleList | Positive, t: int) -> Tensor:
    """The value for iteration t; later ones repeat the last, a single one serves all."""
    chosen = values if isinstance(values, Positive) else values[min(t, len(values) - 1)]
    value: Tensor = chosen()
    return value
