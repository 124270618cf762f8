"""Attention by blocks of queries, for values much narrower than queries, with its own gradient."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from .derivatives import is_one_of_many, vjp

_ROWS, _KEYS = 256, 512


def blocked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``softmax(q k^T) v`` in blocks of queries, at the widths that queries and values have.

    The fused kernel wants values as wide as queries, and computes with the zeros that pad them.
    Here the gradient takes what the fused kernel's takes, the output and the logarithm of each
    row's sum, so that memory is O(256 n_keys) beside them. It can be differentiated again.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
        With the leading shape of q and k.

    Returns
    -------
    Tensor of shape (..., n_queries, e)
    """
    heads = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    out, _ = _BlockedAttention.apply(*heads)
    return out.reshape(*q.shape[:-1], v.shape[-1])


class _BlockedAttention(torch.autograd.Function):
    """Output and ``log sum_j exp(q_i . k_j)``, of heads first; one head and block at a time."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, log_sum = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        for head, rows in product(range(len(q)), _blocks(q, _ROWS)):
            P = q[head, rows] @ k[head].mT
            largest = P.amax(-1, keepdim=True)
            total = P.sub_(largest).exp_().sum(-1, keepdim=True)
            out[head, rows] = (P @ v[head]).div_(total)
            log_sum[head, rows] = largest + total.log_()
        return out, log_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_log_sum: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        q, k, v, out, log_sum = ctx.saved_tensors
        if is_one_of_many(d_out):
            return vjp(_explicit, (q, k, v), (d_out, d_log_sum))
        shift = d_log_sum - (d_out * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for head, rows, keys in product(range(len(q)), _blocks(q, _ROWS), _blocks(k, _KEYS)):
            Q, K, V, dO = q[head, rows], k[head, keys], v[head, keys], d_out[head, rows]
            P = (Q @ K.mT).sub_(log_sum[head, rows]).exp_()
            dS = (dO @ V.mT).add_(shift[head, rows]).mul_(P)
            dq[head, rows].addmm_(dS, K)
            dk[head, keys].addmm_(dS.mT, Q)
            dv[head, keys].addmm_(P.mT, dO)
        return dq, dk, dv


def _explicit(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = q @ k.mT
    return S.softmax(-1) @ v, S.logsumexp(-1, keepdim=True)


def _blocks(x: Tensor, size: int) -> list[slice]:
    return [slice(at, at + size) for at in range(0, x.shape[1], size)]
