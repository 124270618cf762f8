"""Attention within a fixed neighbourhood: a window, or the row and column of a grid."""

from functools import partial

import torch
from torch import Tensor

from ..attention import (
    Call,
    SoftmaxSmoother,
    attend_by_flex,
    check_count,
    check_positive,
    combine_masks,
    flex_serves,
    fused_attention,
    has_static_value,
    map_query_blocks,
    query_offset,
)
from .logits import Grid


class Neighborhood(SoftmaxSmoother):
    """Base of scaled dot-product attention to nearby tokens of a grid.

    After the class tokens, token t stands in row ``t // width`` and column ``t % width``; the last
    row may be incomplete. Class tokens see all and are seen by all. With fewer queries than keys,
    the queries are the last tokens.
    """

    def __init__(self, width: int | None, n_class_tokens: int, scale: float | None) -> None:
        super().__init__()
        self.grid = Grid(width, n_class_tokens)
        self.positional = "relative" if width in (None, 1) and not n_class_tokens else "absolute"
        self.scale = None if scale is None else check_positive(scale, "scale")

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether two tokens are neighbours, from their differences in row and column."""
        raise NotImplementedError

    def reach(self, start: int, stop: int, width: int) -> tuple[int, int | None]:
        """Return a range of grid tokens that holds all neighbours of those in this range."""
        return 0, None

    def _find_reach(
        self, start: int, stop: int, n: int, width: int, n_class: int
    ) -> tuple[int, int]:
        """Return the range of all tokens, class tokens included, that these tokens may see."""
        first, last = self.reach(start - n_class, stop - n_class, width)
        last = n if last is None or start < n_class else min(n, last + n_class)
        return 0 if n_class else max(0, first), last

    def _is_near(self, i: Tensor, j: Tensor, width: int, n_class: int) -> Tensor:
        """Whether tokens i and j see each other: as neighbours or class tokens."""
        i, j = i - n_class, j - n_class
        near = self.near(i // width - j // width, i % width - j % width)
        return near | (i < 0) | (j < 0) if n_class else near

    def attend(self, call: Call) -> Tensor:
        q, k, v, *_, context = call
        n, offset = k.shape[-2], query_offset(q, k)
        width, n_class = self.grid.on(k, context)
        if flex_serves(call):
            near = partial(self._is_near, width=width, n_class=n_class)
            return attend_by_flex(call, pairs=near, scale=self.scale)

        def block(rows: Tensor, start: int) -> Tensor:
            query_range = slice(offset + start, offset + start + rows.shape[-2])
            first, last = 0, n
            if has_static_value(n):
                first, last = self._find_reach(
                    query_range.start, query_range.stop, n, width, n_class
                )
            indices = torch.arange(n, dtype=torch.int32, device=q.device)
            near = self._is_near(indices[query_range, None], indices[first:last], width, n_class)
            mask = call.pairs_of(rows, start)
            if mask is not None:
                mask = mask.expand(*mask.shape[:-1], n)[..., first:last]
            return fused_attention(
                rows,
                k[..., first:last, :],
                v[..., first:last, :],
                mask=combine_masks(mask, near),
                scale=self.scale,
            )

        return map_query_blocks(block, q, numbers=n)

    def logits(self, call: Call) -> Tensor:
        q, k = call.q, call.k
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        tokens = torch.arange(k.shape[-2], dtype=torch.int32, device=q.device)
        queries = tokens[query_offset(q, k) :, None]
        near = self._is_near(queries, tokens, *self.grid.on(k, call.context))
        return (scale * q @ k.mT).masked_fill(~near, -torch.inf)

    def extra_repr(self) -> str:
        scale = "head_dim ** -0.5" if self.scale is None else f"{self.scale:.4g}"
        return ", ".join(filter(None, (f"scale={scale}", repr(self.grid))))


class Local(Neighborhood):
    """Scaled dot-product attention to the tokens within a window around each.

    On a grid, the window holds the tokens at most `radius` rows and columns away, the token itself
    among them, and is clipped at the border; class tokens see all and are seen by all. Blocks of
    queries see the keys within their reach alone: time is O(n_tokens * (radius * width + block)),
    memory is linear; with class tokens, blocks see all keys up to their reach. Compiled for a GPU,
    long sequences of 16 bits take FlexAttention. This is one of the fixed choices of who sees whom
    that sparse coding is said to replace.

    Parameters
    ----------
    radius : int
        >= 0. With 0 a token attends to itself alone.
    width : int, optional
        Number of columns of the grid, on which tokens lie row by row; 1 is a sequence. None takes
        the model's (`Context.grid`), or 1 without a model.
    n_class_tokens : int, default=0
        Number of tokens in front of the grid; a model with a grid gives its own.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range, the model's grid is another one or does not fit the tokens, or
        there are more queries than keys.

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

    def __init__(
        self,
        radius: int,
        *,
        width: int | None = None,
        n_class_tokens: int = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__(width, n_class_tokens, scale)
        self.radius = check_count(radius, "radius", 0)

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows.abs() <= self.radius) & (columns.abs() <= self.radius)

    def reach(self, start: int, stop: int, width: int) -> tuple[int, int | None]:
        first = (start // width - self.radius) * width
        return first, ((stop - 1) // width + self.radius + 1) * width

    def extra_repr(self) -> str:
        return f"radius={self.radius}, {super().extra_repr()}"


class CrissCross(Neighborhood):
    """Scaled dot-product attention to the tokens in the same row or column of a grid.

    Class tokens see all and are seen by all. On a sequence, which is one column, it is plain
    attention. Blocks of queries are masked against all keys: quadratic time, linear memory.
    Compiled for a GPU, long sequences of 16 bits take FlexAttention.

    Parameters
    ----------
    width : int, optional
        Number of columns >= 1; tokens lie on the grid row by row. None takes the model's
        (`Context.grid`), or 1, a sequence, without a model.
    n_class_tokens : int, default=0
        Number of tokens in front of the grid; a model with a grid gives its own.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range, the model's grid is another one or does not fit the tokens, or
        there are more queries than keys.

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

    def __init__(
        self, width: int | None = None, *, n_class_tokens: int = 0, scale: float | None = None
    ) -> None:
        super().__init__(width, n_class_tokens, scale)

    def near(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows == 0) | (columns == 0)
