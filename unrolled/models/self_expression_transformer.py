"""A transformer whose layers are the ISTA steps of one self-expression problem."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import check_count, check_positive
from ..self_expression import UnrolledSelfExpression
from .blocks import reset_children, xavier_
from .tokens import SINUSOIDAL_SCALE, PatchEmbedding, Positions, class_head


class SelfExpressionTransformer(nn.Module):
    """Classify images by sparse codes of their patches in each other, one ISTA step a layer.

    The tokens ``X`` are normalised patch embeddings with positions. Each head has the features
    ``Z = X W_z`` and one problem ::

        min_{diag(C) = 0}  |Z - C Z|_F^2 + sum_i lam_i |c_i|_1,
        lam_i = 2 lam max_{j != i} |z_i . z_j|

    Layer t is one step on it, from the codes of the layer before and from ``C = 0`` at first ::

        C <- S_{s_t lam_t / 2}( C + s_t (Z - C Z) Z^T ),     then diag(C) <- 0

    with its own step length and penalty. After the last layer, ``X + concat_h(C X W_v) W_o`` is
    normalised, averaged over tokens, and mapped to class scores. In contrast, each layer of a
    `VisionTransformer` with ``operator="sparse_coding"`` starts at ``C = 0``, on new tokens.

    Parameters
    ----------
    image_size, patch_size : int or pair of int
        In pixels; patches tile the image.
    in_channels, num_classes, dim : int
    depth : int
        Layers, that is ISTA steps, >= 1.
    num_heads : int
    lam : float, default=0.1
        Penalty of all layers at first, relative to the one that makes a row of codes zero.
    position_scale : float, default=2**-0.5
        Standard deviation at which learned positions start.
    norm_eps : float, default=1e-6

    Attributes
    ----------
    features : nn.Module
        The map to ``Z``, (batch, num_heads, tokens, dim / num_heads).
    codes : UnrolledSelfExpression
        With `depth` iterations; its `n_iter` may be lowered to see what fewer layers find.

    Raises
    ------
    ValueError
        If a size is out of range, or `dim` is no multiple of `num_heads`.

    References
    ----------
    EQUATIONS SE-12, SE-15, SE-16, with the penalty of CL-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import SelfExpressionTransformer
    >>> model = SelfExpressionTransformer(8, 2, 1, 10, dim=16, depth=3, num_heads=2)
    >>> images = torch.rand(4, 1, 8, 8)
    >>> model(images).shape
    torch.Size([4, 10])
    >>> model.codes(model.features(model.tokens(images))).shape
    torch.Size([4, 2, 16, 16])
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        dim: int,
        depth: int,
        num_heads: int,
        *,
        lam: float = 0.1,
        position_scale: float = SINUSOIDAL_SCALE,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if check_count(dim, "dim", 1) % check_count(num_heads, "num_heads", 1):
            raise ValueError(f"dim: must be a multiple of num_heads={num_heads}, got {dim}")
        self.patch_embedding = PatchEmbedding(image_size, patch_size, in_channels, dim, **factory)
        n_tokens = self.patch_embedding.grid[0] * self.patch_embedding.grid[1]
        self.positions = Positions(n_tokens, dim, scale=position_scale, **factory)
        check_positive(norm_eps, "norm_eps", allow_zero=True)
        self.token_norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.features = HeadProjection(dim, num_heads, **factory)
        self.codes = UnrolledSelfExpression(
            check_count(depth, "depth", 1), lam, relative=True, **factory
        )
        self.values = HeadProjection(dim, num_heads, **factory)
        self.out_proj = nn.Linear(dim, dim, **factory)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = class_head(dim, num_classes, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew; steps and penalties return to their initial values."""
        reset_children(self)
        xavier_(self.out_proj)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def tokens(self, images: Tensor) -> Tensor:
        """Return the tokens before their projection, (batch, tokens, dim)."""
        return self.token_norm(self.patch_embedding(images) + self.positions())

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores (batch, num_classes) of images (batch, channels, height, width)."""
        x = self.tokens(images)
        coded = self.codes(self.features(x)) @ self.values(x)
        x = x + self.out_proj(coded.transpose(1, 2).flatten(2))
        return self.head(self.norm(x).mean(dim=1))


class HeadProjection(nn.Module):
    """A linear map of tokens (batch, n, dim) to features (batch, num_heads, n, dim / num_heads)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.projection = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw a new projection."""
        xavier_(self.projection)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
