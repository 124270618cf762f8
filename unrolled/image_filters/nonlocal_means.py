"""Non-local means as an image layer: attention between the overlapping patches of an image."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Positive, check_count, check_positive, map_query_blocks, recomputed
from ..kernel_smoothing import gaussian_attention, squared_distances


def nonlocal_means_attention(
    image: Tensor,
    values: Tensor | None = None,
    *,
    h: Tensor | float,
    patch_size: int = 5,
    patch_distance: int | None = 6,
    sigma: float = 0.0,
) -> Tensor:
    """Average pixels with weights from the likeness of the patches of an image.

    ``u_i = sum_j w_ij v_j / sum_j w_ij`` with ``w_ij = exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)`` and
    ``d_ij^2`` the mean squared difference of the patches around i and j. As attention: queries and
    keys are the flattened patches, values the pixels, those of the image by default. The whole
    image without noise correction is one call of fused attention; otherwise memory is O(n_pixels *
    (2 patch_distance + 1)), or O(block * n_pixels) for the whole image. The `mask`, maps and
    volumes of `twinsolve.solvers.nonlocal_means` have no twin here: a mask that hides keys leaves
    out holes as j, and not in the patches of others.

    Parameters
    ----------
    image : Tensor of shape (batch, channels, height, width)
    values : Tensor of shape (batch, n_values, height, width), optional
        What is averaged; None is the image.
    h : float or Tensor of shape ()
        Decay > 0, in grey levels.
    patch_size : int, default=5
        In pixels; even patches reach one pixel further down and right.
    patch_distance : int or None, default=6
        Half width of the search window, clipped to the image. None is the whole image.
    sigma : float, default=0.0
        Noise level that the distances are corrected for.

    Returns
    -------
    Tensor of the shape of the values

    References
    ----------
    EQUATIONS SE-8, IF-14, IF-14w, FF-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import nonlocal_means_attention
    >>> image = torch.ones(1, 1, 8, 8)
    >>> torch.allclose(nonlocal_means_attention(image, h=0.1, patch_size=3), image)
    True
    """
    values = image if values is None else values
    border = ((patch_size - 1) // 2, patch_size // 2)
    padded = F.pad(image, 2 * border, mode="reflect") if patch_size > 1 else image
    if patch_distance is not None:
        wide = torch.promote_types(values.dtype, torch.float32)
        wide_inputs = values.to(wide), padded.to(wide)
        averaged = _average_windows(*wide_inputs, h, patch_size, patch_distance, sigma)
        return averaged.to(values.dtype)
    # (batch, 1, pixels, channels * patch_size^2)
    patches = F.unfold(padded, patch_size).mT[:, None]
    pixels = values.flatten(2).mT[:, None]  # (batch, 1, pixels, channels)
    if sigma == 0:
        bandwidth = h * (patches.shape[-1] / 2) ** 0.5
        smoothed = gaussian_attention(patches, patches, pixels, bandwidth=bandwidth)
    else:
        smoothed = _correct_distances(patches, pixels, h, sigma)
    return smoothed[:, 0].mT.reshape(values.shape)


def _correct_distances(patches: Tensor, pixels: Tensor, h: Tensor | float, sigma: float) -> Tensor:
    """Average with weights ``exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)``, in blocks of patches."""

    def block(rows: Tensor, start: int) -> Tensor:
        logits = (
            -(squared_distances(rows, patches) / patches.shape[-1] - 2 * sigma**2).clamp(min=0)
            / h
            / h
        )
        return torch.softmax(logits, dim=-1) @ pixels

    return map_query_blocks(block, patches)


def _average_windows(
    values: Tensor,
    padded: Tensor,
    h: Tensor | float,
    patch_size: int,
    patch_distance: int,
    sigma: float,
) -> Tensor:
    """Average over windows: a loop over vertical offsets, all horizontal offsets at once."""
    height, width = values.shape[-2:]
    ty, tx = min(patch_distance, height - 1), min(patch_distance, width - 1)
    frame = (tx, tx, ty, ty)
    wide, pixels = F.pad(padded, frame), F.pad(values, frame)
    inside = F.pad(torch.ones_like(values[:1, :1]), frame)

    def row(padded: Tensor, wide: Tensor, pixels: Tensor, dy: int) -> tuple[Tensor, Tensor]:
        shifted = _shift_row(wide, dy, padded.shape)
        squares = (padded[..., None, :] - shifted).square().mean(dim=1).transpose(1, 2)
        distance = F.avg_pool2d(squares, patch_size, stride=1)
        weights = torch.exp(-(distance - 2 * sigma**2).clamp(min=0) / h / h)
        weights = weights * _shift_row(inside, dy, values.shape)[:, 0].transpose(1, 2)
        # (batch, channels, shift, height, width)
        shifted = _shift_row(pixels, dy, values.shape).permute(0, 1, 3, 2, 4)
        return (weights[:, None] * shifted).sum(dim=2), weights.sum(dim=1, keepdim=True)

    total, mass = torch.zeros_like(values), torch.zeros_like(values[:, :1])
    for dy in range(2 * ty + 1):
        part = recomputed(row, padded, wide, pixels, dy)
        total, mass = total + part[0], mass + part[1]
    return total / mass


def _shift_row(wide: Tensor, dy: int, shape: torch.Size) -> Tensor:
    """Return x at offset dy and all horizontal offsets: (batch, channels, height, offset, w)."""
    return wide[..., dy : dy + shape[-2], :].unfold(-1, shape[-1], 1)


class NonLocalMeansAttention(nn.Module):
    """Non-local means as a layer on images, with the decay h learnable.

    See `nonlocal_means_attention` for the formula; defaults are those of `solvers.nonlocal_means`.
    Pixels are tokens; overlapping reflect-padded patches around them are the queries and keys.

    Parameters
    ----------
    h : float, optional
        Decay of the weights in grey levels, > 0. None is ``0.8 * sigma``, or 0.1 if sigma is 0.
    patch_size : int, default=5
        In pixels; even patches reach one pixel further down and right.
    patch_distance : int or None, default=6
        Half width of the search window; None is the whole image.
    sigma : float, default=0.0
        Noise level in grey levels that the patch distances are corrected for.
    learnable : bool, default=False
        Train h (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or an image has not four dimensions or is smaller than half a
        patch.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14, IF-14w.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import NonLocalMeansAttention
    >>> layer = NonLocalMeansAttention(0.2, patch_size=3, patch_distance=None)
    >>> layer(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2, 1, 16, 16])
    """

    def __init__(
        self,
        h: float | None = None,
        *,
        patch_size: int = 5,
        patch_distance: int | None = 6,
        sigma: float = 0.0,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(patch_size, "patch_size", 1)
        if patch_distance is not None:
            check_count(patch_distance, "patch_distance", 0)
        self.patch_size = patch_size
        self.patch_distance = patch_distance
        self.sigma = check_positive(sigma, "sigma", allow_zero=True)
        h = (0.8 * self.sigma or 0.1) if h is None else h
        self.h = Positive(h, name="h", learnable=learnable, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Return h to its value at construction."""
        self.h.reset_parameters()

    def forward(self, image: Tensor, values: Tensor | None = None) -> Tensor:
        """Denoise images of shape (batch, channels, height, width), or average other values."""
        small = image.ndim != 4 or min(image.shape[-2:]) <= self.patch_size // 2
        if small or not image.is_floating_point():
            raise ValueError(
                f"image: must be floating point (batch, channels, height, width) with sides over "
                f"{self.patch_size // 2} pixels, got {image.dtype} {tuple(image.shape)}"
            )
        return nonlocal_means_attention(
            image,
            values,
            h=self.h().to(image.dtype),
            patch_size=self.patch_size,
            patch_distance=self.patch_distance,
            sigma=self.sigma,
        )

    def extra_repr(self) -> str:
        return (
            f"patch_size={self.patch_size}, patch_distance={self.patch_distance}, "
            f"sigma={self.sigma:.4g}"
        )
