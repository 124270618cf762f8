"""ConvMixer, the convolutional counterpart of a transformer, with skip connections or without."""

import torch
from torch import Tensor, nn

from ..attention import check_count, check_input
from .blocks import reset_children, xavier_
from .tokens import class_head


class MixerLayer(nn.Module):
    """A depthwise convolution over space, with or without a skip, then a pointwise one."""

    def __init__(
        self,
        dim: int,
        kernel_size: int,
        *,
        skip: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.skip = skip
        self.spatial = nn.Conv2d(
            dim, dim, kernel_size, groups=dim, padding="same", device=device, dtype=dtype
        )
        self.spatial_norm = nn.BatchNorm2d(dim, device=device, dtype=dtype)
        self.pointwise = nn.Conv2d(dim, dim, 1, device=device, dtype=dtype)
        self.pointwise_norm = nn.BatchNorm2d(dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.spatial_norm(nn.functional.gelu(self.spatial(x)))
        x = x + y if self.skip else y
        return self.pointwise_norm(nn.functional.gelu(self.pointwise(x)))

    def extra_repr(self) -> str:
        return f"skip={self.skip}"


class ConvMixer(nn.Module):
    """ConvMixer: patches, then depthwise and pointwise convolutions, each with GELU and batch norm.

    Each layer is ``x <- x + norm(gelu(spatial(x)))`` (without ``x +`` if `skip` is off), then
    ``x <- norm(gelu(pointwise(x)))``; the head reads the mean over positions.

    Parameters
    ----------
    dim, depth, kernel_size, patch_size : int
    num_classes : int
        0 leaves the head out.
    skip : bool, default=True
        False removes the skip around the depthwise convolution.
    in_channels : int, default=3

    Raises
    ------
    ValueError
        If a size is out of range.

    References
    ----------
    Trockman and Kolter, *Patches Are All You Need?* (2022).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import ConvMixer
    >>> ConvMixer(16, 2, 3, 2, 10, in_channels=1)(torch.randn(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        kernel_size: int,
        patch_size: int,
        num_classes: int,
        skip: bool = True,
        *,
        in_channels: int = 3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (
            ("dim", dim),
            ("kernel_size", kernel_size),
            ("patch_size", patch_size),
            ("in_channels", in_channels),
        ):
            check_count(size, name, 1)
        self.patch_embedding = nn.Conv2d(
            in_channels, dim, patch_size, stride=patch_size, device=device, dtype=dtype
        )
        self.norm = nn.BatchNorm2d(dim, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            MixerLayer(dim, kernel_size, skip=skip, device=device, dtype=dtype)
            for _ in range(check_count(depth, "depth", 0))
        )
        self.head = class_head(dim, num_classes, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew: the convolutions as PyTorch does, the head Xavier."""
        reset_children(self)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the features (batch, dim, height, width) of the last layer.

        Raises
        ------
        ValueError
            If images have another number of channels or are not a multiple of the patches.
        """
        channels, patch = self.patch_embedding.in_channels, self.patch_embedding.kernel_size
        sizes = ("batch", channels, "height", "width")
        check_input(images, "images", sizes, self.patch_embedding.weight)
        if images.shape[2] % patch[0] or images.shape[3] % patch[1]:
            raise ValueError(
                f"images: must be (batch, {channels}, height, width) with sides that are multiples "
                f"of {patch[0]}, got {tuple(images.shape)}"
            )
        x = self.norm(nn.functional.gelu(self.patch_embedding(images)))
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores (batch, num_classes) of images (batch, channels, height, width)."""
        return self.head(self.forward_features(images).mean(dim=(2, 3)))
