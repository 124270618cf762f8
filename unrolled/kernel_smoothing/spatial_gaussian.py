"""Attention by position alone: the Gaussian filter."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import (
    Call,
    Positive,
    SoftmaxSmoother,
    blocked_attention,
    blocks_serve,
    map_query_blocks,
    query_offset,
)
from .logits import Grid, block_softmax


class SpatialGaussian(SoftmaxSmoother):
    """Gaussian smoothing by the distance of tokens on a grid, whatever their content.

    ``A_ij = exp(-|p_i - p_j|^2 / (2 s^2)) / sum_l exp(-|p_i - p_l|^2 / (2 s^2))``, the bilateral
    filter in the limit of infinite range width. Positions are those of the token index on the grid,
    ``p_t = (t // width, t % width)``. Queries and keys are ignored, and an `Attention` shell does
    not project them; with fewer queries than keys, the queries are the last tokens. A class token
    has distance 0 from every token: it averages all tokens that it sees, and has in each row the
    weight of the row's own token. All is computed from differences of positions, in float32 at
    least. The kernel is a product of a kernel of rows and one of columns, so that a grid of r x c
    tokens that all see each other costs r + c products a token. On a sequence, and under masks, the
    matrix is computed in blocks of queries, in linear memory, once for all samples and heads of one
    bandwidth. With one bandwidth a head that takes about the time of the fused kernel on a CPU.

    Parameters
    ----------
    bandwidth : float
        s > 0, in steps of the grid.
    width : int, optional
        Number of columns of the grid, on which tokens lie row by row; the last row may be
        incomplete. 1 is a sequence. None takes the model's (`Context.grid`), or 1 without a model.
    n_class_tokens : int, default=0
        Number of tokens in front of the grid; a model with a grid gives its own.
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

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, context = call
        values = v.to(torch.promote_types(v.dtype, torch.float32))
        offset, grid, bandwidth = query_offset(q, k), self.grid.on(k, context), self.bandwidth()
        if grid[0] > 1 and mask is None and not is_causal and q.shape[-2] == k.shape[-2]:
            bandwidth = bandwidth.to(values, non_blocking=True)
            return _smooth_grid(values, bandwidth, *grid).to(v.dtype)
        if blocks_serve(values, mask):
            n = q.shape[-2]
            return _smooth_rows(n, values, bandwidth, mask, is_causal, *grid).to(v.dtype)

        def block(rows: Tensor, start: int) -> Tensor:
            first = offset + start
            logits = _logits(first, first + rows.shape[-2], values, bandwidth, *grid)
            return block_softmax(logits, call.pairs_of(rows, start)) @ values

        return map_query_blocks(block, q).to(v.dtype)

    def logits(self, call: Call) -> Tensor:
        q, k, grid = call.q, call.k, self.grid.on(call.k, call.context)
        logits = _logits(query_offset(q, k), k.shape[-2], k, self.bandwidth(), *grid)
        return logits.expand(*q.shape[:-1], k.shape[-2])

    def extra_repr(self) -> str:
        return repr(self.grid)


def _logits(
    first: int, stop: int, keys: Tensor, bandwidth: Tensor, width: int, n_class: int
) -> Tensor:
    """Return the logits of the rows from `first` to `stop`, exact before the division."""
    j = torch.arange(keys.shape[-2], device=keys.device) - n_class
    i = torch.arange(first, stop, device=keys.device)[:, None] - n_class
    squares = (i // width - j // width).square() + (i % width - j % width).square()
    if n_class:
        squares = squares.masked_fill((i < 0) | (j < 0), 0)
    wide = torch.promote_types(keys.dtype, torch.float32)
    return -squares.to(wide) / (2 * bandwidth.to(wide) ** 2)


def _smooth_rows(
    n_queries: int,
    v: Tensor,
    bandwidth: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    width: int,
    n_class: int,
) -> Tensor:
    """Attend with the last tokens, by features of their places whose products are exact.

    Samples or heads with the same matrix are computed as one, with their values side by side.
    """
    n, size = v.shape[-2:]
    i = torch.arange(n, device=v.device) - n_class
    p = torch.stack([i // width, i % width], dim=-1).double() / bandwidth.double()
    norms = -p.square().sum(dim=-1, keepdim=True) / 2
    ones = torch.ones_like(norms)
    on_grid = (i >= 0)[:, None]
    q, k = (
        torch.where(on_grid, torch.cat([p, *more], dim=-1), 0)
        for more in ((norms, ones), (ones, norms))
    )
    batch = v.shape[:-2]
    matrix_batch = torch.broadcast_shapes(k.shape[:-2], () if mask is None else mask.shape[:-2])
    n_shared = len(batch) - len(matrix_batch)  # axes in front over which the matrix is the same
    if any(a != b for a, b in zip(matrix_batch, batch[n_shared:], strict=True)):
        matrix_batch, n_shared = batch, 0
    # (*matrices, n, shared * size)
    wide = v.flatten(0, n_shared - 1).movedim(0, -2).flatten(-2) if n_shared else v
    q, k = (x.expand(*matrix_batch, *x.shape[-2:]) for x in (q[..., n - n_queries :, :], k))
    out = blocked_attention(q, k, wide, mask=mask, is_causal=is_causal)
    if not n_shared:
        return out
    out = out.unflatten(-1, (-1, size)).movedim(-2, 0)  # (shared, *matrices, n_queries, size)
    return out.unflatten(0, batch[:n_shared])


def _smooth_grid(v: Tensor, bandwidth: Tensor, width: int, n_class: int) -> Tensor:
    """Average the values of all tokens: over each row of the grid, then over the rows.

    A token's weight of itself is 1, so that no largest logit need be subtracted.
    """
    class_values, tokens = v[..., :n_class, :], v[..., n_class:, :]
    n, n_first, size = tokens.shape[-2], class_values.shape[-2], v.shape[-1]
    n_rows = (n + width - 1) // width
    rows, columns = (torch.arange(m, device=v.device)[:, None].to(v) for m in (n_rows, width))
    across = _weigh_places(columns, columns, bandwidth)[..., None, :, :]  # (..., 1, width, width)
    x, mass = (
        across @ F.pad(part, (0, 0, 0, n_rows * width - n)).unflatten(-2, (n_rows, width))
        for part in (tokens, v.new_ones(n, 1))
    )
    # x: (..., n_rows, width * size)
    x, mass, class_sum = (
        x.flatten(-2),
        mass.flatten(-2),
        class_values.sum(dim=-2)[..., None, None, :],
    )

    def block(part: Tensor, start: int) -> Tensor:
        down = _weigh_places(part, rows, bandwidth)
        weighted = (down @ x).unflatten(-1, (width, size)) + class_sum
        return (weighted / ((down @ mass)[..., None] + n_first)).flatten(-2)

    # (..., n, size)
    means = map_query_blocks(block, rows).unflatten(-1, (width, size)).flatten(-3, -2)[..., :n, :]
    overall = v.mean(dim=-2, keepdim=True).expand_as(class_values)
    return torch.cat([overall, means], dim=-2) if n_first else means


def _weigh_places(p: Tensor, others: Tensor, bandwidth: Tensor) -> Tensor:
    """Return ``exp(-|p_i - p_j|^2 / (2 s^2))`` for places on one axis."""
    return torch.exp2((p - others.mT).square() * (-math.log2(math.e) / 2 / bandwidth**2))
