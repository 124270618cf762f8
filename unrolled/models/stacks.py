"""Stacks of blocks: options for each layer, and one context through all of them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ..attention import Context, Operator, check_count
from .blocks import Block
from .tokens import Positions


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
                f"{name}: must be one value or a list of {depth}, one for each layer, got a list "
                f"of {len(value)}"
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

    `add_positions` says of each block whether it adds positions, as `position_places` returns.
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

    By default (`add` None) they are added to the tokens. Where some operator takes them as
    features, tokens carry none, and layers of other operators add them.
    """
    apart = [operator.positions_apart for operator in made]
    if add is not None:
        return add, [False] * len(apart)
    return not any(apart), [any(apart) and not own for own in apart]


def prepare_positions(
    stages: Sequence[tuple[Positions, list[Operator]]], add_positions: bool | None
) -> bool | None:
    """Train the positions that a model reads, and no others.

    A parameter without gradient would stop the training on several processes.

    Parameters
    ----------
    stages : sequence of (Positions, list of Operator)
        Positions, and the operators of all layers that may read them.
    add_positions : bool, optional
        As `position_places` takes it.

    Returns
    -------
    bool or None
        `add_positions`.

    Raises
    ------
    ValueError
        If `add_positions` is anything else, or an operator reads positions where there are none.
    """
    if add_positions not in (None, True, False):
        raise ValueError(f"add_positions: must be True, False or None, got {add_positions!r}")
    everywhere = [operator for _, made in stages for operator in made]
    in_tokens, in_layers = position_places(everywhere, add_positions)
    for positions, made in stages:
        own, in_layers = in_layers[: len(made)], in_layers[len(made) :]
        readers = [o for o in made if {"positions", "projected_positions"} & set(o.needs)]
        if readers and positions.kind is None:
            raise ValueError(
                f"positions: {type(readers[0]).__name__} reads positions; must be 'learned' or "
                "'sinusoidal', got None"
            )
        positions.requires_grad_(in_tokens or any(own) or bool(readers))
    return add_positions
