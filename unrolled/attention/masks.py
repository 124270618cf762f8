"""Masks of the polarity of ``scaled_dot_product_attention``: True may attend."""

import torch
from torch import Tensor

from .tracing import has_no_values


def query_offset(q: Tensor, k: Tensor) -> int:
    """Index of the first query among the tokens, of which the queries are the last.

    Query i is token ``n_keys - n_queries + i``, for causal masks, positions and distances alike, so
    that a step of decoding with a cache of keys is the last token.

    Raises
    ------
    ValueError
        If there are more queries than keys.
    """
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    if n_queries > n_keys:
        raise ValueError(
            "q: causal masks and positions need at most as many queries as keys, got "
            f"{n_queries} and {n_keys}: the queries are the last of the tokens"
        )
    return n_keys - n_queries


def causal_mask(q: Tensor, k: Tensor, start: int = 0, count: int | None = None) -> Tensor:
    """Boolean mask of shape (n_queries, n_keys): each query sees the keys up to its own token.

    The last query sees all keys (see `query_offset`). The mask has `count` rows, by default all,
    from query `start` on.
    """
    count = q.shape[-2] if count is None else count
    pairs = torch.ones(count, k.shape[-2], dtype=torch.bool, device=q.device)
    return pairs.tril(start + query_offset(q, k))


def mask_rows(mask: Tensor | None, rows: Tensor, start: int) -> Tensor | None:
    """Return the rows of a mask for `rows`, a block of queries that begins at query `start`."""
    if mask is None or mask.shape[-2] == 1:
        return mask
    return mask[..., start : start + rows.shape[-2], :]


def combine_masks(mask: Tensor | None, allowed: Tensor) -> Tensor:
    """Hide also the pairs that are not `allowed`; the mask stays boolean or additive."""
    if mask is None:
        return allowed
    if mask.dtype == torch.bool:
        return mask & allowed
    return mask.masked_fill(~allowed, float("-inf"))


def hidden_by(mask: Tensor) -> Tensor:
    """Where a mask hides: False, -inf, or the lowest number, which some libraries use as -inf."""
    return ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2


def hidden_by_layer(mask: Tensor) -> Tensor:
    """Where a mask of ``nn.MultiheadAttention`` hides: True, or, if additive, as in `hidden_by`."""
    return mask if mask.dtype == torch.bool else hidden_by(mask)


def drop_hidden(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return keys or values with zeros in place of those that no query sees."""
    if mask is None:
        return x
    seen = (~hidden_by(mask)).any(dim=-2)[..., None]
    return torch.where(seen, x, 0)


def explicit_mask(mask: Tensor | None) -> Tensor | None:
    """Write -inf wherever an additive mask hides, also where it holds the lowest number."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask.masked_fill(hidden_by(mask), float("-inf"))


def read_mask(mask: Tensor, q: Tensor) -> Tensor:
    """Apply `explicit_mask` in the mask's own dtype, then `cast_mask`."""
    explicit = explicit_mask(mask)
    assert explicit is not None
    return cast_mask(explicit, q)


def cast_mask(mask: Tensor, q: Tensor) -> Tensor:
    """Convert an additive mask to a dtype that every kernel reads correctly beside queries q.

    That is the dtype of q, but float32 for q of 16 bits. Beside q in float64, PyTorch's kernel
    would read the bytes of a float32 mask as float64.
    """
    if mask.dtype in (torch.bool, q.dtype):
        return mask
    return mask.to(torch.promote_types(q.dtype, torch.float32))


def boolean_mask(mask: Tensor, n_keys: int, name: str) -> Tensor:
    """Convert a mask to booleans over all keys, for operators in which a bias has no meaning.

    Raises
    ------
    ValueError
        If an additive mask holds anything but 0 and -inf (or the lowest finite number). Compiled
        code cannot look at values: it ignores a finite bias. On a GPU the check waits for the
        device.
    """
    hidden = hidden_by(mask)
    checkable = mask.dtype != torch.bool and not has_no_values(mask)
    if checkable and not bool((hidden | (mask == 0)).all()):
        raise ValueError(
            f"{name}: masks may only hide keys, got an additive mask with a bias that is finite "
            "and not 0"
        )
    return ~hidden.expand(*mask.shape[:-1], n_keys)


def padding_mask(mask: Tensor, n_keys: int, name: str) -> Tensor:
    """Convert a mask to booleans (..., 1, n_keys), for operators that couple all queries.

    Raises
    ------
    ValueError
        If it does not hide the same keys from all queries, or is additive with a finite bias.
        Compiled code cannot compare rows: it takes masks of a single row only.
    """
    visible = boolean_mask(mask, n_keys, name)
    if visible.shape[-2] == 1:
        return visible
    if has_no_values(visible) or bool((visible != visible[..., :1, :]).any()):
        raise ValueError(
            f"mask: {name} couples all queries, so that a mask may only hide whole keys, in the "
            f"shape (..., 1, {n_keys}), got {tuple(mask.shape)}"
        )
    return visible[..., :1, :]


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of each row over its visible keys; zeros, with zero gradients, if it sees none."""
    dtype = logits.dtype
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        logits = logits.to(torch.promote_types(dtype, torch.float32)) + mask
    empty = logits.detach().amax(dim=-1, keepdim=True) == -torch.inf
    rows = torch.softmax(logits.masked_fill(empty, 0), dim=-1).masked_fill(empty, 0)
    return rows.to(dtype)
