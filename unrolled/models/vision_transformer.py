"""The vision transformer, with any operator in its attention."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Context
from ..named_operators import OperatorLike
from .blocks import reset_children, xavier_
from .hub import OnHub
from .stacks import make_blocks, operators, position_places, prepare_positions, run_blocks
from .tokens import SINUSOIDAL_SCALE, PatchEmbedding, Positions, class_head, mean_token


class VisionTransformer(OnHub):
    """Vision transformer (ViT) whose attention is any operator, the same or another in each layer.

    Patches are embedded, a class token goes in front (`pool` "class"), positions are added or kept
    apart, and pre-norm `Block` s, a final norm and a linear head follow. A `Context` goes through
    all layers, so that operators may read positions, first and previous values. With
    huggingface_hub a model goes to a folder or to the Hub: `save_pretrained`, `push_to_hub`,
    `from_pretrained`.

    Parameters
    ----------
    image_size, patch_size : int or pair of int
    in_channels : int
    num_classes : int
        0 leaves the head out.
    dim, depth, num_heads : int
    operator : str, Operator, callable, or list of these, default="softmax"
        As in `Block`; a list has one entry a layer. Operators on a grid ("local", "criss_cross",
        "spatial_gaussian") get that of the patches, and the number of class tokens.
    pool : {"class", "mean"}, default="class"
        What the head reads: a class token, or the mean over patches (no class token).
    positions : {"learned", "sinusoidal"} or None, default="learned"
        Sinusoids count tokens in row order, the class token first.
    add_positions : bool, optional
        True adds positions to the tokens, False leaves them to operators that take them as separate
        features (`Operator.positions_apart`: bilateral, TUPE, ALiBi). By default (None) they are
        added unless some layer has such an operator. Then tokens carry no positions, and the other
        layers add them to the inputs of their queries and keys, as Carion et al. (2020).
    position_scale : float, default=2**-0.5
        Standard deviation at which learned positions start, by default the scale of sinusoids. The
        customary 0.02 makes a weak baseline for small models.
    token_graying : nn.Module, optional
        Applied to the raw patches (batch, n_patches, pixels) before the embedding.
    norm_eps : float, default=1e-6
        Epsilon of the layer norms.
    **block
        Further options of `Block`, such as `mlp_ratio`, `attention_skip`, `feed_forward`, `scale`,
        `residual` or `dropout`; a list or tuple has one entry a layer.

    Raises
    ------
    ValueError
        If sizes do not fit, or an operator reads positions and there are none; when called, if an
        operator has a `width` that is not ``grid[1]``.

    References
    ----------
    Dosovitskiy et al., *An Image is Worth 16x16 Words* (2021); Touvron et al., *Training
    data-efficient image transformers* (2021) for the presets; Carion et al., *End-to-end object
    detection with transformers* (2020); EQUATIONS IF-5, IF-21, SK-A1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import VisionTransformer
    >>> model = VisionTransformer(8, 2, 1, 10, 32, 2, 4, operator=["softmax", "twicing"])
    >>> model(torch.randn(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    >>> [tuple(x.shape) for x in model.intermediates(torch.randn(5, 1, 8, 8))]
    [(5, 17, 32), (5, 17, 32), (5, 17, 32)]
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
        operator: OperatorLike | list[OperatorLike] = "softmax",
        pool: str = "class",
        positions: str | None = "learned",
        add_positions: bool | None = None,
        position_scale: float = SINUSOIDAL_SCALE,
        token_graying: nn.Module | None = None,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **block: Any,
    ) -> None:
        super().__init__()
        if pool not in ("class", "mean"):
            raise ValueError(f"pool: must be 'class' or 'mean', got {pool!r}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.pool = pool
        self.patch_embedding = PatchEmbedding(
            image_size, patch_size, in_channels, dim, token_graying=token_graying, **factory
        )
        n_tokens = self.grid[0] * self.grid[1]
        self.class_token: nn.Parameter | None = None
        if pool == "class":
            self.class_token = nn.Parameter(torch.empty(1, 1, dim, **factory))
            n_tokens += 1
        self.positions = Positions(n_tokens, dim, positions, scale=position_scale, **factory)
        self.blocks = make_blocks(
            depth, dim, num_heads, operator=operator, norm_eps=norm_eps, **factory, **block
        )
        readers = operators(self.blocks)
        self.add_positions = prepare_positions([(self.positions, readers)], add_positions)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = class_head(dim, num_classes, **factory)
        self.reset_parameters()

    @classmethod
    def tiny(
        cls,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_channels: int = 3,
        num_classes: int = 1000,
        **options: Any,
    ) -> "VisionTransformer":
        """ViT-Ti / DeiT-Ti: width 192, 12 layers, 3 heads."""
        return cls(image_size, patch_size, in_channels, num_classes, 192, 12, 3, **options)

    @classmethod
    def small(
        cls,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_channels: int = 3,
        num_classes: int = 1000,
        **options: Any,
    ) -> "VisionTransformer":
        """ViT-S / DeiT-S: width 384, 12 layers, 6 heads."""
        return cls(image_size, patch_size, in_channels, num_classes, 384, 12, 6, **options)

    @classmethod
    def base(
        cls,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_channels: int = 3,
        num_classes: int = 1000,
        **options: Any,
    ) -> "VisionTransformer":
        """ViT-B / DeiT-B: width 768, 12 layers, 12 heads."""
        return cls(image_size, patch_size, in_channels, num_classes, 768, 12, 12, **options)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches along the height and the width."""
        return self.patch_embedding.grid

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        reset_children(self)
        if self.class_token is not None:
            nn.init.normal_(self.class_token, std=0.02)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def tokens(self, images: Tensor) -> Tensor:
        """Return the tokens (batch, tokens, dim) that enter the first block.

        They carry positions, unless an operator takes these as features.
        """
        return self._embed_images(images, None)

    def _embed_images(self, images: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the tokens that enter the first block; `hidden` patches count as zeros."""
        x = self.patch_embedding(images, hidden)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        positions = self.positions()
        in_tokens, _ = position_places(operators(self.blocks), self.add_positions)
        return x + positions if in_tokens and positions is not None else x

    def forward_features(self, images: Tensor, patch_padding_mask: Tensor | None = None) -> Tensor:
        """Return tokens (batch, tokens, dim) after the final norm; arguments as in `forward`."""
        return self.norm(self._run_blocks(images, patch_padding_mask))

    def intermediates(
        self, images: Tensor, patch_padding_mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return `tokens` and each block's output: depth + 1 tensors (batch, tokens, dim)."""
        states: list[Tensor] = []
        self._run_blocks(images, patch_padding_mask, states)
        return states

    def forward(self, images: Tensor, patch_padding_mask: Tensor | None = None) -> Tensor:
        """Class scores.

        Parameters
        ----------
        images : Tensor of shape (batch, in_channels, height, width)
        patch_padding_mask : bool Tensor of shape (batch, n_patches), optional
            True hides a patch from all tokens, the mean and the token graying, which gets zeros for
            it. A hidden patch may hold anything, NaN too.

        Returns
        -------
        Tensor of shape (batch, num_classes), or (batch, dim) without a head
        """
        x = self.forward_features(images, patch_padding_mask)
        if self.class_token is not None:
            return self.head(x[:, 0])
        return self.head(mean_token(x, patch_padding_mask))

    def _run_blocks(
        self, images: Tensor, hidden: Tensor | None, states: list[Tensor] | None = None
    ) -> Tensor:
        """Return the tokens of the last block; `states` collects those of all blocks."""
        x = self._embed_images(images, hidden)
        if states is not None:
            states.append(x)
        if hidden is not None and self.class_token is not None:
            hidden = nn.functional.pad(hidden, (1, 0), value=False)
        _, in_layers = position_places(operators(self.blocks), self.add_positions)
        return run_blocks(
            self.blocks, x,
            Context(self.positions(), self.grid, int(self.class_token is not None)),
            states=states, add_positions=in_layers, key_padding_mask=hidden,
        )[0]  # fmt: skip

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}, add_positions={self.add_positions}"
