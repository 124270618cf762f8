"""Masks of a block of queries, for operators that build their matrix block by block."""

import torch
from torch import Tensor

from ..attention import combine_masks, hidden_by, masked_softmax, query_offset


def block_mask(
    mask: Tensor | None, is_causal: bool, start: int, rows: Tensor, q: Tensor, k: Tensor
) -> Tensor | None:
    """The mask of the queries from `start` on, as many as there are `rows`, the causal one in it.

    Parameters
    ----------
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
    is_causal : bool
    start : int
        Index of the first query of the block.
    rows : Tensor of shape (..., n_block, d)
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
        All queries and keys.

    Returns
    -------
    Tensor broadcastable to (..., n_block, n_keys), or None if all is visible
    """
    stop = start + rows.shape[-2]
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., start:stop, :]
    if not is_causal:
        return mask
    offset = query_offset(q, k)
    queries = torch.arange(start + offset, stop + offset, device=rows.device)
    past = queries[:, None] >= torch.arange(k.shape[-2], device=rows.device)
    return combine_masks(mask, past)


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with the mask applied: -inf, without a gradient, where it hides."""
    if mask is None:
        return logits
    if mask.dtype != torch.bool:
        logits = logits + mask
    return logits.masked_fill(hidden_by(mask), -torch.inf)


def visible_products(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    """``q k^T``, zero where a key is not visible."""
    products = q @ k.mT
    return products if visible is None else torch.where(visible, products, 0)


def block_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; zeros, with zero gradients, where there are none."""
    return masked_softmax(masked_logits(logits, mask), None)
