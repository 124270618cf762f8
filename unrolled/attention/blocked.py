"""Attention by blocks of queries, with its own gradient, for what the fused kernel refuses."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .derivatives import has_no_values, is_one_of_many, is_transformed, vjp

_ROWS, _KEYS = 256, 512
_LOG2_E = math.log2(math.e)  # exp2 is the faster one, many times where it gives zeros


def blocks_serve(q: Tensor, mask: Tensor | None = None) -> bool:
    """Whether `blocked_attention` takes these, and whoever calls is content with its derivatives.

    Whoever turns the fused kernel off wants what PyTorch can differentiate forward.
    """
    if is_transformed() or has_no_values(q) or not torch.backends.cuda.flash_sdp_enabled():
        return False
    return q.device.type == "cpu" and (mask is None or not mask.requires_grad)


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """``softmax(q k^T + mask) v`` in blocks of queries, at the widths and dtypes that they have.

    The fused kernel wants values as wide as queries, and computes with the zeros that pad them; and
    it wants one dtype, where logits may need float64 alone. Here weights and their products with
    values are computed in the dtype of the values. The gradient takes what the fused kernel's
    takes, the output and the logarithm of each row's sum, so that memory is O(256 n_keys) beside
    them. It can be differentiated again.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
        With the leading shape of q and k.
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
        Boolean or additive, a constant; each query sees a key.

    Returns
    -------
    Tensor of shape (..., n_queries, e)
    """
    out, _ = _BlockedAttention.apply(q, k, v, mask)
    return out


class _BlockedAttention(torch.autograd.Function):
    """Output and ``log sum_j exp(q_i . k_j)``; one block and head at a time."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        out, log_sum = v.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        for rows, bias in _row_blocks(q, k, mask):
            for head in _heads(q):
                S = q[*head, rows] @ k[head].mT
                if bias is not None:
                    S += bias[head]
                largest = S.amax(-1, keepdim=True)
                P = S.sub_(largest).mul_(_LOG2_E).to(v.dtype).exp2_()
                total = P.sum(-1, keepdim=True)
                out[*head, rows] = (P @ v[head]).div_(total)
                log_sum[*head, rows] = largest + total.log_()
        return out, log_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_log_sum: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, mask, out, log_sum = ctx.saved_tensors
        if is_one_of_many(d_out):
            gradients = vjp(lambda *x: _explicit(*x, mask), (q, k, v), (d_out, d_log_sum))
            return *gradients, None
        shift = d_log_sum.to(v.dtype) - (d_out * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for rows, bias in _row_blocks(q, k, mask):
            for head, keys in product(_heads(q), _blocks(k, _KEYS)):
                Q, K, V, dO = q[*head, rows], k[*head, keys], v[*head, keys], d_out[*head, rows]
                S = Q @ K.mT
                if bias is not None:
                    S += bias[head][:, keys]
                P = S.sub_(log_sum[*head, rows]).mul_(_LOG2_E).to(v.dtype).exp2_()
                dS = (dO @ V.mT).add_(shift[*head, rows]).mul_(P).to(q.dtype)
                dq[*head, rows].addmm_(dS, K)
                dk[*head, keys].addmm_(dS.mT, Q)
                dv[*head, keys].addmm_(P.mT, dO)
        return dq, dk, dv, None


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    S = q @ k.mT
    if mask is not None:
        S = S + _additive(mask, S)
    return S.softmax(-1).to(v.dtype) @ v, S.logsumexp(-1, keepdim=True)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    added = mask.to(like.dtype)
    if mask.dtype != torch.bool:
        return added
    return added.sub_(1).mul_(torch.finfo(like.dtype).max)  # faster than to fill


def _row_blocks(q: Tensor, k: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, Tensor | None]]:
    """Blocks of queries, each with what is added to its logits, as if of every head."""
    for rows in _blocks(q, _ROWS):
        if mask is None:
            yield rows, None
        else:
            part = _additive(mask if mask.shape[-2] == 1 else mask[..., rows, :], q)
            yield rows, part.expand(*q.shape[:-2], rows.stop - rows.start, k.shape[-2])


def _heads(x: Tensor) -> Iterator[tuple[int, ...]]:
    return product(*map(range, x.shape[:-2]))


def _blocks(x: Tensor, size: int) -> list[slice]:
    n = x.shape[-2]
    return [slice(at, min(at + size, n)) for at in range(0, n, size)]
