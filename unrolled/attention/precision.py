"""Automatic mixed precision (autocast): how operators keep it out, and its dtype."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """A context without autocast on the device of `like`.

    Inside it dtypes are those that the code states. Autocast would lower what is computed in
    float32 or float64, and features whose digits count, such as positions.
    """
    if autocast_dtype(like) is None:
        return nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def of_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors; under autocast, in its dtype if float32 and narrower tensors are mixed.

    ``scaled_dot_product_attention`` does the same there: normalised queries come in float32, values
    from a projection do not. Tensors in float64 stay so, and the others follow them.
    """
    dtype, dtypes = autocast_dtype(tensors[0]), {x.dtype for x in tensors}
    if dtype is None or len(dtypes) == 1:
        return tensors
    dtype = torch.float64 if torch.float64 in dtypes else dtype
    return tuple(x.to(dtype) for x in tensors)


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """The dtype that autocast lowers to on the device of `like`; None where it is off."""
    kind = like.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None
