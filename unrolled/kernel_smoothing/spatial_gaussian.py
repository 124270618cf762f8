"""Attention by position alone: the Gaussian filter."""

import torch
from torch import Tensor

from ..attention import (
    Context,
    Positive,
    SoftmaxSmoother,
    map_query_blocks,
    query_offset,
)
from .grids import Grid
from .query_blocks import block_mask, block_softmax


class SpatialGaussian(SoftmaxSmoother):
    """Gaussian smoothing by the distance of tokens on a grid, whatever their content.

    ``A_ij = exp(-|p_i - p_j|^2 / (2 s^2)) / sum_l exp(-|p_i - p_l|^2 / (2 s^2))``, the bilateral
    filter in the limit of infinite range width. Positions are those of the token index on the grid,
    ``p_t = (t // width, t % width)``; queries and keys are ignored, and an `Attention` shell
    projects none, but fewer queries than keys are the last tokens. A class token stands at no
    distance from any token: it averages all that it sees alike, and weighs in each row what the
    row's own token does. Rows are computed in blocks, once for all samples and heads of one
    bandwidth, from differences of positions, in float32 at least: quadratic time, linear memory.

    Parameters
    ----------
    bandwidth : float
        s > 0, in steps of the grid.
    width : int, optional
        Number of columns of the grid, on which tokens lie row by row; the last row may be
        incomplete. 1 is a sequence. None is that of the model (`Context.grid`), and 1 without one.
    n_class_tokens : int, default=0
        Tokens in front of the grid, where no model tells of them.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, the model's grid is another one or does not fit the tokens, or
        there are more queries than keys.

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
        width: int | None = None,
        n_class_tokens: int = 0,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.grid = Grid(width, n_class_tokens)
        self.positional = "relative" if width in (None, 1) and not n_class_tokens else "absolute"
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
        offset, grid, bandwidth = query_offset(q, k), self.grid.on(k, context), self.bandwidth()

        def block(rows: Tensor, start: int) -> Tensor:
            first = offset + start
            logits = _logits(first, first + rows.shape[-2], values, bandwidth, *grid)
            visible = block_mask(mask, is_causal, start, rows, q, k)
            return block_softmax(logits, visible) @ values

        return map_query_blocks(block, q).to(v.dtype)

    def logits(self, q: Tensor, k: Tensor, context: Context | None) -> Tensor:
        grid = self.grid.on(k, context)
        logits = _logits(query_offset(q, k), k.shape[-2], k, self.bandwidth(), *grid)
        return logits.expand(*q.shape[:-1], k.shape[-2])

    def extra_repr(self) -> str:
        return repr(self.grid)


def _logits(
    first: int, stop: int, keys: Tensor, bandwidth: Tensor, width: int, n_class: int
) -> Tensor:
    """Logits of the rows from `first` to `stop`, from whole numbers, which float32 holds."""
    j = torch.arange(keys.shape[-2], device=keys.device) - n_class
    i = torch.arange(first, stop, device=keys.device)[:, None] - n_class
    squares = (i // width - j // width).square() + (i % width - j % width).square()
    if n_class:
        squares = squares.masked_fill((i < 0) | (j < 0), 0)
    wide = torch.promote_types(keys.dtype, torch.float32)
    return -squares.to(wide) / (2 * bandwidth.to(wide) ** 2)
