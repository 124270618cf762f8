"""The task of layers that express points in each other: to cluster by the coefficients."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .heads import HeadCall
from .registry import Array


def expressing(
    build: Callable[[Array], nn.Module],
    coefficients: Callable[[Any, Tensor], Tensor],
    solve: Callable[[Any, Array], Array],
) -> dict[str, Any]:
    """Fields of a twin whose layer takes points alone, for tokens as points: ``C v``.

    `coefficients` are the layer's and `solve` gives the solver's, of the points in each other.
    """

    def solved(layer: nn.Module, call: HeadCall) -> Array:
        return solve(layer, call.q) @ call.v

    return {
        "inputs": "tokens",
        "pairing": "self",
        "by_rows": False,
        "build": lambda q, k, v: build(q[0]),
        "apply": lambda layer, q, k, v: (coefficients(layer, q[0]) @ v[0])[None],
        "solve": solved,
    }
