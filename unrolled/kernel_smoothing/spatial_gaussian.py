"""Attention by position alone: the Gaussian filter."""

import torch
from torch import Tensor

from ..attention import (
    Context,
    Positive,
    SoftmaxSmoother,
    check_count,
    map_query_blocks,
    query_offset,
)
from .query_blocks import block_mask, block_softmax


class SpatialGaussian(SoftmaxSmoother):
    """Gaussian smoothing by the distance of tokens on a grid, whatever their content.

    ``A_ij = exp(-|p_i - p_j|^2 / (2 s^2)) / sum_l exp(-|p_i - p_l|^2 / (2 s^2))``, the bilateral
    filter in the limit of infinite range width. Positions are those of the token index on the grid,
    ``p_t = (t // width, t % width)``; queries and keys are ignored, and an `Attention` shell
    projects none, but fewer queries than keys are the last tokens. Rows are computed in blocks,
    once for all samples and heads of one bandwidth, from differences of positions, in float32 at
    least: quadratic time, linear memory.

    Parameters
    ----------
    bandwidth : float
        s > 0, in steps of the grid.
    width : int, default=1
        Number of columns of the grid, on which tokens lie row by row; the last row may be
        incomplete. 1 is a sequence.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or there are more queries than keys.

    References
    ----------
    EQUATIONS QK-local, IF-13 with ``h_p^2 = 2 s^2`` and ``h_y`` infinite.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import SpatialGaussian
    >>> q = torch.randn(3, 2)
    >>> SpatialGaussian(1.0).matrix(q, q)[1]
    tensor([0.2741, 0.4519, 0.2741])
    """

    reads = ("v",)

    def __init__(
        self,
        bandwidth: float,
        *,
        width: int = 1,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width = check_count(width, "width", 1)
        self.positional = "relative" if width == 1 else "absolute"
        self.bandwidth = Positive(
            bandwidth,
            name="bandwidth",
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        values = v.to(torch.promote_types(v.dtype, torch.float32))
        offset, n_keys = query_offset(q, k), k.shape[-2]

        def block(rows: Tensor, start: int) -> Tensor:
            first = offset + start
            logits = self._logits(first, first + rows.shape[-2], n_keys, values)
            visible = block_mask(mask, is_causal, start, rows, q, k)
            return block_softmax(logits, visible) @ values

        return map_query_blocks(block, q).to(v.dtype)

    def logits(self, q: Tensor, k: Tensor, context: Context | None) -> Tensor:
        n_keys = k.shape[-2]
        logits = self._logits(query_offset(q, k), n_keys, n_keys, q)
        return logits.expand(*q.shape[:-1], n_keys)

    def _logits(self, first: int, stop: int, n_keys: int, like: Tensor) -> Tensor:
        """Logits of the rows from `first` to `stop`, from whole numbers, which float32 holds."""
        keys = torch.arange(n_keys, device=like.device)
        own = torch.arange(first, stop, device=like.device)[:, None]
        down, across = own // self.width - keys // self.width, own % self.width - keys % self.width
        wide = torch.promote_types(like.dtype, torch.float32)
        squares = (down.square() + across.square()).to(wide)
        return -squares / (2 * self.bandwidth().to(wide) ** 2)

    def extra_repr(self) -> str:
        return f"width={self.width}"
