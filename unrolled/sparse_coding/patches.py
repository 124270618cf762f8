"""Patches of images: rows of a matrix, dictionaries for them, and the patches similar to each."""

import math
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def patch_rows(images: Tensor, patch_size: int) -> Tensor:
    """All overlapping patches that lie within the images, one a row, image after image.

    Parameters
    ----------
    images : Tensor of shape (batch, channels, height, width)
    patch_size : int
        Side in pixels, at most that of the images.

    Returns
    -------
    Tensor of shape (n_patches, channels * patch_size^2)
        ``batch (height - patch_size + 1) (width - patch_size + 1)`` rows, from top left to bottom
        right.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.patches import patch_rows
    >>> patch_rows(torch.arange(6.0).reshape(1, 1, 2, 3), 2)
    tensor([[0., 1., 3., 4.],
            [1., 2., 4., 5.]])
    """
    windows = images.unfold(2, patch_size, 1).unfold(3, patch_size, 1)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * patch_size**2)


def average_patches(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return images (batch, channels, height, width) in which patches are averaged.

    The patches are `rows`, in the order of `patch_rows`. Each pixel is the mean over the patches
    that contain it.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.patches import average_patches, patch_rows
    >>> image = torch.arange(6.0).reshape(1, 1, 2, 3)
    >>> torch.equal(average_patches(patch_rows(image, 2), image.shape), image)
    True
    """
    batch, channels, height, width = shape
    size = round((rows.shape[1] / channels) ** 0.5)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))  # sums overflow in 16 bits
    total = F.fold(wide.reshape(batch, -1, rows.shape[1]).mT, (height, width), size)
    down, across = (_count_covers(side, size, wide) for side in (height, width))
    return (total / (down[:, None] * across)).to(rows.dtype)


def _count_covers(side: int, size: int, like: Tensor) -> Tensor:
    """Return, for each of `side` pixels, how many windows of `size` pixels contain it."""
    place = torch.arange(side, device=like.device, dtype=like.dtype)
    reach = torch.minimum(place, side - 1 - place) + 1
    return reach.clamp(max=min(size, side - size + 1))


def split_means(rows: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return patches minus the mean of each channel, and these means in the shape of `rows`."""
    planes = rows.unflatten(1, (channels, -1))
    means = planes.mean(dim=2, keepdim=True)
    centred = planes - means
    centred = centred - centred.mean(dim=2, keepdim=True)  # the mean of large numbers is rounded
    return centred.flatten(1), means.expand_as(planes).flatten(1)


def check_patched(images: Tensor, channels: int, patch_size: int) -> None:
    """Raise a ValueError unless images are floating point, with `channels` and room for a patch."""
    fits = images.ndim == 4 and images.shape[1] == channels
    if not (fits and min(images.shape[-2:]) >= patch_size and images.is_floating_point()):
        raise ValueError(
            f"images: must be floating point (batch, {channels}, height, width) with sides of at "
            f"least {patch_size} pixels, got {images.dtype} {tuple(images.shape)}"
        )


_PHOTOGRAPHS = Path(__file__).with_name("photograph_dictionary.npz")


def cosine_dictionary(patch_size: int, n_frequencies: int, channels: int = 1) -> Tensor:
    """Overcomplete DCT dictionary, that of `twinsolve.solvers.sparse_coding.dct_dictionary`.

    Examples
    --------
    >>> from twinsolve.unrolled.sparse_coding.patches import cosine_dictionary
    >>> cosine_dictionary(8, 11).shape
    torch.Size([120, 64])
    """
    place = torch.arange(patch_size, dtype=torch.float64) + 0.5
    frequency = torch.arange(n_frequencies, dtype=torch.float64)
    waves = torch.cos(torch.pi / n_frequencies * torch.outer(frequency, place))
    waves[1:] -= waves[1:].mean(dim=1, keepdim=True)
    return _repeat_in_channels(torch.kron(waves, waves)[1:], channels)


def photograph_dictionary(channels: int = 1) -> Tensor:
    """K-SVD dictionary of 128 unit atoms for 8 x 8 patches of photographs without their means.

    Learned by `twinsolve.solvers.ksvd` (``n_nonzero=6, n_iter=15, random_state=0``) from 15,512
    patches of 380 grey photographs without noise, the first of the 400 of 180 x 180 pixels that
    denoisers are often trained on. With several channels, each has its own copy of these atoms.

    Returns
    -------
    Tensor of shape (128 * channels, 64 * channels)

    References
    ----------
    Aharon, Elad and Bruckstein (2006); EQUATIONS IF-KSVD.

    Examples
    --------
    >>> from twinsolve.unrolled.sparse_coding.patches import photograph_dictionary
    >>> photograph_dictionary().shape
    torch.Size([128, 64])
    """
    with np.load(_PHOTOGRAPHS) as arrays:
        return _repeat_in_channels(torch.from_numpy(arrays["dictionary"]).double(), channels)


def _repeat_in_channels(atoms: Tensor, channels: int) -> Tensor:
    """Return unit atoms, copied for each channel and zero in the other channels."""
    atoms = atoms / torch.linalg.vector_norm(atoms, dim=1, keepdim=True)
    return torch.kron(torch.eye(channels, dtype=atoms.dtype), atoms)


@torch.no_grad()
def similar_patches(images: Tensor, patch_size: int, window: int, n_similar: int) -> Tensor:
    """For each patch, the indices in `patch_rows` of itself and of the closest others.

    Parameters
    ----------
    images : Tensor of shape (batch, channels, height, width)
    patch_size : int
    window : int
        Largest distance in pixels between two patches along an axis, >= 0.
    n_similar : int
        Number of patches chosen, at most the number that the smallest window holds.

    Returns
    -------
    Tensor of int64 of shape (n_patches, n_similar)
        The patch itself and the closest others by squared distance, unordered. Which of equally
        close ones are chosen depends on the device. No gradient flows through the choice.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.patches import similar_patches
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
        shifted = padded[..., ty + dy : ty + dy + height, :].unfold(-1, width, 1)
        squares = (wide[..., None, :] - shifted).square().sum(dim=1).transpose(1, 2)
        distance = _sum_boxes(_sum_boxes(squares, patch_size, -1), patch_size, -2)
        row = torch.arange(down, device=wide.device)[:, None] + dy
        outside = beside[:, None] | (row < 0) | (row >= down)
        # A distance that is not finite becomes the largest finite one: far, but not outside.
        far = torch.finfo(distance.dtype).max
        distance = distance.nan_to_num(nan=far, posinf=far)
        distances.append(distance.masked_fill(outside, torch.inf))
    # (batch, down, across, shifts)
    all_distances = torch.cat(distances, dim=1).permute(0, 2, 3, 1)
    all_distances[..., ty * (2 * tx + 1) + tx] = -1  # of the patch itself, before equal ones
    best = all_distances.topk(n_similar, largest=False, sorted=False).indices
    best = best.reshape(-1, n_similar)
    offset = (best // (2 * tx + 1) - ty) * across + best % (2 * tx + 1) - tx
    return torch.arange(len(best), device=wide.device)[:, None] + offset


def _sum_boxes(x: Tensor, size: int, dim: int) -> Tensor:
    """Sum over windows of `size` entries along an axis.

    Each sum is composed of sums over 1, 2, 4, ... entries. So rounding is the same at all places
    and in all tiles of an image, and no digits cancel, as they would between cumulative sums.
    """
    n = x.shape[dim] - size + 1
    total, done = torch.zeros_like(x.narrow(dim, 0, n)), 0
    for power in range(size.bit_length()):
        length = 1 << power
        if size & length:
            total, done = total + x.narrow(dim, done, n), done + length
        if 2 * length <= size:
            n_pairs = x.shape[dim] - length
            x = x.narrow(dim, 0, n_pairs) + x.narrow(dim, length, n_pairs)
    return total


class Bags(NamedTuple):
    """Sets of row indices: set i is `members` from ``starts[i]`` to before ``starts[i + 1]``."""

    members: Tensor
    starts: Tensor

    def sums(self, x: Tensor) -> Tensor:
        """Return the sum of the rows of x in each bag."""
        return F.embedding_bag(self.members, x, self.starts, mode="sum")


class Similar(NamedTuple):
    """For each patch, the patches similar to it (`forth`) and those it is similar to (`back`)."""

    forth: Bags
    back: Bags

    @classmethod
    def of(cls, indices: Tensor) -> Self:
        """Make both from indices of shape (n, n_similar): row i holds the patches similar to i."""
        n, k = indices.shape
        flat = indices.flatten()
        counts = torch.bincount(flat, minlength=n)
        starts = torch.arange(0, n * k, k, device=indices.device)
        forth = Bags(flat, starts)
        back = Bags(flat.argsort(stable=True) // k, counts.cumsum(0) - counts)
        return cls(forth, back)

    @classmethod
    def around(cls, images: Tensor, patch_size: int, window: int, n_similar: int) -> Self:
        """Make the bags of `similar_patches`, smaller if the window of a corner holds fewer."""
        fewest = math.prod(min(window, side - patch_size) + 1 for side in images.shape[-2:])
        return cls.of(similar_patches(images, patch_size, window, min(n_similar, fewest)))

    def sums(self, x: Tensor) -> Tensor:
        """Return, for each row, the sum of the rows of x that are similar to it."""
        total: Tensor = _BagSums.apply(x, self.forth, self.back)
        return total

    def transposed_sums(self, x: Tensor) -> Tensor:
        """Return, for each row, the sum of the rows of x that it is similar to."""
        total: Tensor = _BagSums.apply(x, self.back, self.forth)
        return total

    @property
    def indices(self) -> Tensor:
        """The rows similar to each row, of shape (n, n_similar)."""
        return self.forth.members.reshape(-1, self.n_similar)

    @property
    def n_similar(self) -> int:
        """Number of rows similar to each row."""
        return len(self.forth.members) // max(len(self.forth.starts), 1)


class _BagSums(torch.autograd.Function):
    """Sums over bags; the backward pass sums over the reversed bags and never scatters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Bags, back: Bags) -> Tensor:
        ctx.bags = (back, forth)
        return forth.sums(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _BagSums.apply(gradient, *ctx.bags), None, None
