"""Stacks of blocks: options for each layer, and one context through all of them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ..attention import Context, Operator, check_count
from .blocks import Block
from .tokens import Positions


def layer_settings(depth: int, **options: Any) -> list[dict[str, Any]]:
    """Return each layer's options: a list has one value for each layer, others serve all."""
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
    """Make `depth` blocks; options are those of `Block`, for all layers or in lists, one each."""
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
) -> tuple[Tensor, Context]:
    """Pass tokens through all blocks; `states` collects the results.

    Returns the tokens and the context of the last block.

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
    return x, context


def operators(blocks: nn.ModuleList) -> list[Operator]:
    """Return the operator of each block."""
    return [block.attention.operator for block in cast(Iterable[Block], blocks)]


def position_places(made: list[Operator], add: bool | None) -> tuple[bool, list[bool]]:
    """Return whether positions are added to the tokens, and which layers add them themselves.

    By default (`add` None) they are added to the tokens. But if some operator takes them as
    features, tokens carry none, and the layers of other operators add them.
    """
    as_features = [operator.positions_apart for operator in made]
    if add is not None:
        return add, [False] * len(made)
    return not any(as_features), [any(as_features) and not feature for feature in as_features]


def prepare_positions(
    stages: Sequence[tuple[Positions, list[Operator]]], add_positions: bool | None
) -> bool | None:
    """Let the positions be trained that a model reads, and no others; return `add_positions`.

    A parameter without gradient would stop the training on several processes. `stages` holds
    positions, each with the operators of all layers that may read them. A ValueError says if an
    operator reads positions where there are none.
    """
    if add_positions not in (None, True, False):
        raise ValueError(f"add_positions: must be True, False or None, got {add_positions!r}")
    all_operators = [operator for _, of_stage in stages for operator in of_stage]
    in_tokens, in_layers = position_places(all_operators, add_positions)
    for positions, of_stage in stages:
        in_stage, in_layers = in_layers[: len(of_stage)], in_layers[len(of_stage) :]
        readers = [o for o in of_stage if {"positions", "projected_positions"} & set(o.needs)]
        if readers and positions.kind is None:
            raise ValueError(
                f"positions: {type(readers[0]).__name__} reads positions; must be 'learned' or "
                "'sinusoidal', got None"
            )
        positions.requires_grad_(in_tokens or any(in_stage) or bool(readers))
    return add_positions
