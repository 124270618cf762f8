"""Classes of pixels from the tokens of a vision transformer."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_count
from ..boosting import GeneralizedResidual
from .blocks import xavier_
from .vision_transformer import VisionTransformer

_RESIDUALS: dict[str, Callable[[], nn.Module]] = {"generalized": GeneralizedResidual}


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
    operator : str, default="softmax"
        A name of `operator_names`.
    residual : {"generalized"} or None, default=None
        "generalized" makes the skip connections around attention `GeneralizedResidual`.
    dropout : float, default=0
        Dropout rate of the outputs of branches, in training.
    in_channels : int, default=3

    Attributes
    ----------
    backbone : VisionTransformer
    head : nn.Linear

    Raises
    ------
    ValueError
        If sizes do not fit, or there is no such operator or residual.

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
        operator: str = "softmax",
        residual: str | None = None,
        dropout: float = 0.0,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        if residual is not None and residual not in _RESIDUALS:
            raise ValueError(
                f"residual: must be among {list(_RESIDUALS)} or None, got {residual!r}"
            )
        self.n_classes = check_count(n_classes, "n_classes", 2)
        self.upscale = check_count(upscale, "upscale", 1)
        self.image_size, self.patch_size = (image_size[0], image_size[1]), patch_size
        self.dim, self.depth, self.num_heads = dim, depth, num_heads
        self.operator, self.residual = operator, residual
        self.dropout, self.in_channels = dropout, in_channels
        settings: dict[str, Any] = {} if residual is None else {"residual": _RESIDUALS[residual]}
        self.backbone = VisionTransformer(
            self.image_size, patch_size, in_channels, 0, dim, depth, num_heads,
            operator=operator, pool="mean", dropout=dropout, **settings,
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
        return (
            f"n_classes={self.n_classes}, patch_size={self.patch_size}, upscale={self.upscale}, "
            f"residual={self.residual!r}"
        )
