"""A transformer of shifted windows, with any operator inside the windows."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Context, check_count
from ..named_operators import OperatorLike
from .blocks import Block, reset_children, xavier_
from .stacks import layer_settings, operators, position_places, prepare_positions
from .tokens import SINUSOIDAL_SCALE, PatchEmbedding, Positions, class_head, size_pair
from .windows import Windows


class PatchMerging(nn.Module):
    """Merge four neighbours to one token: concatenate, normalise, project to twice the width."""

    def __init__(
        self,
        dim: int,
        norm_eps: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, norm_eps, device=device, dtype=dtype)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw a new projection."""
        self.norm.reset_parameters()
        xavier_(self.reduction)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, height, width, dim) to (batch, height / 2, width / 2, 2 dim)."""
        # (batch, height / 2, width / 2, 2, 2, dim)
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
        return self.reduction(self.norm(x.flatten(3)))


class WindowedStage(nn.Module):
    """Blocks at one resolution; every other one, from the second, has shifted windows."""

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        num_heads: int,
        settings: list[dict[str, Any]],
        *,
        window_size: int,
        shift: bool,
        positions: str | None,
        position_scale: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        window = (min(window_size, grid[0]), min(window_size, grid[1]))
        shifts = tuple(w // 2 if w < n and shift else 0 for w, n in zip(window, grid, strict=True))
        self.windows = (Windows(grid, window), Windows(grid, window, (shifts[0], shifts[1])))
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        n_tokens = grid[0] * grid[1]
        self.positions = Positions(n_tokens, dim, positions, scale=position_scale, **factory)
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, **factory, **setting) for setting in settings
        )
        if any(shifts):
            self._check_shifted()

    def _check_shifted(self) -> None:
        """Raise a ValueError if a block with shifted windows cannot hide pairs of tokens."""
        blocks: list[Any] = list(self.blocks)[1::2]
        for block in blocks:
            if not block.scales_take_pairs:
                raise ValueError(
                    "scale: must act on each token alone, or take an attn_mask, where windows "
                    "shift, as one then holds tokens that do not see each other; pass shift=False"
                )
            operator = block.attention.operator
            if not operator.pair_masks:
                raise ValueError(
                    f"operator: {type(operator).__name__} couples all queries and takes no masks "
                    "of pairs, which shifted windows need; pass shift=False or another operator "
                    "in every other layer"
                )

    def forward(self, x: Tensor, places: tuple[bool, list[bool]]) -> Tensor:
        """Pass a grid of tokens (batch, height, width, dim) through all blocks.

        The values that layers share follow their tokens from one tiling to the next. `places` says
        where positions are added, as `position_places` returns it.
        """
        positions = self.positions()
        in_tokens, in_layers = places
        if positions is not None:
            positions = positions.unflatten(0, self.windows[0].grid)[None]
            x = x + positions if in_tokens else x
        context = Context(positions=positions, first_tokens=x)
        blocks: list[Any] = list(self.blocks)
        shared = {name for block in blocks for name in block.attention.operator.needs}
        shared &= {"first_values", "previous_values"}
        keeps_history = any(block.needs_history for block in blocks)
        for index, block in enumerate(blocks):
            if keeps_history:
                context = context._replace(history=(*context.history, x))
            windows, heads = self.windows[index % 2], block.attention.num_heads
            inner = windows.enter(context, x.shape[0], heads)
            y, inner = block(
                windows.split(x), inner, add_positions=in_layers[index],
                key_padding_mask=windows.hidden_tokens(x.shape[0], x.device),
                attn_mask=windows.hidden_pairs(x.shape[0], heads, x.device),
            )  # fmt: skip
            x = windows.join(y)
            joined: dict[str, Any] = {n: windows.join_values(getattr(inner, n)) for n in shared}
            context = context._replace(**joined)
        return x


class WindowedTransformer(nn.Module):
    """Transformer on windows of a grid, which are shifted in every other layer (after Swin).

    Stages of `Block` s on windows of `window_size` x `window_size` tokens; between stages, four
    neighbours merge into one token of twice the width. The head reads the mean over the last grid.
    In place of Swin's relative biases, which most operators cannot take, every stage has positions
    on its grid. Each stage has its own `Context`: first values are those of its first layer.

    Parameters
    ----------
    image_size, patch_size : int or pair of int
    in_channels : int
    num_classes : int
        0 leaves the head out.
    dim : int
        Width of the first stage.
    depths : sequence of int, default=(2, 2)
        Blocks in each stage.
    num_heads : sequence of int, default=(2, 4)
        Heads in each stage.
    window_size : int, default=4
        One that exceeds a stage's grid covers it unshifted. Where it does not divide the grid, the
        last windows are padded, after the shift. No token sees the padding; in timm's Swin all do.
    operator : str, Operator, callable, or list of these, default="softmax"
        As in `Block`; a list has ``sum(depths)`` entries. Operators on a grid get that of the
        window.
    shift : bool, default=True
        False keeps all windows in place, for operators and scales that mix tokens and take no masks
        of pairs. FeatScale takes them: its means are those of each token's own window.
    positions, add_positions, position_scale, token_graying, norm_eps
        As in `VisionTransformer`.
    **block
        Further options of `Block`; a list has one entry a layer.

    Raises
    ------
    ValueError
        If sizes do not fit; or if in a shifted layer an operator, or a `scale` that mixes tokens,
        takes no masks of pairs.

    References
    ----------
    Liu et al., *Swin Transformer* (2021).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import WindowedTransformer
    >>> model = WindowedTransformer(16, 2, 1, 10, 16, window_size=4, operator="twicing")
    >>> model(torch.randn(3, 1, 16, 16)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        dim: int,
        depths: tuple[int, ...] | list[int] = (2, 2),
        num_heads: tuple[int, ...] | list[int] = (2, 4),
        *,
        window_size: int = 4,
        operator: OperatorLike | list[OperatorLike] = "softmax",
        shift: bool = True,
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
        if len(depths) != len(num_heads) or not depths:
            raise ValueError(
                f"num_heads: must have one entry for each of {len(depths)} stages, got {num_heads}"
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        check_count(window_size, "window_size", 1)
        self.patch_embedding = PatchEmbedding(
            image_size, patch_size, in_channels, dim, token_graying=token_graying, **factory
        )
        settings = iter(layer_settings(sum(depths), operator=operator, norm_eps=norm_eps, **block))
        self.stages, self.merges = nn.ModuleList(), nn.ModuleList()
        grid = self.patch_embedding.grid
        for index, (depth, heads) in enumerate(zip(depths, num_heads, strict=True)):
            if index:
                if grid[0] % 2 or grid[1] % 2:
                    raise ValueError(
                        "image_size: must give grids that can be halved between stages, got "
                        f"{grid} after {index} stages"
                    )
                self.merges.append(PatchMerging(dim, norm_eps, **factory))
                grid, dim = size_pair((grid[0] // 2, grid[1] // 2), "image_size"), 2 * dim
            stage = WindowedStage(
                grid, dim, heads, [next(settings) for _ in range(depth)],
                window_size=window_size, shift=shift, positions=positions,
                position_scale=position_scale, **factory,
            )  # fmt: skip
            self.stages.append(stage)
        stages: list[Any] = list(self.stages)
        readers = [(stage.positions, operators(stage.blocks)) for stage in stages]
        self.add_positions = prepare_positions(readers, add_positions)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = class_head(dim, num_classes, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        reset_children(self)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last stage's tokens (batch, tokens, dim) after the final norm."""
        x = self.patch_embedding(images).unflatten(1, self.patch_embedding.grid)
        stages: list[Any] = list(self.stages)
        all_operators = [operator for stage in stages for operator in operators(stage.blocks)]
        in_tokens, in_layers = position_places(all_operators, self.add_positions)
        for index, stage in enumerate(stages):
            in_stage, in_layers = in_layers[: len(stage.blocks)], in_layers[len(stage.blocks) :]
            x = stage(self.merges[index - 1](x) if index else x, (in_tokens, in_stage))
        return self.norm(x).flatten(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores (batch, num_classes) of images (batch, channels, height, width)."""
        return self.head(self.forward_features(images).mean(dim=1))

    def extra_repr(self) -> str:
        return f"add_positions={self.add_positions}"
