"""Attention by blocks of queries, with its own gradient, for what the fused kernel refuses."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..block_size import block_size
from .derivatives import is_one_of_many, vjp
from .masks import combine_masks, hidden_by, query_offset
from .tracing import has_no_values, is_transformed

_ROWS, _KEYS = 256, 512
_LOG2_E = math.log2(math.e)  # exp2 is faster than exp, many times where it gives zeros


def blocks_serve(q: Tensor, mask: Tensor | None = None) -> bool:
    """Whether `blocked_attention` can compute these inputs and the derivatives asked for.

    It has no forward-mode derivatives: callers who want these turn the fused kernel off.
    """
    if is_transformed() or has_no_values(q) or not torch.backends.cuda.flash_sdp_enabled():
        return False
    return q.device.type == "cpu" and (mask is None or not mask.requires_grad)


def blocked_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """``softmax(q k^T + mask) v`` in blocks of queries, at the widths and dtypes of the inputs.

    The fused kernel needs values as wide as queries, and computes with the zeros that pad them. It
    also needs one dtype, where only logits may need float64. Here weights and their products with
    values are computed in the dtype of the values. The backward pass uses what that of the fused
    kernel uses, the output and the logarithm of each row's sum; beside them memory is
    O(256 n_keys). It can be differentiated again.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
        With the leading shape of q and k.
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
        Boolean or additive, a constant; a row without visible keys gives zeros.
    is_causal : bool, default=False
        Query i sees the keys 0 to ``n_keys - n_queries + i``; with a mask, both apply.

    Returns
    -------
    Tensor of shape (..., n_queries, e)
    """
    out, _, *empty = _BlockedAttention.apply(q, k, v, mask, is_causal)
    return out.masked_fill(empty[0], 0) if empty else out


class _BlockedAttention(torch.autograd.Function):
    """The output, ``log sum_j exp(q_i . k_j)`` and, under a mask, which rows see no key."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, ...]:
        out, log_sum = v.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        empty_rows: list[Tensor] = []
        for rows in _split_blocks(q.shape[-2], _ROWS):
            n_seen, bias, empty = _find_hidden(q, k, mask, is_causal, rows)
            empty_rows += [] if empty is None else [empty]
            for head in _flatten_heads(q):
                query_index: Any = (*head, rows)
                key_index: Any = (*head, slice(0, n_seen))
                S = q[query_index] @ k[key_index].mT
                if bias is not None:
                    S += bias[head]
                largest = S.amax(-1, keepdim=True)
                P = S.sub_(largest).mul_(_LOG2_E).to(v.dtype).exp2_()
                total = P.sum(-1, keepdim=True)
                out[query_index] = (P @ v[key_index]).div_(total)
                log_sum[query_index] = largest + total.log_()
        return (out, log_sum, torch.cat(empty_rows, dim=-2)) if empty_rows else (out, log_sum)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.is_causal = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*tensors, *output[:2])

    @staticmethod
    def backward(
        ctx: Any, d_out: Tensor, d_log_sum: Tensor, *none: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, log_sum = ctx.saved_tensors
        if is_one_of_many(d_out):
            explicit = partial(_attend_explicitly, mask=mask, is_causal=ctx.is_causal)
            return *vjp(explicit, (q, k, v), (d_out, d_log_sum)), None, None
        shift = d_log_sum.to(v.dtype) - (d_out * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for rows in _split_blocks(q.shape[-2], _ROWS):
            n_seen, bias, _ = _find_hidden(q, k, mask, ctx.is_causal, rows)
            for head, keys in product(_flatten_heads(q), _split_blocks(n_seen, _KEYS)):
                Q, K, V, dO = q[*head, rows], k[*head, keys], v[*head, keys], d_out[*head, rows]
                S = Q @ K.mT
                if bias is not None:
                    S += bias[head][:, keys]
                P = S.sub_(log_sum[*head, rows]).mul_(_LOG2_E).to(v.dtype).exp2_()
                dS = (dO @ V.mT).add_(shift[*head, rows]).mul_(P).to(q.dtype)
                dq[*head, rows].addmm_(dS, K)
                dk[*head, keys].addmm_(dS.mT, Q)
                dv[*head, keys].addmm_(P.mT, dO)
        return dq, dk, dv, None, None


def _attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """The output and log-sums of `_BlockedAttention`, by the whole matrix."""
    S = q @ k.mT
    _, bias, _ = _find_hidden(q, k, mask, is_causal, slice(0, q.shape[-2]))
    S = S if bias is None else S + bias
    return S.softmax(-1).to(v.dtype) @ v, S.logsumexp(-1, keepdim=True)


def _find_hidden(
    q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, rows: slice
) -> tuple[int, Tensor | None, Tensor | None]:
    """Return the number of keys that a block of rows reads, a bias that hides keys, and empty rows.

    An empty row sees no key. The bias shows it all keys, so that nothing in it is infinite.
    """
    n_seen, block_mask = k.shape[-2], mask
    if is_causal:
        n_seen = rows.stop + query_offset(q, k)
    if block_mask is not None:
        block_mask = block_mask if block_mask.shape[-2] == 1 else block_mask[..., rows, :]
        block_mask = block_mask if block_mask.shape[-1] == 1 else block_mask[..., :n_seen]
    if is_causal:
        keys = torch.arange(n_seen, device=q.device)
        block_mask = combine_masks(block_mask, keys <= keys[rows.start - rows.stop :, None])
    if block_mask is None:
        return n_seen, None, None
    empty = (~hidden_by(block_mask)).sum(dim=-1, keepdim=True) == 0
    if block_mask.dtype == torch.bool:  # faster so than to fill
        block_mask = (block_mask | empty).to(q.dtype).sub_(1).mul_(torch.finfo(q.dtype).max)
    else:
        block_mask = block_mask.to(q.dtype).masked_fill(empty, 0)
    n_rows = rows.stop - rows.start
    empty = empty.expand(*empty.shape[:-2], n_rows, 1)
    return n_seen, block_mask.expand(*q.shape[:-2], n_rows, n_seen), empty


def _flatten_heads(x: Tensor) -> Iterator[tuple[int, ...]]:
    """Indices of all pairs of batch and head."""
    return product(*map(range, x.shape[:-2]))


def _split_blocks(n: int, size: int) -> list[slice]:
    size = block_size(size)
    return [slice(at, min(at + size, n)) for at in range(0, n, size)]
