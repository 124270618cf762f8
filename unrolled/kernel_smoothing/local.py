"""Attention within a fixed neighbourhood: a window, or the row and column of a grid."""

import torch
from torch import Tensor

from ..attention import (
    Context,
    SoftmaxSmoother,
    check_count,
    check_positive,
    combine_masks,
    fused_attention,
    map_query_blocks,
    query_offset,
)
from .query_blocks import block_mask


class Neighborhood(SoftmaxSmoother):
    """Base of scaled dot-product attention to the tokens near by, on a grid of given width.

    Token t stands in row ``t // width`` and column ``t % width``; the last row may be incomplete.
    Fewer queries than keys are the last tokens.
    """

    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.width = check_count(width, "width", 1)
        self.positional = "relative" if width == 1 else "absolute"
        self.scale = None if scale is None else check_positive(scale, "scale")

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Which pairs are neighbours, from their differences in row and column."""
        raise NotImplementedError

    def reach(self, start: int, stop: int, n_tokens: int) -> tuple[int, int]:
        """First and last but one of the tokens near to some of those from `start` to `stop`."""
        return 0, n_tokens

    def _near(self, queries: Tensor, keys: Tensor) -> Tensor:
        queries = queries[:, None]
        return self.near(
            queries // self.width - keys // self.width, queries % self.width - keys % self.width
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
        n, offset = k.shape[-2], query_offset(q, k)

        def block(rows: Tensor, start: int) -> Tensor:
            own = slice(offset + start, offset + start + rows.shape[-2])
            first, last = self.reach(own.start, own.stop, n)
            indices = torch.arange(n, dtype=torch.int32, device=q.device)
            near = self._near(indices[own], indices[first:last])
            seen = block_mask(mask, is_causal, start, rows, q, k)
            if seen is not None:
                seen = seen.expand(*seen.shape[:-1], n)[..., first:last]
            return fused_attention(
                rows,
                k[..., first:last, :],
                v[..., first:last, :],
                mask=combine_masks(seen, near),
                scale=self.scale,
            )

        return map_query_blocks(block, q)

    def logits(self, q: Tensor, k: Tensor, context: Context | None) -> Tensor:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        tokens = torch.arange(k.shape[-2], dtype=torch.int32, device=q.device)
        near = self._near(tokens[query_offset(q, k) :], tokens)
        return (scale * q @ k.mT).masked_fill(~near, -torch.inf)


class Local(Neighborhood):
    """Scaled dot-product attention to the tokens within a window around each.

    On a grid, the window holds the tokens at most `radius` rows and columns away, the token itself
    among them, and is clipped at the border. Blocks of queries see the keys within their reach
    alone: time is O(n_tokens * (radius * width + block)), memory is linear. This is one of the
    fixed choices of who sees whom that sparse coding is said to replace.

    Parameters
    ----------
    radius : int
        >= 0. With 0 a token attends to itself alone.
    width : int, default=1
        Number of columns of the grid, on which tokens lie row by row. 1 is a sequence.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range, or there are more queries than keys.

    References
    ----------
    EQUATIONS QK-local.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Local
    >>> q = torch.zeros(3, 2)
    >>> Local(1).matrix(q, q)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.5000, 0.5000]])
    """

    def __init__(self, radius: int, *, width: int = 1, scale: float | None = None) -> None:
        super().__init__(width, scale)
        self.radius = check_count(radius, "radius", 0)

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows.abs() <= self.radius) & (columns.abs() <= self.radius)

    def reach(self, start: int, stop: int, n_tokens: int) -> tuple[int, int]:
        first = (start // self.width - self.radius) * self.width
        last = ((stop - 1) // self.width + self.radius + 1) * self.width
        return max(0, first), min(n_tokens, last)

    def extra_repr(self) -> str:
        return f"radius={self.radius}, width={self.width}"


class CrissCross(Neighborhood):
    """Scaled dot-product attention to the tokens in the same row or column of a grid.

    Blocks of queries are masked against all keys: quadratic time, linear memory.

    Parameters
    ----------
    width : int
        Number of columns >= 1; tokens lie on the grid row by row.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range, or there are more queries than keys.

    References
    ----------
    Huang et al., "CCNet: criss-cross attention" (2019); EQUATIONS QK-local.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import CrissCross
    >>> q = torch.zeros(4, 2)
    >>> CrissCross(2).matrix(q, q)[0]
    tensor([0.3333, 0.3333, 0.3333, 0.0000])
    """

    def __init__(self, width: int, *, scale: float | None = None) -> None:
        super().__init__(width, scale)

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows == 0) | (columns == 0)

    def extra_repr(self) -> str:
        return f"width={self.width}"
