"""Attention with untied positions: projections of their own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Call, SoftmaxSmoother, check_count, fused_attention
from .logits import expand_features, of_queries


class Tupe(SoftmaxSmoother):
    """Attention with untied positions: ``l_ij = (q_i . k_j + p_i Hq Hk^T p_j^T) / sqrt(2 d)``.

    Bilateral attention with projections Hq and Hk of the positions that differ from those of the
    tokens, as one fused attention on concatenated features. Positions are those of the keys; with
    fewer queries than keys, the queries are the last tokens. To add a bias b_ij to the logits, such
    as one by relative positions, use an additive mask, or `Biased` around this operator.

    Parameters
    ----------
    dim : int
        Width of `Context.positions`.
    num_heads : int
    head_dim : int, optional
        Width d of a head. None is ``dim / num_heads``.

    Raises
    ------
    ValueError
        If a size is not a whole number >= 1, `dim` is no multiple of `num_heads` where it must be,
        there are more queries than keys, or the context's positions do not fit.

    References
    ----------
    Ke, He and Liu, "Rethinking positional encoding in language pre-training" (2021); EQUATIONS
    IF-30, FF-6.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention, Context, Tupe
    >>> layer = Attention(16, 4, operator=Tupe(16, 4))
    >>> x, positions = torch.randn(2, 10, 16), torch.randn(10, 16)
    >>> layer(x, x, x, need_weights=False, context=Context(positions=positions))[0].shape
    torch.Size([2, 10, 16])
    """

    positional = "absolute"
    needs = ("positions",)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(dim, "dim", 1)
        self.num_heads = check_count(num_heads, "num_heads", 1)
        if head_dim is None and dim % num_heads:
            raise ValueError(f"dim: must be a multiple of num_heads={num_heads}, got {dim}")
        width = dim // num_heads if head_dim is None else check_count(head_dim, "head_dim", 1)
        self.position_weight = nn.Parameter(
            torch.empty(2 * num_heads * width, dim, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new projections, at the scale of those of `Attention`."""
        nn.init.xavier_uniform_(self.position_weight)

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        p_q, p_k = self._positions(call)
        q, k = torch.cat([q, p_q], dim=-1), torch.cat([k, p_k], dim=-1)
        scale = (q.shape[-1] - p_q.shape[-1]) * 2
        return fused_attention(q, k, v, mask=mask, is_causal=is_causal, scale=scale**-0.5)

    def logits(self, call: Call) -> Tensor:
        q, k, (p_q, p_k) = call.q, call.k, self._positions(call)
        return (q @ k.mT + p_q @ p_k.mT) / (2 * q.shape[-1]) ** 0.5

    def _positions(self, call: Call) -> tuple[Tensor, Tensor]:
        """Return the projected positions of queries and keys, expanded to their batch and heads."""
        q, k, *_, context = call
        positions = None if context is None else context.positions
        assert positions is not None  # checked, as it is needed
        if positions.shape[-1] != self.position_weight.shape[1]:
            raise ValueError(
                f"context.positions: must have {self.position_weight.shape[1]} features, got "
                f"{tuple(positions.shape)}"
            )
        projected = F.linear(positions.to(self.position_weight.dtype), self.position_weight)
        # (..., 2 heads, tokens, width)
        heads = projected.unflatten(-1, (2 * self.num_heads, -1)).transpose(-3, -2)
        p_q, p_k = heads.chunk(2, dim=-3)
        name = f"context.positions, projected to {self.num_heads} heads"
        return expand_features(of_queries(p_q, q, k), q, name), expand_features(p_k, k, name)

    def extra_repr(self) -> str:
        two_widths, dim = self.position_weight.shape
        return (
            f"dim={dim}, num_heads={self.num_heads}, head_dim={two_widths // 2 // self.num_heads}"
        )
