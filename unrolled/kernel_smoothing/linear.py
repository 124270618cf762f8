"""Linear attention: the product of queries, keys and values in the order that is cheap."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import (
    Call,
    Operator,
    check_positive,
    has_static_value,
    map_query_blocks,
    query_offset,
)
from ..block_size import block_size
from .logits import visible_products

_CHUNK = 128


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    """Return ``(q k^T) v`` as ``q (k^T v)``, or its causal form, in time linear in the tokens.

    Memory is linear too. The causal form, ``(q_i . k_j for j <= i, else 0) v``, adds to the pairs
    within each chunk of tokens the sum of ``k_j^T v_j`` over the chunks before. With fewer queries
    than keys the queries are the last tokens, and what comes before them is one sum. A program that
    is compiled or exported for any number of tokens holds all pairs.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
    is_causal : bool, default=False

    Returns
    -------
    Tensor of shape (..., n_queries, e)

    References
    ----------
    EQUATIONS FF-11.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import linear_attention
    >>> q = torch.tensor([[1.0], [2.0]])
    >>> linear_attention(q, q, q, is_causal=True)
    tensor([[ 1.],
            [10.]])
    """
    if not is_causal:
        return q @ (k.mT @ v)
    n_queries, offset = q.shape[-2], query_offset(q, k)
    if not has_static_value(n_queries) or not has_static_value(offset):
        return (q @ k.mT).tril(offset) @ v
    if offset > 0:
        earlier_tokens = q @ (k[..., :offset, :].mT @ v[..., :offset, :])
        return earlier_tokens + linear_attention(
            q, k[..., offset:, :], v[..., offset:, :], is_causal=True
        )
    chunk = min(block_size(_CHUNK), n_queries)
    padding = (0, 0, 0, -n_queries % chunk)
    # (..., n_chunks, chunk, d)
    q, k, v = (F.pad(x, padding).unflatten(-2, (-1, chunk)) for x in (q, k, v))
    chunk_sums = k.mT @ v
    # Shifted, not subtracted: later tokens must not even change the rounding.
    earlier_chunks = F.pad(chunk_sums[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).cumsum(dim=-3)
    out = q @ earlier_chunks + (q @ k.mT).tril() @ v
    return out.flatten(-3, -2)[..., :n_queries, :]  # (..., n_queries, d)


class Linear(Operator):
    """Linear attention ``scale (q k^T) v``: no softmax, no normalisation.

    It is the limit of ridge self-expression for a large penalty: ``C -> q k^T / lam``, to within
    ``s_1^4 / (lam (s_1^2 + lam))`` where q = k has the largest singular value s_1. Rows need not
    sum to one, entries may be negative, and outputs grow with the number of keys.

    Time and memory are linear in the number of tokens, under causal masks and hidden keys as well.
    Masks that differ from query to query take blocks of queries, in quadratic time.

    Parameters
    ----------
    scale : float, default=1/16
        > 0; the default is that of the experiments on skip connections.

    Raises
    ------
    ValueError
        If `scale` is not positive, or a mask holds a finite bias.

    References
    ----------
    EQUATIONS FF-11, SE-14, SK-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Linear
    >>> Linear(scale=0.5).matrix(torch.tensor([[2.0]]), torch.tensor([[3.0], [-1.0]]))
    tensor([[ 3., -1.]])
    """

    def __init__(self, scale: float = 1 / 16) -> None:
        super().__init__()
        self.scale = check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        out_type, wide = call.v.dtype, torch.promote_types(call.v.dtype, torch.float32)
        call = call.hiding("Linear")
        q, k, v = self.scale * call.q.to(wide), call.k.to(wide), call.v.to(wide)
        if call.mask is None or call.mask.shape[-2] == 1:
            k = k if call.mask is None else torch.where(call.mask.mT, k, 0)
            return linear_attention(q, k, v, is_causal=call.is_causal).to(out_type)

        def block(rows: Tensor, start: int) -> Tensor:
            return visible_products(rows, k, call.pairs_of(rows, start)) @ v

        return map_query_blocks(block, q).to(out_type)

    def coefficients(self, call: Call) -> Tensor:
        return self.scale * visible_products(call.q, call.k, call.hiding("Linear").pairs())

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}"
