"""Each patch's most similar ones in a window around it, and sums over these."""

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.no_grad()
def similar_patches(images: Tensor, patch_size: int, window: int, n_similar: int) -> Tensor:
    """Indices of the patches closest to each patch, itself among them, in rows of `patch_rows`.

    Parameters
    ----------
    images : Tensor of shape (batch, channels, height, width)
    patch_size : int
    window : int
        Most pixels between the places of two patches along an axis, >= 0.
    n_similar : int
        Of at least as many that the smallest window holds.

    Returns
    -------
    Tensor of int64 of shape (n_patches, n_similar)
        The closest by squared distance, in no order. A gradient does not flow through a choice.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.similar_patches import similar_patches
    >>> image = torch.tensor([[0.0, 0.0, 5.0, 1.0, 1.0]])[None, None].expand(1, 1, 2, 5)
    >>> similar_patches(image, 2, 3, 1).flatten()
    tensor([0, 1, 2, 3])
    """
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    height, width = wide.shape[-2:]
    down, across = height - patch_size + 1, width - patch_size + 1
    ty, tx = min(window, down - 1), min(window, across - 1)
    padded = F.pad(wide, (tx, tx, ty, ty))
    place = torch.arange(across, device=wide.device)
    shift = torch.arange(-tx, tx + 1, device=wide.device)
    beside = (place + shift[:, None] < 0) | (place + shift[:, None] >= across)
    distances = []
    for dy in range(-ty, ty + 1):
        # (batch, channels, height, shift, width)
        moved = padded[..., ty + dy : ty + dy + height, :].unfold(-1, width, 1)
        squares = (wide[..., None, :] - moved).square().sum(dim=1).transpose(1, 2)
        distance = _box_sums(_box_sums(squares, patch_size, -1), patch_size, -2)
        row = torch.arange(down, device=wide.device)[:, None] + dy
        outside = beside[:, None] | (row < 0) | (row >= down)
        # Of an image that is not finite no patch is near another one, but all are inside.
        far = torch.finfo(distance.dtype).max
        distance = distance.nan_to_num(nan=far, posinf=far)
        distances.append(distance.masked_fill(outside, torch.inf))
    # (batch, down, across, shifts)
    all_distances = torch.cat(distances, dim=1).permute(0, 2, 3, 1)
    best = all_distances.topk(n_similar, largest=False, sorted=False).indices
    best = best.reshape(-1, n_similar)
    offset = (best // (2 * tx + 1) - ty) * across + best % (2 * tx + 1) - tx
    return torch.arange(len(best), device=wide.device)[:, None] + offset


def _box_sums(x: Tensor, size: int, dim: int) -> Tensor:
    """Sums over windows of `size` entries along an axis.

    They are sums of sums over 1, 2, 4, ... entries, rounded alike at all places and in all tiles of
    an image, and no digits cancel, as they would between sums from the border on.
    """
    n = x.shape[dim] - size + 1
    total, done = torch.zeros_like(x.narrow(dim, 0, n)), 0
    for power in range(size.bit_length()):
        length = 1 << power
        if size & length:
            total, done = total + x.narrow(dim, done, n), done + length
        if 2 * length <= size:
            kept = x.shape[dim] - length
            x = x.narrow(dim, 0, kept) + x.narrow(dim, length, kept)
    return total


class Bags(NamedTuple):
    """For each row, which rows to add up: `members` from one of the `starts` to the next."""

    members: Tensor
    starts: Tensor

    def sums(self, x: Tensor) -> Tensor:
        """The sum over each bag of the rows of x."""
        return F.embedding_bag(self.members, x, self.starts, mode="sum")


class Similar(NamedTuple):
    """The patches similar to each, and those that each is similar to."""

    forth: Bags
    back: Bags

    @classmethod
    def of(cls, indices: Tensor) -> Self:
        """From indices of shape (n, n_similar)."""
        n, k = indices.shape
        flat = indices.flatten()
        counts = torch.bincount(flat, minlength=n)
        starts = torch.arange(0, n * k, k, device=indices.device)
        back = Bags(flat.argsort(stable=True) // k, counts.cumsum(0) - counts)
        return cls(Bags(flat, starts), back)

    @classmethod
    def around(cls, images: Tensor, patch_size: int, window: int, n_similar: int) -> Self:
        """Those of `similar_patches`, fewer where the window of a corner holds fewer."""
        fewest = math.prod(min(window, side - patch_size) + 1 for side in images.shape[-2:])
        return cls.of(similar_patches(images, patch_size, window, min(n_similar, fewest)))

    def sums(self, x: Tensor) -> Tensor:
        """The sum over each row's similar ones of the rows of x."""
        total: Tensor = _Sums.apply(x, self.forth, self.back)
        return total

    def transposed_sums(self, x: Tensor) -> Tensor:
        """The sum over the rows that each row is similar to: the transpose of `sums`."""
        total: Tensor = _Sums.apply(x, self.back, self.forth)
        return total

    @property
    def indices(self) -> Tensor:
        """The rows similar to each, of shape (n, n_similar)."""
        return self.forth.members.reshape(-1, self.n_similar)

    @property
    def n_similar(self) -> int:
        """How many are similar to each."""
        return len(self.forth.members) // max(len(self.forth.starts), 1)


class _Sums(torch.autograd.Function):
    """Sums over bags, whose backward pass is the sums over the reversed ones: no scattering."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Bags, back: Bags) -> Tensor:
        ctx.bags = (back, forth)
        return forth.sums(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Sums.apply(gradient, *ctx.bags), None, None
