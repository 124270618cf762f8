"""FlexAttention: a kernel that a compiled program makes for a bias or for who sees whom."""

from collections.abc import Callable

import torch
from torch import Tensor

from .call import Call
from .masks import query_offset
from .tracing import has_static_value

_LEAST_TOKENS = 1024  # the shortest that was timed

Bias = Callable[[Tensor, Tensor, Tensor], Tensor]
Pairs = Callable[[Tensor, Tensor], Tensor]


def flex_serves(call: Call) -> bool:
    """Whether `attend_by_flex` is faster: compiled, on a GPU, 16 bits, a long sequence, no mask.

    A call that is not compiled would first wait seconds for the compiler, for every new length.
    """
    q = call.q
    return (
        torch.compiler.is_dynamo_compiling()
        and q.is_cuda
        and q.dtype.itemsize == 2
        and q.ndim == 4
        and call.mask is None
        and has_static_value(call.k.shape[-2])
        and has_static_value(q.shape[-2])
        and q.shape[-2] >= _LEAST_TOKENS
    )


def attend_by_flex(
    call: Call, *, bias: Bias | None = None, pairs: Pairs | None = None, scale: float | None = None
) -> Tensor:
    """``softmax(scale q k^T + bias) v`` over the pairs of tokens that `pairs` allows.

    Parameters
    ----------
    call : Call
        With q of shape (batch, heads, n_queries, d), for which `flex_serves`.
    bias : callable, optional
        ``bias(head, i, j)``: the bias of token i as a query and token j as a key.
    pairs : callable, optional
        ``pairs(i, j)``: whether token i sees token j. Under a causal mask, j <= i too.
    scale : float, optional
        None is ``d ** -0.5``.
    """
    # Importing it loads the compiler, which runs when this is called.
    from torch.nn.attention import flex_attention as flex

    q, k, v, _, is_causal, _ = call
    offset, block_mask = query_offset(q, k), None

    def sees(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        causal = i + offset >= j
        allowed = causal if pairs is None else pairs(i + offset, j)
        return allowed & causal if is_causal else allowed

    def score(logit: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logit if bias is None else logit + bias(head, i + offset, j)

    if pairs is not None or is_causal:
        block_mask = flex.create_block_mask(
            sees, None, None, q.shape[-2], k.shape[-2], device=str(q.device)
        )
    out: Tensor = flex.flex_attention(
        q, k, v, score_mod=None if bias is None else score, block_mask=block_mask, scale=scale
    )
    return out
