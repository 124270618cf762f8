"""The multi-head shell in NumPy, with the operator by its twin's solver."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ...attention import Attention
from ..heads import AllHeads, Array, HeadCall, as_array
from ..pairs import solve_head
from ..registry import exact_twin


@dataclass(frozen=True)
class Shared:
    """What the layers of one pass over one sequence share; values are (heads, tokens, width)."""

    positions: Array | None = None
    grid: tuple[int, int] | None = None
    n_class_tokens: int = 0
    first_values: Array | None = None
    previous_values: Array | None = None
    first_tokens: Array | None = None
    history: tuple[Array, ...] = ()


def affine(x: Array, weight: Tensor, bias: Tensor | None = None) -> Array:
    """``x W^T + b``."""
    return x @ as_array(weight).T + (0 if bias is None else as_array(bias))


def linear(layer: Any, x: Array) -> Array:
    return affine(x, layer.weight, layer.bias)


def split_heads(x: Array, num_heads: int) -> Array:
    """Head h holds the columns ``h d, ..., (h + 1) d - 1``."""
    return np.stack(np.split(x, num_heads, axis=1))


def visible_keys(
    n_queries: int,
    n_keys: int,
    *,
    is_causal: bool = False,
    padding: Array | None = None,
    pairs: Array | None = None,
) -> Array | None:
    """Which keys each query sees; `padding` and `pairs` are true where a key is hidden.

    Pairs may differ from head to head.
    """
    visible = np.ones((n_queries, n_keys), dtype=bool)
    if is_causal:
        visible &= np.arange(n_keys) <= np.arange(n_keys - n_queries, n_keys)[:, None]
    if padding is not None:
        visible &= ~padding
    if pairs is not None:
        visible = visible & ~pairs
    return None if visible.all() else visible


def attend(
    shell: Attention,
    query: Array,
    key: Array,
    value: Array,
    *,
    num_heads: int,
    shared: Shared | None = None,
    visible: Array | None = None,
    bias: Array | None = None,
    weights: bool = False,
) -> tuple[Array, Array | None, Shared]:
    """Output, each head's matrix if asked for, and what the next layer shares.

    `visible` and `bias`, which adds to logits, are of all heads or of each. Only operators that are
    linear in their values have a matrix.
    """
    shared = shared or Shared()
    dim = query.shape[1]
    rows = {name: slice(i * dim, (i + 1) * dim) for i, name in enumerate(shell.operator.reads)}

    def project(name: str, x: Array) -> Array:
        if name not in rows:
            return split_heads(x, num_heads)
        own, added = rows[name], shell.in_proj_bias
        bias = None if added is None else added[own]
        return split_heads(affine(x, shell.in_proj_weight[own], bias), num_heads)

    k, v = project("k", key), project("v", value)
    q = k if "q" not in rows and query is key else project("q", query)
    if shared.first_values is None:
        shared = replace(shared, first_values=v)
    identity = np.eye(len(key))[:, : len(key) if weights else 0]
    twin, out, matrices = exact_twin(shell.operator), [], []
    for head in range(num_heads):
        call = HeadCall(
            q[head],
            k[head],
            np.hstack([v[head], identity]),
            head,
            visible=visible if visible is None or visible.ndim == 2 else visible[head],
            bias=bias,
            all_heads=AllHeads(q, k),
            **_given_to_head(shell, shared, rows, head, len(query), v),
        )
        found = solve_head(twin, shell.operator, call)
        out.append(found[:, : v.shape[2]])
        matrices.append(found[:, v.shape[2] :])
    joined = linear(shell.out_proj, np.hstack(out))
    shared = replace(shared, previous_values=v)
    return joined, np.stack(matrices) if weights else None, shared


def _given_to_head(
    shell: Attention, shared: Shared, rows: dict[str, slice], head: int, n_queries: int, v: Array
) -> dict[str, Any]:
    """What one head knows beside its tokens."""
    projected = None
    if shared.positions is not None and {"q", "k"} <= rows.keys():
        q, k = (
            split_heads(affine(shared.positions, shell.in_proj_weight[own]), len(v))[head]
            for own in (rows["q"], rows["k"])
        )
        projected = q[v.shape[1] - n_queries :], k
    return {
        "positions": shared.positions,
        "grid": shared.grid,
        "n_class_tokens": shared.n_class_tokens,
        "projected_positions": projected,
        "values": v[head],
        "first_values": _of_shape(shared.first_values, v, head),
        "previous_values": _of_shape(shared.previous_values, v, head),
        "first_tokens": shared.first_tokens,
    }


def _of_shape(values: Array | None, v: Array, head: int) -> Array | None:
    """The values of another layer in one head; None where they have not the shape of this one's."""
    return None if values is None or values.shape != v.shape else values[head]
