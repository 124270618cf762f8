"""Automatic mixed precision (autocast): how operators keep it out, and its dtype."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Return a context manager that turns autocast off on the device of `like`.

    Autocast would lower the precision of what the code computes in float32 or float64, and of
    features whose digits count, such as positions.
    """
    if autocast_dtype(like) is None:
        return nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def unlowered(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of a function: it runs where its caller is, under autocast too."""

    @wraps(backward)
    def call(ctx: Any, gradient: Tensor, *rest: Any) -> Any:
        with without_autocast(gradient):
            return backward(ctx, gradient, *rest)

    return call


def of_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, convert tensors of different dtypes to one dtype.

    It is float64 if one of them is, else autocast's, as in ``scaled_dot_product_attention``:
    normalised queries come in float32, values from a projection in autocast's dtype.
    """
    dtype, dtypes = autocast_dtype(tensors[0]), {x.dtype for x in tensors}
    if dtype is None or len(dtypes) == 1:
        return tensors
    dtype = torch.float64 if torch.float64 in dtypes else dtype
    return tuple(x.to(dtype) for x in tensors)


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast lowers to on the device of `like`, or None if it is off."""
    kind = like.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None
