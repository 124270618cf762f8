"""Checks of the tensors and numbers that solved layers take."""

from typing import Any

import torch
from torch import Tensor


def check_rows(x: Any, name: str) -> Tensor:
    """Return x in float64, at least two-dimensional and finite."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        raise ValueError(
            f"{name}: must be a floating-point tensor of shape (..., n, n_features), got {x!r:.60}"
        )
    return check_finite(x.double(), name)


def check_numbers(
    value: Tensor | float, name: str, X: Tensor, *, least: float | None = None
) -> Tensor:
    """Return a column of numbers for the rows of X, at least `least`, or positive, in float64."""
    numbers = torch.as_tensor(value, dtype=torch.float64, device=X.device)
    numbers = numbers.reshape(1, 1) if numbers.ndim == 0 else numbers
    if bool((numbers <= 0 if least is None else numbers < least).any()):
        allowed = "> 0" if least is None else f">= {least}"
        raise ValueError(f"{name}: must be {allowed}, got {value!r:.60}")
    return check_finite(numbers, name)


def check_finite(x: Tensor, name: str) -> Tensor:
    """Return x; raise a ValueError if it holds NaN or infinity."""
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name}: contains NaN or infinity")
    return x


def find_batch(**parts: Tensor | None) -> torch.Size:
    """Return the common leading axes of matrices."""
    shapes = {name: x.shape[:-2] for name, x in parts.items() if x is not None}
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        axes = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(f"signals: leading axes must broadcast, got {axes}") from error


def expand(x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """Expand x to a shape; raise a ValueError if it does not broadcast to it."""
    try:
        return x.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name}: must be broadcastable to {tuple(shape)}, got {tuple(x.shape)}"
        ) from error
