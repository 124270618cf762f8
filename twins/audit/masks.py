"""Masks of networks that run in float64, which the kernel of PyTorch may read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_MASKS = ("attn_mask", "key_padding_mask")
_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}


def masks_read_rightly(network: Any) -> AbstractContextManager[Any]:
    """A context in which attention in float64 takes masks of other dtypes as what they are.

    On the CPU ``scaled_dot_product_attention`` takes the bytes of a float32 mask for float64. A
    network in float64 may hold such a mask as a plain attribute or make it in each call, and is not
    to blame. Networks in other dtypes run as they are.
    """
    weights = network.parameters() if isinstance(network, nn.Module) else ()
    return _CastMasks() if any(p.dtype == torch.float64 for p in weights) else nullcontext()


class _CastMasks(TorchFunctionMode):
    """Turns additive masks of attention into the dtype of the queries."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _ATTENTION:
            return func(*args, **(kwargs or {}))
        keywords = dict(kwargs or {})
        query = args[0] if args else keywords["query"]
        for name in _MASKS:
            keywords |= {name: _cast(keywords[name], query)} if name in keywords else {}
        if func is F.scaled_dot_product_attention:
            args = (*args[:3], *(_cast(x, query) for x in args[3:4]), *args[4:])
        return func(*args, **keywords)


def _cast(mask: Any, query: Tensor) -> Any:
    """Return a floating-point mask in the dtype of the query; other masks as they are."""
    floating = isinstance(mask, Tensor) and mask.is_floating_point()
    return mask.to(query.dtype) if floating else mask
