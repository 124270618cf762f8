"""Non-local means with a learned embedding of patches."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Positive, check_count, check_positive, without_autocast
from .tiles import centred, tiled_average


def patch_identity(patch_size: int, channels: int = 1, *, patch_weights: str = "uniform") -> Tensor:
    """Embedding in which distances are those of `twinsolve.solvers.nonlocal_means`.

    Entry ``(c p^2 + k p + l)`` of the embedding is the pixel ``(k, l)`` of channel c, times the
    root of its weight in the mean of squared differences.

    Parameters
    ----------
    patch_size : int
    channels : int, default=1
    patch_weights : {"uniform", "gaussian"}, default="uniform"
        As in `twinsolve.solvers.nonlocal_means`.

    Returns
    -------
    Tensor of shape (channels * patch_size^2, channels, patch_size, patch_size)
        In float64.

    Raises
    ------
    ValueError
        On unknown `patch_weights`.

    References
    ----------
    EQUATIONS IF-14.

    Examples
    --------
    >>> from twinsolve.unrolled.image_filters import patch_identity
    >>> patch_identity(3).square().sum().item()
    1.0
    """
    if patch_weights == "uniform" or patch_size == 1:
        taps = torch.ones(patch_size, dtype=torch.float64)
    elif patch_weights == "gaussian":
        taps = torch.exp(-2 * torch.linspace(-1, 1, patch_size, dtype=torch.float64) ** 2)
    else:
        raise ValueError(f"patch_weights: must be 'uniform' or 'gaussian', got {patch_weights!r}")
    taps = taps / taps.sum()
    roots = (torch.outer(taps, taps).flatten().repeat(channels) / channels).sqrt()
    return torch.diag(roots).unflatten(1, (channels, patch_size, patch_size))


class EmbeddedMeans(nn.Module):
    """Non-local means whose patches are compared after a learned linear map.

    ::

        u_i = sum_j w_ij v_j / sum_j w_ij
        w_ij = exp(-max(|W (p_i - p_j)|^2 - 2 noise^2, 0) / h^2)

    with p_i the patch of a guide image around i and j in the window of i, clipped to the image. At
    first W holds the roots of the patch's weights, and this is `twinsolve.solvers.nonlocal_means`
    with ``sigma=noise``. Memory is linear in the number of pixels, see `tiled_average`.

    Parameters
    ----------
    h : float, default=0.1
        Decay of the weights in grey levels at first, > 0.
    noise : float, default=0.0
        Noise level of the guide in grey levels at first, >= 0, that distances are corrected for.
    patch_size : int, default=5
        In pixels; even patches reach one pixel further down and right.
    patch_distance : int, default=6
        Half width of the search window.
    patch_weights : {"uniform", "gaussian"}, default="uniform"
        Weights of the pixels of a patch at first.
    channels : int, default=1
        Number of channels of the guide.

    Attributes
    ----------
    embedding : Parameter of shape (channels * patch_size^2, channels, patch_size, patch_size)
        W.
    h : Positive
        Its logarithm is learned.
    noise : Parameter of shape ()

    Raises
    ------
    ValueError
        If a number is out of range, or an image does not fit.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14, IF-14w.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import EmbeddedMeans
    >>> EmbeddedMeans(0.2, patch_size=3)(torch.rand(2, 1, 16, 20)).shape
    torch.Size([2, 1, 16, 20])
    """

    def __init__(
        self,
        h: float = 0.1,
        *,
        noise: float = 0.0,
        patch_size: int = 5,
        patch_distance: int = 6,
        patch_weights: str = "uniform",
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.patch_size = check_count(patch_size, "patch_size", 1)
        self.patch_distance = check_count(patch_distance, "patch_distance", 0)
        self.patch_weights = patch_weights
        self.channels = check_count(channels, "channels", 1)
        self.h = Positive(
            check_positive(h, "h"), name="h", learnable=True, device=device, dtype=dtype
        )
        noise = check_positive(noise, "noise", allow_zero=True)
        self.noise = nn.Parameter(torch.full((), noise, device=device, dtype=dtype))
        W = patch_identity(patch_size, channels, patch_weights=patch_weights)
        self.embedding = nn.Parameter(W.to(device, dtype or torch.get_default_dtype()))

    def forward(self, guide: Tensor, values: Tensor | None = None) -> Tensor:
        """Average the values with the weights of the guide; by default the guide itself.

        Both are of shape (batch, channels, height, width).
        """
        small = guide.ndim != 4 or min(guide.shape[-2:]) <= self.patch_size // 2
        if small or guide.shape[1] != self.channels or not guide.is_floating_point():
            raise ValueError(
                f"images: must be floating point (batch, {self.channels}, height, width) with "
                f"sides over {self.patch_size // 2} pixels, got {guide.dtype} "
                f"{tuple(guide.shape)}"
            )
        values = guide if values is None else values
        border = ((self.patch_size - 1) // 2, self.patch_size // 2)
        with without_autocast(guide):
            planes, h = centred(guide), self.h()
            padded = F.pad(planes, 2 * border, mode="reflect") if self.patch_size > 1 else planes
            averaged = tiled_average(
                F.conv2d(padded, (self.embedding / h).to(planes.dtype)),
                values.to(planes.dtype),
                patch_distance=self.patch_distance,
                offset=2 * (self.noise / h).square().to(planes.dtype),
            )
        return averaged.to(values.dtype)

    def extra_repr(self) -> str:
        return (
            f"patch_size={self.patch_size}, patch_distance={self.patch_distance}, "
            f"patch_weights={self.patch_weights!r}, channels={self.channels}"
        )
