"""Automatic mixed precision (autocast): how operators keep it out, and its dtype."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_T = TypeVar("_T")


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Return a context manager that turns autocast off on the device of `like`.

    Autocast would lower the precision of what the code computes in float32 or float64, and of
    features whose digits count, such as positions.
    """
    if autocast_dtype(like) is None:
        return nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def unlowered(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function, or a backward pass: it runs without autocast on its tensors' device."""

    @wraps(function)
    def call(*args: _P.args, **given: _P.kwargs) -> _T:
        tensors = (x for x in (*args, *given.values()) if isinstance(x, Tensor))
        like = next(tensors, None)
        with nullcontext() if like is None else without_autocast(like):
            return function(*args, **given)

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
