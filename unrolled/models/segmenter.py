"""Classes of pixels from the tokens of a vision transformer."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_count
from .blocks import xavier_
from .vision_transformer import VisionTransformer


class Segmenter(nn.Module):
    """Classify the pixels of an image by the tokens of a vision transformer.

    Each token of a `VisionTransformer` without class token gives, by a linear map, the scores of
    ``upscale x upscale`` squares of its patch, which are interpolated to the pixels. With
    ``upscale=1`` it is the linear decoder of Strudel et al.

    Parameters
    ----------
    n_classes : int
    image_size : pair of int
        Height and width, multiples of `patch_size`.
    patch_size : int, default=8
    upscale : int, default=4
        Squares along a side of a patch, >= 1.
    dim, depth, num_heads : int, default=96, 6, 4
        Sizes of the transformer.
    in_channels : int, default=3
    **options
        ``operator``, ``residual``, ``dropout`` and all else that `VisionTransformer` takes, but
        ``pool``.

    Attributes
    ----------
    backbone : VisionTransformer
    head : nn.Linear

    Raises
    ------
    ValueError
        If sizes do not fit, or an option is refused by `VisionTransformer`.

    References
    ----------
    Strudel et al., *Segmenter: Transformer for semantic segmentation* (2021); EQUATIONS IF-GRC.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import Segmenter
    >>> Segmenter(11, (16, 24), dim=16, depth=1)(torch.rand(2, 3, 16, 24)).shape
    torch.Size([2, 11, 16, 24])
    """

    def __init__(
        self,
        n_classes: int,
        image_size: tuple[int, int],
        *,
        patch_size: int = 8,
        upscale: int = 4,
        dim: int = 96,
        depth: int = 6,
        num_heads: int = 4,
        in_channels: int = 3,
        **options: Any,
    ) -> None:
        super().__init__()
        self.n_classes = check_count(n_classes, "n_classes", 2)
        self.upscale = check_count(upscale, "upscale", 1)
        self.image_size, self.patch_size = (image_size[0], image_size[1]), patch_size
        self.backbone = VisionTransformer(
            self.image_size, patch_size, in_channels, 0, dim, depth, num_heads, pool="mean",
            **options,
        )  # fmt: skip
        self.head = nn.Linear(dim, n_classes * upscale**2)
        xavier_(self.head)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.backbone.reset_parameters()
        xavier_(self.head)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of shape (batch, n_classes, height, width), of images of `image_size`."""
        scores = self.head(
            self.backbone.forward_features(images)
        ).mT  # (batch, classes u^2, tokens)
        squares = F.pixel_shuffle(scores.unflatten(-1, self.backbone.grid), self.upscale)
        return F.interpolate(squares, self.image_size, mode="bilinear", align_corners=False)

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}, patch_size={self.patch_size}, upscale={self.upscale}"
