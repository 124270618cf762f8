"""One head at a time: what a solver is called with, and on which of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from ..attention import Context

if TYPE_CHECKING:
    from .registry import Twin

Array = np.ndarray
Tensors = tuple[Tensor, ...]

_SHARED = ("positions", "first_tokens")
_OF_KEYS = ("values", "first_values", "previous_values")


class AllHeads(NamedTuple):
    """Queries, keys and masks of every head: (heads, tokens, width), (heads, n_queries, n_keys)."""

    queries: Array
    keys: Array
    visible: Array | None = None
    bias: Array | None = None


@dataclass(frozen=True)
class HeadContext:
    """What a solver is told beside the tokens of one head, as float64 arrays.

    Attributes
    ----------
    query_places, key_places : ndarray of int
        Tokens at which queries and keys stand. Query i of n is token ``n_keys - n + i`` before some
        of them are hidden.
    visible : ndarray of bool, of shape (n_queries, n_keys), optional
        The keys that each query sees; None is all. Only solvers of twins that are not `by_rows` see
        it: others are given the visible keys alone.
    bias : ndarray of shape (n_queries, n_keys), optional
        Added to the logits, by `solve_head` for twins that are `by_rows`, unless they `reads_bias`.
    chosen : ndarray of bool, of shape (n_queries, n_keys), optional
        The keys that the layer chose for each query: among equal ones its choice is as good as any.
    tied : float
        Differences of scores relative to their size, up to which they are equal.
    positions, grid, n_class_tokens, projected_positions, values, first_values, previous_values, \
first_tokens, history
        As in `Context`. Positions are those of all tokens, by place; the rest are of the queries
        and keys at hand.
    all_heads : AllHeads, optional
        What the other heads are given, for layers that mix heads.
    """

    query_places: Array
    key_places: Array
    visible: Array | None = None
    bias: Array | None = None
    chosen: Array | None = None
    tied: float = 0.0
    positions: Array | None = None
    grid: tuple[int, int] | None = None
    n_class_tokens: int = 0
    projected_positions: tuple[Array, Array] | None = None
    values: Array | None = None
    first_values: Array | None = None
    previous_values: Array | None = None
    first_tokens: Array | None = None
    history: tuple[Array, ...] = ()
    all_heads: AllHeads | None = None

    def take(self, queries: Array, keys: Array) -> HeadContext:
        """The context of some queries and keys alone, which see each other."""
        changes: dict[str, Any] = {
            name: getattr(self, name)[keys] for name in _OF_KEYS if getattr(self, name) is not None
        }
        if self.projected_positions is not None:
            of_queries, of_keys = self.projected_positions
            changes["projected_positions"] = of_queries[queries], of_keys[keys]
        if self.chosen is not None:
            changes["chosen"] = self.chosen[np.ix_(queries, keys)]
        return replace(
            self,
            query_places=self.query_places[queries],
            key_places=self.key_places[keys],
            visible=None,
            bias=None if self.bias is None else self.bias[np.ix_(queries, keys)],
            **changes,
        )


def head_context(
    context: Context | None,
    head: int,
    n_queries: int,
    n_keys: int,
    visible: Array | None = None,
    bias: Array | None = None,
    all_heads: AllHeads | None = None,
) -> HeadContext:
    """The context of one head; parts of a single head, or of none, serve all."""
    found: dict[str, Any] = {}
    if context is not None:
        found = map_fields(
            context, lambda name, x: as_array(x if name in _SHARED else _of_head(x, head))
        )
    places = np.arange(n_keys)
    queries = places[max(n_keys - n_queries, 0) :]
    return HeadContext(queries, places, visible, bias, **found, all_heads=all_heads)


def _of_head(x: Tensor, head: int) -> Tensor:
    return x if x.ndim < 3 else x[head if len(x) > 1 else 0]


def map_fields(context: Context, function: Callable[[str, Tensor], Any]) -> dict[str, Any]:
    """Fields of the context with ``function(name, tensor)`` in place of every tensor in them."""

    def mapped(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(mapped(name, x) for x in value)
        return function(name, value) if isinstance(value, Tensor) else value

    return {name: mapped(name, value) for name, value in context._asdict().items()}


def places_of(q: Array, k: Array, context: HeadContext | None) -> tuple[Array, Array]:
    """Tokens at which queries and keys stand."""
    context = context or head_context(None, 0, len(q), len(k))
    return context.query_places, context.key_places


def solve_head(
    twin: Twin,
    layer: nn.Module,
    q: Array,
    k: Array,
    v: Array,
    *,
    head: int,
    context: HeadContext | None,
    rows: Array | None = None,
) -> Array:
    """The solver's output for one head, each query solved on the keys that it sees.

    Queries that see the same keys are solved together. Where queries are keys (`Twin.pairing` is
    "self"), the problem is that of all visible points, of which a query must be one. A query that
    sees no key gives zeros, and so do those not among `rows`, if the twin is `by_rows`.
    """
    masked = context is not None and not (context.visible is None and context.bias is None)
    if context is None or not twin.by_rows or not (masked or rows is not None):
        return twin.solve(layer, q, k, v, head=head, context=context)
    visible = context.visible
    if visible is None:
        visible = np.ones((len(q), len(k)), dtype=bool)
    out = np.zeros((len(q), v.shape[1]))
    for seen, queries in _by_visible_keys(visible, np.arange(len(q)) if rows is None else rows):
        keys = np.flatnonzero(seen)
        if len(keys) == 0:
            continue
        if twin.pairing != "self":
            given = context.take(queries, keys)
            out[queries] = _solve_seen(twin, layer, q[queries], k[keys], v[keys], head, given)
            continue
        places = np.searchsorted(context.key_places[keys], context.query_places[queries])
        given = context.take(keys, keys)
        solved = twin.solve(layer, k[keys], k[keys], v[keys], head=head, context=given)
        out[queries] = solved[places]
    return out


def _solve_seen(
    twin: Twin, layer: nn.Module, q: Array, k: Array, v: Array, head: int, context: HeadContext
) -> Array:
    """Queries that see all keys; a bias multiplies the weights of a row, and their sum stays."""
    if context.bias is None or twin.reads_bias:
        return twin.solve(layer, q, k, v, head=head, context=context)
    unbiased = replace(context, bias=None)
    weights = twin.solve(layer, q, k, np.eye(len(k)), head=head, context=unbiased)
    weights = weights * np.exp(context.bias)
    return weights @ v / weights.sum(axis=1, keepdims=True)


def largest(scores: Array, count: int, sizes: Array, context: HeadContext | None) -> list[Array]:
    """Indices of the `count` largest scores of each query, or a choice as good as that.

    Scores that differ from the last of these by rounding, up to ``context.tied * sizes``, are equal
    to it, and of equal ones the layer's choice counts, if with it there are enough.
    """
    first = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    if context is None or context.chosen is None:
        return list(first)
    last = np.take_along_axis(scores, first[:, -1:], axis=1)
    equal = np.abs(scores - last) <= context.tied * sizes[:, None]
    picked = np.where(equal, context.chosen, scores > last)
    enough = picked.sum(axis=1) >= first.shape[1]
    return [
        np.flatnonzero(row) if whole else default
        for row, whole, default in zip(picked, enough, first, strict=True)
    ]


def _by_visible_keys(visible: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
    """Each set of keys that some of the rows see, and which of them do."""
    sets, of_row = np.unique(visible[rows], axis=0, return_inverse=True)
    for index, seen in enumerate(sets):
        yield seen, rows[of_row.ravel() == index]


def heads(inputs: Tensors) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Index and float64 arrays of each head of tensors of shape (heads, tokens, width)."""
    for head, tensors in enumerate(zip(*inputs, strict=True)):
        yield head, tuple(as_array(x) for x in tensors)


def as_array(x: Tensor) -> Array:
    """The tensor as a float64 array."""
    return x.detach().cpu().double().numpy()
