"""Attention without the N x N matrix: the fused kernel, and blocks of queries."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..block_size import block_size
from .blocked import blocked_attention, blocks_serve
from .derivatives import once_in, recomputed
from .masks import cast_mask, causal_mask, combine_masks
from .tracing import has_static_value, is_transformed

_QUERY_BLOCK = 256
_NUMBERS_ON_GPU = 2**26
_SMALL_MATRIX = 256**2
_SECOND = (
    "PyTorch's fused kernel of scaled_dot_product_attention has no second derivative: run the "
    "forward pass within torch.nn.attention.sdpa_kernel(SDPBackend.MATH), which has one"
)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``scaled_dot_product_attention`` in a form that reaches its fused kernel.

    PyTorch silently builds the N x N matrix for unequal widths of queries and values, inputs or
    masks of three dimensions, and features that do not lie side by side in memory. This function
    pads widths with zeros, adds dimensions and copies such features. Zeros change no dot product,
    but cost as much as numbers. Without mask on the CPU, widths far apart therefore take a faster
    way: up to 256 x 256 pairs the explicit matrix, and for more pairs, where values are narrower
    than queries, blocks of queries.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
    is_causal : bool, default=False
        Query i sees the keys 0 to ``n_keys - n_queries + i``; with a mask, both apply.
    scale : float, optional
        None is ``d ** -0.5``.

    Returns
    -------
    Tensor of shape (..., n_queries, e)
    """
    if is_causal and (mask is not None or q.shape[-2] != k.shape[-2]):
        # The kernel's own causal mask would take fewer queries than keys for the first tokens.
        sees_all = mask is None and q.shape[-2] == 1
        mask = None if sees_all else combine_masks(mask, causal_mask(q, k))
        is_causal = False
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if mask is None and not is_causal and _padding_is_slower(q, k, v):
        if q.shape[-2] * k.shape[-2] <= block_size(_SMALL_MATRIX):
            return torch.softmax((scale * q) @ k.mT, dim=-1) @ v
        if q.shape[-1] > v.shape[-1]:
            return blocked_attention(scale * q, k, v)
    width, n_values = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    n_missing_axes = max(0, 4 - max(q.ndim, v.ndim))
    if mask is not None:
        mask = cast_mask(mask, q)
        mask = mask[(None,) * (4 - mask.ndim)] if mask.ndim > 2 else mask
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    q, k, v = (_make_contiguous(x)[(None,) * n_missing_axes] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    _name_the_way_out(out)
    return out[(0,) * n_missing_axes][..., :n_values]


def _name_the_way_out(out: Tensor) -> None:
    """Register a hook: a second derivative of the kernel raises an error with the remedy."""
    node = None if torch.compiler.is_compiling() or is_transformed() else out.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_refuse_second)


def _refuse_second(gradients: tuple[Tensor | None, ...], _: Any) -> Any:
    if not torch.is_grad_enabled():
        return None
    return tuple(g if g is None else once_in(g.detach(), _SECOND, g) for g in gradients)


def _make_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _padding_is_slower(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether padding to equal widths costs more than not using the fused kernel (measured)."""
    if not blocks_serve(q) or q.dtype.itemsize < 4 or torch.is_autocast_enabled("cpu"):
        return False
    narrow, wide = sorted((q.shape[-1], v.shape[-1]))
    same_batch = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    return same_batch and wide >= 32 and 2 * wide >= 3 * narrow


def map_query_blocks(
    function: Callable[[Tensor, int], Tensor], q: Tensor, *, numbers: int | None = None
) -> Tensor:
    """Apply ``function(q_block, start)`` to blocks of queries and concatenate the results.

    Blocks have 256 queries. A GPU would wait for Python between them: there they have more, up to
    2**26 numbers, of which a query takes `numbers`, by default one for each head and query.

    Where gradients are needed and there is more than one block, each is recomputed in the backward
    pass, so that memory stays O(block * n_keys). A program compiled or exported for any number of
    queries takes them as one block, as it would otherwise fix the number of blocks.
    """
    n, size = q.shape[-2], _QUERY_BLOCK
    if not has_static_value(n):
        return function(q, 0)
    if q.device.type != "cpu":
        size = max(size, _NUMBERS_ON_GPU // (numbers or math.prod(q.shape[:-1])))
    size = block_size(size)
    if n <= size:
        return function(q, 0)
    blocks = [recomputed(function, q[..., i : i + size, :], i) for i in range(0, n, size)]
    return torch.cat(blocks, dim=-2)
