"""Which operator goes into which layer of a model."""

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from ..attention import Operator
from ..named_operators import OperatorLike, made_operator
from .forward_passes import SERVED

Chooser = OperatorLike | Callable[[str], OperatorLike | None]

POSITIONS = ("positions", "projected_positions")


def takes_name(operator: Chooser) -> bool:
    """Whether `operator` is a function of a layer's name, which is called for every layer."""
    if isinstance(operator, str | Operator | type) or not callable(operator):
        return False
    signature = inspect.signature(operator)
    try:
        signature.bind(1, 1)
    except TypeError:
        return True
    return False


def choose(operator: Chooser, name: str, num_heads: int, head_dim: int) -> Operator | None:
    """Return a new operator for the layer called `name`, or None to leave the layer alone.

    A ValueError says if `operator` is of no allowed kind, or does not return an operator.
    """
    chosen: Any = operator
    if takes_name(operator):
        chosen = chosen(name)
        if chosen is None:
            return None
    try:
        return made_operator(chosen, num_heads, head_dim)
    except ValueError as error:
        raise ValueError(f"{error} (for {name or 'the model'})") from error


def check_needs(operator: Operator, name: str, has_positions: bool) -> None:
    """Raise a ValueError if an operator needs what the contexts of replaced layers do not hold."""
    kind = type(operator).__name__
    unknown = [need for need in operator.needs if need not in SERVED]
    if unknown:
        raise ValueError(
            f"operator: {kind} at {name} needs {', '.join(unknown)}, which no replaced layer gets"
        )
    if gates := [*operator.gates, *operator.query_gates]:
        raise ValueError(
            f"operator: {kind} at {name} takes {', '.join(gates)} from the tokens by a "
            "projection of its own, which no replaced layer has; build the layer with Attention"
        )
    if not has_positions and any(need in POSITIONS for need in operator.needs):
        raise ValueError(
            f"positions: {kind} at {name} needs them; pass a tensor (tokens, dim) or the dotted "
            'name of the model\'s position features, such as positions="pos_embed"'
        )


def place_positions(
    model: nn.Module, positions: str | Tensor | None, made: Iterable[Operator]
) -> str | None:
    """Return the dotted name of the positions in the model; a tensor is first registered in it.

    Raises
    ------
    ValueError
        If the model has no tensor of that name.

    Warns
    -----
    UserWarning
        If the model adds positions to its tokens, and an operator in `made` takes them as features
        too.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if positions is None:
        return None
    if isinstance(positions, str) and positions not in tensors:
        raise ValueError(f"positions: the model has no parameter or buffer {positions!r}")
    for name, tensor in tensors.items():
        if name == positions or tensor is positions:
            if as_features := [
                type(operator).__name__ for operator in made if operator.positions_apart
            ]:
                warnings.warn(
                    f"positions: {as_features[0]} takes them as a separate feature, but a model "
                    f"that adds {name!r} to its tokens still does so, and they count twice; pass a "
                    "copy and set the model's own to zero",
                    stacklevel=3,
                )
            return name
    if not isinstance(positions, Tensor) or positions.ndim < 2:
        got = tuple(positions.shape) if isinstance(positions, Tensor) else repr(positions)
        raise ValueError(
            f"positions: must be a name, or a tensor of shape (..., tokens, dim), got {got}"
        )
    if isinstance(positions, nn.Parameter):
        model.register_parameter("twinsolve_positions", positions)
    else:
        model.register_buffer("twinsolve_positions", positions, persistent=False)
    return "twinsolve_positions"
