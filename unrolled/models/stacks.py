"""Stacks of blocks: options for each layer, and one context through all of them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ..attention import Context, Operator, check_count
from .blocks import Block


def layer_settings(depth: int, **options: Any) -> list[dict[str, Any]]:
    """Each layer's options: a list or tuple holds one value a layer, anything else is for all.

    Raises
    ------
    ValueError
        If a list has not `depth` entries.
    """
    for name, value in options.items():
        if isinstance(value, list | tuple) and len(value) != depth:
            raise ValueError(
                f"{name}: must be one value or a list of {depth}, one a layer, got {len(value)}"
            )
    return [
        {n: v[i] if isinstance(v, list | tuple) else v for n, v in options.items()}
        for i in range(depth)
    ]


def make_blocks(depth: int, dim: int, num_heads: int, **options: Any) -> nn.ModuleList:
    """`depth` blocks with options as in `layer_settings`."""
    settings = layer_settings(check_count(depth, "depth", 0), **options)
    return nn.ModuleList(Block(dim, num_heads, **setting) for setting in settings)


def run_blocks(
    blocks: nn.ModuleList,
    x: Tensor,
    context: Context,
    *,
    states: list[Tensor] | None = None,
    add_positions: Sequence[bool] | None = None,
    **arguments: Any,
) -> Tensor:
    """Pass tokens through all blocks, starting from a context; `states` collects the results.

    `add_positions` tells each block whether to add them, as `position_places` says.
    """
    layers = cast(Iterable[Block], blocks)
    keeps_history = any(block.needs_history for block in layers)
    for block, adds in zip(layers, add_positions or [False] * len(blocks), strict=True):
        if keeps_history:
            context = context._replace(history=(*context.history, x))
        x, context = block(x, context, add_positions=adds, **arguments)
        if states is not None:
            states.append(x)
    return x


def operators(blocks: nn.ModuleList) -> list[Operator]:
    """The operator of each block."""
    return [block.attention.operator for block in cast(Iterable[Block], blocks)]


def position_places(made: list[Operator], add: bool | None) -> tuple[bool, list[bool]]:
    """Whether positions are added to the tokens of a model, and which layers add them themselves.

    By default (`add` None) they are added to the tokens. Where some operator takes them apart, the
    tokens carry none, and layers of other operators add them.
    """
    apart = [operator.positions_apart for operator in made]
    if add is not None:
        return add, [False] * len(apart)
    return not any(apart), [any(apart) and not own for own in apart]


def check_positions(
    blocks: nn.ModuleList, positions: str | None, add_positions: bool | None
) -> None:
    """Refuse operators that read positions in a model without any, and bad options.

    Raises
    ------
    ValueError
    """
    if add_positions not in (None, True, False):
        raise ValueError(f"add_positions: must be True, False or None, got {add_positions!r}")
    for operator in operators(blocks):
        if positions is None and {"positions", "projected_positions"} & set(operator.needs):
            raise ValueError(
                f"positions: {type(operator).__name__} reads positions; must be 'learned' or "
                "'sinusoidal', got None"
            )


def learn_read_positions(
    positions: nn.Module, blocks: nn.ModuleList, add_positions: bool | None
) -> None:
    """Positions are learned where tokens or layers carry them or operators read them.

    Without a gradient they would stop training on several processes.
    """
    made = operators(blocks)
    in_tokens, in_layers = position_places(made, add_positions)
    read = any({"positions", "projected_positions"} & set(operator.needs) for operator in made)
    positions.requires_grad_(in_tokens or any(in_layers) or read)
