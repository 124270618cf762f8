"""A transformer whose class token enters late, as the only query (after CaiT)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Context
from ..named_operators import OperatorLike
from .blocks import reset_children, xavier_
from .stacks import make_blocks, operators, position_places, prepare_positions, run_blocks
from .tokens import SINUSOIDAL_SCALE, PatchEmbedding, Positions, class_head


class ClassAttentionTransformer(nn.Module):
    """Self-attention among patches, then class attention: only a class token queries (after CaiT).

    In the class-attention layers the class token attends to itself and all patches, and the patches
    stay as they are.

    Parameters
    ----------
    image_size, patch_size : int or pair of int
    in_channels : int
    num_classes : int
        0 leaves the head out.
    dim, depth, num_heads : int
        `depth` counts the self-attention layers.
    class_depth : int, default=2
        Class-attention layers.
    operator : str, Operator, callable, or list of these, default="softmax"
        Operator of the self-attention layers, as in `Block`. "talking_heads" is that of CaiT. It
        starts as softmax attention, which is the default so that the fused kernel serves, and so
        that other operators stand beside the same baseline as in a `VisionTransformer`.
    class_operator : str, Operator, callable, or list of these, default="softmax"
        Operator of the class-attention layers. There one query meets all tokens: it must not need
        as many queries as keys, nor values or positions of other layers' tokens.
    positions, add_positions, position_scale, norm_eps, token_graying
        As in `VisionTransformer`; the class token has no position.
    layer_scale : float, default=1e-5
        Initial value of the `LayerScale` on all branches of all layers, as in CaiT. None leaves it
        out.
    scale : callable, optional
        As in `Block`, for the self-attention layers alone and before their LayerScale, where
        FeatScale stands in a CaiT.
    **block
        Further options of `Block` for all layers.

    Raises
    ------
    ValueError
        If sizes do not fit, or `class_operator` cannot serve.

    References
    ----------
    Touvron et al., *Going deeper with Image Transformers* (2021).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import ClassAttentionTransformer
    >>> model = ClassAttentionTransformer(8, 2, 1, 10, 32, 2, 4, operator="twicing")
    >>> model(torch.randn(3, 1, 8, 8)).shape
    torch.Size([3, 10])
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
        class_depth: int = 2,
        operator: OperatorLike | list[OperatorLike] = "softmax",
        class_operator: OperatorLike | list[OperatorLike] = "softmax",
        positions: str | None = "learned",
        add_positions: bool | None = None,
        position_scale: float = SINUSOIDAL_SCALE,
        token_graying: nn.Module | None = None,
        layer_scale: float | None = 1e-5,
        scale: Callable[[int], nn.Module] | None = None,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **block: Any,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.patch_embedding = PatchEmbedding(
            image_size, patch_size, in_channels, dim, token_graying=token_graying, **factory
        )
        n_patches = self.patch_embedding.grid[0] * self.patch_embedding.grid[1]
        self.positions = Positions(n_patches, dim, positions, scale=position_scale, **factory)
        block = {"layer_scale": layer_scale, "norm_eps": norm_eps, **factory, **block}
        self.blocks = make_blocks(depth, dim, num_heads, operator=operator, scale=scale, **block)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim, **factory))
        self.class_blocks = make_blocks(
            class_depth, dim, num_heads, operator=class_operator, **block
        )
        self._check_class_operators()
        readers = [*operators(self.blocks), *operators(self.class_blocks)]
        self.add_positions = prepare_positions([(self.positions, readers)], add_positions)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = class_head(dim, num_classes, **factory)
        self.reset_parameters()

    def _check_class_operators(self) -> None:
        """Raise a ValueError if an operator cannot serve a single query."""
        for operator in operators(self.class_blocks):
            reason = "needs as many queries as keys" if operator.square_only else ""
            reason = reason or ("needs places of tokens" if operator.positional else "")
            reason = reason or ("needs " + " and ".join(operator.needs) if operator.needs else "")
            if reason:
                raise ValueError(
                    f"class_operator: {type(operator).__name__} {reason}; in class attention one "
                    "query meets all tokens"
                )

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        reset_children(self)
        nn.init.normal_(self.class_token, std=0.02)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return class token and patches after the final norm, (batch, 1 + n_patches, dim)."""
        x, positions = self.patch_embedding(images), self.positions()
        all_operators = [*operators(self.blocks), *operators(self.class_blocks)]
        in_tokens, in_layers = position_places(all_operators, self.add_positions)
        x = x + positions if in_tokens and positions is not None else x
        depth = len(self.blocks)
        context = Context(positions, self.patch_embedding.grid)
        x, _ = run_blocks(self.blocks, x, context, add_positions=in_layers[:depth])
        token = self.class_token.expand(x.shape[0], -1, -1)
        all_positions = None if positions is None else F.pad(positions, (0, 0, 0, 1))
        token, _ = run_blocks(
            self.class_blocks, token, Context(positions=all_positions),
            add_positions=in_layers[depth:], memory=x,
        )  # fmt: skip
        return self.norm(torch.cat([token, x], dim=1))

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores (batch, num_classes) of images (batch, channels, height, width)."""
        return self.head(self.forward_features(images)[:, 0])

    def extra_repr(self) -> str:
        return f"add_positions={self.add_positions}"
