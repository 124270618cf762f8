"""Overlapping patches of images as rows of a matrix, and back by averaging."""

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
    >>> from twinsolve.unrolled.sparse_coding.patch_rows import patch_rows
    >>> patch_rows(torch.arange(6.0).reshape(1, 1, 2, 3), 2)
    tensor([[0., 1., 3., 4.],
            [1., 2., 4., 5.]])
    """
    windows = images.unfold(2, patch_size, 1).unfold(3, patch_size, 1)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * patch_size**2)


def average_patches(rows: Tensor, shape: torch.Size) -> Tensor:
    """Images of the shape given whose pixels are the means over the patches that hold them.

    Parameters
    ----------
    rows : Tensor of shape (n_patches, channels * patch_size^2)
        In the order of `patch_rows`.
    shape : torch.Size
        (batch, channels, height, width).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.patch_rows import average_patches, patch_rows
    >>> image = torch.arange(6.0).reshape(1, 1, 2, 3)
    >>> torch.equal(average_patches(patch_rows(image, 2), image.shape), image)
    True
    """
    batch, channels, height, width = shape
    size = round((rows.shape[1] / channels) ** 0.5)
    total = F.fold(rows.reshape(batch, -1, rows.shape[1]).mT, (height, width), size)
    down, across = (_covers(side, size, rows) for side in (height, width))
    return total / (down[:, None] * across)


def _covers(side: int, size: int, like: Tensor) -> Tensor:
    """How many of the windows of `size` pixels hold each of `side` pixels."""
    place = torch.arange(side, device=like.device, dtype=like.dtype)
    reach = torch.minimum(place, side - 1 - place) + 1
    return reach.clamp(max=min(size, side - size + 1))


def split_means(rows: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Patches without the means of their channels, and these, in the shape of `rows`."""
    planes = rows.unflatten(1, (channels, -1))
    means = planes.mean(dim=2, keepdim=True)
    return (planes - means).flatten(1), means.expand_as(planes).flatten(1)


def check_patched(images: Tensor, channels: int, patch_size: int) -> None:
    """Refuse all but floating point images with so many channels, a patch or more in size.

    Raises
    ------
    ValueError
        With the shape that came.
    """
    fits = images.ndim == 4 and images.shape[1] == channels
    if not (fits and min(images.shape[-2:]) >= patch_size and images.is_floating_point()):
        raise ValueError(
            f"images: must be floating point (batch, {channels}, height, width) with sides of at "
            f"least {patch_size} pixels, got {images.dtype} {tuple(images.shape)}"
        )
