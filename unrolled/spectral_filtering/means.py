"""The mean of the values that a query sees."""

import torch
from torch import Tensor

from ..attention import drop_hidden, hidden_by, map_query_blocks, without_autocast


def visible_mean(
    v: Tensor, *, mask: Tensor | None = None, is_causal: bool = False, n_queries: int | None = None
) -> Tensor:
    """Mean of the values visible to each query, without a matrix larger than the mask.

    Parameters
    ----------
    v : Tensor of shape (..., n_keys, e)
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
        As in ``scaled_dot_product_attention``; a finite bias hides nothing.
    is_causal : bool, default=False
        Query i sees the keys 0 to ``n_keys - n_queries + i``; with a mask, both apply.
    n_queries : int, optional
        Number of queries, at most that of keys, which is the default; only a causal mask needs it.

    Returns
    -------
    Tensor of shape (..., 1 or n_queries, e)
        Zeros where no value is visible. Sums are taken in float32 at least.

    References
    ----------
    EQUATIONS FF-1, FF-1c.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.spectral_filtering import visible_mean
    >>> visible_mean(torch.tensor([[1.0], [3.0], [8.0]]), is_causal=True).mT
    tensor([[1., 2., 4.]])
    """
    n_keys = v.shape[-2]
    offset = 0 if n_queries is None else n_keys - n_queries
    if mask is None:
        return _take_running_mean(v, None)[..., offset:, :] if is_causal else _take_mean(v)
    visible = ~hidden_by(mask)
    visible = visible.expand(*visible.shape[:-1], n_keys)
    v = drop_hidden(v, visible)
    if visible.shape[-2] > 1:
        visible = visible.tril(offset) if is_causal else visible
        return map_query_blocks(lambda seen, start: _take_mean(v, seen), visible)
    return _take_running_mean(v, visible)[..., offset:, :] if is_causal else _take_mean(v, visible)


def _take_mean(v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return the mean of the visible values, or of all; computed in float32 at least."""
    wide = torch.promote_types(v.dtype, torch.float32)
    if visible is None:
        mean = v.sum(dim=-2, keepdim=True, dtype=wide) / max(v.shape[-2], 1)
    else:
        with without_autocast(v):
            sums = visible.to(wide) @ v.to(wide)
        mean = sums / visible.sum(dim=-1, keepdim=True).clamp(min=1)
    return mean.to(v.dtype)


def _take_running_mean(v: Tensor, visible: Tensor | None) -> Tensor:
    """Return the means of the visible values 0 to i, one in row i."""
    wide = torch.promote_types(v.dtype, torch.float32)
    n_keys = v.shape[-2]
    if visible is None:
        counts = torch.arange(1, n_keys + 1, device=v.device, dtype=wide)[:, None]
    else:
        v = v * visible.mT
        counts = visible.mT.cumsum(dim=-2).clamp(min=1)
    return (v.cumsum(dim=-2, dtype=wide) / counts).to(v.dtype)
