"""Logistic attention: logits that are a term of the query plus a term of the key."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import (
    Call,
    SoftmaxSmoother,
    check_count,
    check_positive,
    fused_attention,
    map_query_blocks,
)
from .logits import block_softmax, key_nearest_zero


class Logistic(SoftmaxSmoother):
    """Attention with additive logits ``q_i . u_Q + k_j . u_K + b``, as in graph attention.

    Without an inner nonlinearity the terms of the query and b cancel in the softmax: every row is
    ``a = softmax(k u_K)``, ``A = 1 a^T`` has rank one, and all outputs are the same after a single
    layer. Then u_Q and b have no effect and are not learned, and without a causal mask one weighted
    mean serves all queries in linear time. With `negative_slope` the logits pass through a leaky
    ReLU, as graph attention networks have it, and rows differ; the matrix is then built in blocks
    of queries that are recomputed in the backward pass.

    For ``|q_i|, |k_j| <= gamma`` the logits are at most ``(|u_K| + |u_Q|) gamma + |b|`` in size
    (the b was printed without its bars: erratum E1-j).

    Parameters
    ----------
    head_dim : int
        Width of queries and keys.
    num_heads : int, optional
        One set of parameters a head instead of one for all.
    negative_slope : float, optional
        Slope > 0 of the leaky ReLU below zero, 0.2 in graph attention networks. None applies no
        leaky ReLU.

    Attributes
    ----------
    query_weight, key_weight : Tensor of shape (num_heads, head_dim, 1) or (head_dim, 1)
        u_Q and u_K; normal with variance ``1 / head_dim`` at construction.
    bias : Tensor of shape (num_heads, 1, 1) or (1, 1)
        b; zero at construction. `key_weight` is a parameter; the other two are parameters with
        `negative_slope` and buffers without.

    Raises
    ------
    ValueError
        If a number is out of range, or widths or numbers of heads do not fit.

    References
    ----------
    Velickovic et al., "Graph attention networks" (2018); EQUATIONS AO-68, AO-68b.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Logistic
    >>> A = Logistic(8).matrix(torch.randn(5, 8), torch.randn(7, 8))
    >>> int(torch.linalg.matrix_rank(A))
    1
    """

    query_weight: Tensor
    bias: Tensor

    def __init__(
        self,
        head_dim: int,
        *,
        num_heads: int | None = None,
        negative_slope: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = check_count(head_dim, "head_dim", 1)
        self.num_heads = None if num_heads is None else check_count(num_heads, "num_heads", 1)
        self.negative_slope = (
            None if negative_slope is None else check_positive(negative_slope, "negative_slope")
        )
        self.reads = ("k", "v") if negative_slope is None else ("q", "k", "v")
        heads = () if num_heads is None else (num_heads,)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.key_weight = nn.Parameter(torch.empty(*heads, head_dim, 1, **factory))
        for name, width in (("query_weight", head_dim), ("bias", 1)):
            weight = torch.empty(*heads, width, 1, **factory)
            if negative_slope is None:
                self.register_buffer(name, weight)
            else:
                self.register_parameter(name, nn.Parameter(weight))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u_Q and u_K anew and set b to zero."""
        for weight in (self.query_weight, self.key_weight):
            nn.init.normal_(weight, std=self.head_dim**-0.5)
        nn.init.zeros_(self.bias)

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        self._check_width(q)
        wide = torch.promote_types(k.dtype, torch.float32)
        if self.negative_slope is None:
            k = k - key_nearest_zero(k, mask)  # a term that all keys have cancels
        terms = k.to(wide) @ self.key_weight.to(wide)
        if self.negative_slope is not None:

            def block(rows: Tensor, start: int) -> Tensor:
                visible = call.pairs_of(rows, start)
                return block_softmax(self._sum_terms(rows, terms), visible).to(v.dtype) @ v

            return map_query_blocks(block, self._query_terms(q))
        if not is_causal and (mask is None or mask.shape[-2] == 1):
            a = block_softmax(terms.mT, mask).to(v.dtype)
            return (a @ v).expand(*(a @ v).shape[:-2], q.shape[-2], v.shape[-1])
        ones = terms.new_ones(*q.shape[:-1], 1)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(wide)
        out = fused_attention(ones, terms, v.to(wide), mask=mask, is_causal=is_causal, scale=1.0)
        return out.to(v.dtype)

    def logits(self, call: Call) -> Tensor:
        self._check_width(call.q)
        wide = torch.promote_types(call.k.dtype, torch.float32)
        return self._sum_terms(
            self._query_terms(call.q), call.k.to(wide) @ self.key_weight.to(wide)
        )

    def _query_terms(self, q: Tensor) -> Tensor:
        """Return ``q_i . u_Q + b``, of shape (..., n_queries, 1)."""
        wide = torch.promote_types(q.dtype, torch.float32)
        return q.to(wide) @ self.query_weight.to(wide) + self.bias.to(wide)

    def _sum_terms(self, query_terms: Tensor, key_terms: Tensor) -> Tensor:
        logits = query_terms + key_terms.mT
        return logits if self.negative_slope is None else F.leaky_relu(logits, self.negative_slope)

    def _check_width(self, q: Tensor) -> None:
        heads = q.shape[-3] if q.ndim > 2 else 1
        if q.shape[-1] != self.head_dim:
            raise ValueError(f"head_dim: Logistic has {self.head_dim}, but q has {q.shape[-1]}")
        if self.num_heads not in (None, heads):
            raise ValueError(f"num_heads: Logistic has {self.num_heads}, but q has {heads}")

    def extra_repr(self) -> str:
        slope = "" if self.negative_slope is None else f", negative_slope={self.negative_slope:.4g}"
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"head_dim={self.head_dim}{heads}{slope}"
