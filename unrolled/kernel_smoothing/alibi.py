"""Attention with linear biases: distance between positions as a term of the logits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import (
    Call,
    Positive,
    SoftmaxSmoother,
    attend_by_flex,
    check_count,
    check_positive,
    flex_serves,
    fused_attention,
    map_query_blocks,
    mask_rows,
    query_offset,
)
from .logits import add_bias, split_features


def alibi_slopes(num_heads: int) -> list[float]:
    """The usual slopes, geometric: ``2 ** (-8 h / H)`` for heads h = 1 to H, a power of two.

    Other numbers of heads have the slopes of the next lower power H, and then every other one of
    those of 2 H.

    Examples
    --------
    >>> from twinsolve.unrolled.kernel_smoothing import alibi_slopes
    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** int(math.log2(check_count(num_heads, "num_heads", 1)))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


class ALiBi(SoftmaxSmoother):
    """Dot-product attention with a linear bias: ``l_ij = q_i . k_j / sqrt(d) - m |i - j|``.

    The bias stands for the position term of bilateral attention, and needs no position features.
    Tokens i and j are counted along the keys; with fewer queries than keys the queries are the last
    of them, as in decoding with a cache.

    Causal rows cost no bias at all: with ``|i - j| = i - j`` the i is a constant of the row, and
    ``m j`` one more feature of the keys (split over three in bfloat16 and float16, whose digits are
    too few for it). Logits are then of the size ``m n_keys``, and as exact as the dtype allows at
    that size. Two-sided distances have no such form: the bias is built for one block of queries at
    a time; compiled for a GPU, long sequences of 16 bits take FlexAttention. With learned slopes
    neither that nor the fused kernel is used, which computes no gradient of a bias; memory is
    O(block * n_keys) in either case.

    Parameters
    ----------
    num_heads : int
    slopes : sequence of num_heads floats, optional
        m >= 0 of each head. None is `alibi_slopes`.
    learnable : bool, default=False
        Train the slopes, as logarithms of their ratios to the initial ones.

    Raises
    ------
    ValueError
        If the slopes are negative or not as many as the heads.

    References
    ----------
    Press, Smith and Lewis, "Train short, test long" (2022); EQUATIONS IF-ALI, FF-7, FF-7c.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import ALiBi
    >>> q = torch.zeros(1, 1, 3, 8)
    >>> ALiBi(1, slopes=[0.5]).matrix(q, q)[0, 0, 0].log().diff()
    tensor([-0.5000, -0.5000])
    """

    positional = "relative"
    positions_apart = True

    def __init__(
        self,
        num_heads: int,
        *,
        slopes: Sequence[float] | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = check_count(num_heads, "num_heads", 1)
        self.slopes = (
            None
            if slopes is None
            else [check_positive(m, "slopes", allow_zero=True) for m in slopes]
        )
        if self.slopes is not None and len(self.slopes) != num_heads:
            raise ValueError(
                f"slopes: must hold one slope for each of {num_heads} heads, got {len(self.slopes)}"
            )
        self.relative_slope = Positive(
            1.0, num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )

    def slopes_for(self, q: Tensor) -> Tensor:
        """Return the slopes in use, (num_heads, 1, 1), or one number for a single head."""
        wide = torch.promote_types(q.dtype, torch.float32)
        shape = (-1, 1, 1) if q.ndim > 2 else ()
        slopes = torch.tensor(self._initial_slopes(), dtype=wide).to(q.device, non_blocking=True)
        return (slopes[:, None, None] * self.relative_slope().to(wide)).reshape(shape)

    def _initial_slopes(self) -> list[float]:
        return alibi_slopes(self.num_heads) if self.slopes is None else self.slopes

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        slopes = self.slopes_for(q)
        if is_causal:
            return _attend_causally(q, k, v, slopes, mask)
        if flex_serves(call) and not slopes.requires_grad:
            by_head = slopes.flatten()
            return attend_by_flex(call, bias=lambda head, i, j: -by_head[head] * (i - j).abs())
        offset = query_offset(q, k)

        def block(rows: Tensor, start: int) -> Tensor:
            bias = -slopes * _distances(offset + start, rows, k)
            bias = bias if q.device.type == "cpu" else bias.to(q.dtype)  # as fast kernels take it
            seen = mask_rows(mask, rows, start)
            return fused_attention(rows, k, v, mask=add_bias(seen, bias))

        return map_query_blocks(block, q, numbers=slopes.numel() * k.shape[-2])

    def logits(self, call: Call) -> Tensor:
        q, k = call.q, call.k
        bias = self.slopes_for(q) * _distances(query_offset(q, k), q, k)
        return q @ k.mT * q.shape[-1] ** -0.5 - bias.to(q.dtype)

    def extra_repr(self) -> str:
        return "slopes=" + ", ".join(f"{m:.4g}" for m in self._initial_slopes())


def _attend_causally(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, mask: Tensor | None
) -> Tensor:
    """Attend with ``m j`` as a feature of key j; the term ``m i`` of query i cancels."""
    scale = q.shape[-1] ** -0.5
    # A power of two near 1 / scale is exact in every dtype and keeps the feature in its range.
    unit = 2.0 ** round(math.log2(1 / scale))
    index = torch.arange(k.shape[-2], dtype=slopes.dtype, device=k.device)[:, None]
    feature = split_features(slopes * index / (scale * unit), k.dtype)
    feature = feature.expand(*k.shape[:-1], -1)
    q = torch.cat([q, q.new_full((*q.shape[:-1], feature.shape[-1]), unit)], dim=-1)
    k = torch.cat([k, feature], dim=-1)
    return fused_attention(q, k, v, mask=mask, is_causal=True, scale=scale)


def _distances(start: int, rows: Tensor, k: Tensor) -> Tensor:
    """Return ``|i - j|`` for a block of queries, the tokens from `start` on, and all keys."""
    queries = torch.arange(start, start + rows.shape[-2], device=k.device)
    wide = torch.promote_types(k.dtype, torch.float32)
    return (queries[:, None] - torch.arange(k.shape[-2], device=k.device)).abs().to(wide)
