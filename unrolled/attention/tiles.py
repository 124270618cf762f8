"""Tiles: rows of some heads whose numbers, one for each key, are computed at once."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..block_size import block_size

_CPU_ENTRIES, _GPU_ENTRIES = 2**18, 2**24


class Tile(NamedTuple):
    """Some rows of some heads, and how many keys these rows can see."""

    heads: slice
    rows: slice
    n_keys: int

    def of(self, x: Tensor) -> Tensor:
        """Return the part of x, (..., heads, queries, width), for this tile."""
        return x[..., self.heads, self.rows, :]

    def keys(self, x: Tensor) -> Tensor:
        """Return the keys of x that this tile sees."""
        return x[self.heads, : self.n_keys]

    def pairs(self, mask: Tensor) -> Tensor:
        """Return the part of a mask (heads or 1, queries or 1, keys) for this tile."""
        heads = self.heads if len(mask) > 1 else slice(None)
        rows = self.rows if mask.shape[1] > 1 else slice(None)
        return mask[heads, rows, : self.n_keys]


def split_tiles(q: Tensor, k: Tensor, offset: int | None) -> Iterator[Tile]:
    """Yield tiles that fit a core's cache, or are large enough to occupy a GPU.

    Parameters
    ----------
    q, k : Tensor of shape (heads, n_queries, d), (heads, n_keys, d)
    offset : int, optional
        Index of the first query among the keys if causal.
    """
    (n_heads, n_rows, _), n_keys = q.shape, k.shape[1]
    entries = _CPU_ENTRIES if q.device.type == "cpu" else _GPU_ENTRIES
    rows = block_size(max(1, min(n_rows, entries // max(1, n_keys))))
    heads = block_size(max(1, entries // max(1, n_rows * n_keys)))
    for head in range(0, n_heads, heads):
        for start in range(0, n_rows, rows):
            stop = min(start + rows, n_rows)
            n_seen = n_keys if offset is None else stop + offset
            yield Tile(slice(head, min(head + heads, n_heads)), slice(start, stop), n_seen)


class Scratch:
    """Memory for the numbers of a tile, which those of the next overwrite: fresh memory is slow."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def like(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, with any content."""
        return self.empty(x, *x.shape)

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """Return a tensor of this shape and the dtype of `like`, with any content."""
        size = torch.Size(shape).numel()
        if self.memory is None or len(self.memory) < size:
            self.memory = like.new_empty(size)
        return self.memory[:size].view(shape)

    def products(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a b^T`` of each head."""
        return torch.bmm(a, b.mT, out=self.empty(a, *a.shape[:2], b.shape[1]))


def flatten_heads(x: Tensor) -> Tensor:
    """Return x with all leading axes as one: (heads, rows, width)."""
    return x.reshape(x.shape[:-2].numel(), *x.shape[-2:])


def flatten_mask(mask: Tensor | None, batch: torch.Size) -> Tensor | None:
    """Return a mask as (heads or 1, n_queries or 1, n_keys)."""
    if mask is None:
        return None
    if mask.shape[:-2].numel() > 1:
        mask = mask.expand(*batch, *mask.shape[-2:])
    return flatten_heads(mask)


def hide_(
    logits: Tensor, tile: Tile, mask: Tensor | None, offset: int | None, unit: float = 1.0
) -> Tensor:
    """Apply a mask, and with an offset the causal one, to the logits of a tile in place.

    An additive mask is multiplied by `unit`.
    """
    if mask is not None:
        part = tile.pairs(mask)
        if part.dtype == torch.bool:
            logits.masked_fill_(~part, -torch.inf)
        else:
            logits.add_(part, alpha=unit)
    if offset is not None:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits.masked_fill_(later.triu_(tile.rows.start + offset + 1), -torch.inf)
    return logits
