"""Windows on a grid of tokens: cutting, joining, the mask of shifted ones, and their context."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import Context


@dataclass(frozen=True)
class Windows:
    """Windows on a grid of tokens that is rolled by a shift before it is cut.

    Parameters
    ----------
    grid, window, shift : pair of int
        Heights and widths; shifts are smaller than a window. Where windows do not divide the rolled
        grid, they hold padding at its end.

    References
    ----------
    Liu et al., *Swin Transformer* (2021).
    """

    grid: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int] = (0, 0)

    @property
    def padding(self) -> tuple[int, int]:
        """Numbers of rows and of columns that the windows have beyond the grid."""
        height, width = (-n % w for n, w in zip(self.grid, self.window, strict=True))
        return height, width

    def split(self, x: Tensor) -> Tensor:
        """Cut (batch, height, width, dim) into (batch * n_windows, window tokens, dim)."""
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
        # (batch, rows, window height, columns, window width, dim)
        x = x.unflatten(2, (-1, self.window[1])).unflatten(1, (-1, self.window[0]))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        rows, columns = (-(-n // w) for n, w in zip(self.grid, self.window, strict=True))
        # (batch, rows, columns, window height, window width, dim)
        x = x.unflatten(1, self.window).unflatten(0, (-1, rows, columns))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        x = x[:, : self.grid[0], : self.grid[1]]
        return x.roll(self.shift, dims=(1, 2)) if any(self.shift) else x

    def hidden_tokens(self, batch: int, device: torch.device) -> Tensor | None:
        """Mask (batch * n_windows, tokens), True for padding; None without any."""
        if not any(self.padding):
            return None
        padding = (
            replace(self, shift=(0, 0)).split(torch.ones(1, *self.grid, 1, device=device)) == 0
        )
        return padding[..., 0].repeat(batch, 1)

    def hidden_pairs(self, batch: int, num_heads: int, device: torch.device) -> Tensor | None:
        """Mask (batch * n_windows * heads, tokens, tokens), True for pairs that the roll joins.

        Rolling brings the first rows and columns to the end, into windows with tokens far from
        them. None without a shift.
        """
        if not any(self.shift):
            return None
        rolled = [
            torch.arange(n, device=device) >= n - s if s else torch.zeros(n, device=device) > 0
            for n, s in zip(self.grid, self.shift, strict=True)
        ]
        part = 2 * rolled[0][:, None].long() + rolled[1].long()
        unshifted = replace(self, shift=(0, 0))
        part = unshifted.split(part[None, :, :, None])[..., 0]
        hidden = part[:, :, None] != part[:, None, :]
        n_windows, n_tokens = part.shape
        shape = (batch, n_windows, num_heads, n_tokens, n_tokens)
        return hidden[None, :, None].expand(shape).flatten(0, 2)

    def enter(self, context: Context, batch: int, num_heads: int) -> Context:
        """Cut a context's tensors, (batch, height, width, dim), to the context of the windows."""

        def values(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            return self.split(x).unflatten(-1, (num_heads, -1)).transpose(1, 2)

        positions, first = context.positions, context.first_tokens
        return Context(
            positions=None if positions is None else self.split(positions).repeat(batch, 1, 1),
            grid=self.window,
            first_values=values(context.first_values),
            previous_values=values(context.previous_values),
            first_tokens=None if first is None else self.split(first),
            history=tuple(self.split(x) for x in context.history),
        )

    def join_values(self, values: Tensor | None) -> Tensor | None:
        """Join (batch * n_windows, heads, tokens, head_dim) to (batch, height, width, dim)."""
        return None if values is None else self.join(values.transpose(1, 2).flatten(2))
