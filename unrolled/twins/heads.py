"""One head at a time: what a solver is called with, and on which of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from ..attention import Context

if TYPE_CHECKING:
    from .registry import Twin

Array = np.ndarray
Tensors = tuple[Tensor, ...]

_SHARED = ("positions", "first_tokens")
_OF_KEYS = ("k", "v", "values", "first_values", "previous_values")


class AllHeads(NamedTuple):
    """Queries, keys and masks of every head: (heads, tokens, width), (heads, n_queries, n_keys)."""

    queries: Array
    keys: Array
    visible: Array | None = None
    bias: Array | None = None


@dataclass(frozen=True)
class HeadCall:
    """What one head of a call brings to a solver, as float64 arrays.

    Attributes
    ----------
    q, k, v : ndarray of shape (n_queries, d), (n_keys, d), (n_keys, e)
    head : int
        Index of the head, whose parameters the layer uses.
    places : pair of ndarray of int
        Tokens at which queries and keys stand. By default query i of n is token
        ``n_keys - n + i``, which it stays where some of the tokens are hidden.
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

    q: Array
    k: Array
    v: Array
    head: int = 0
    places: tuple[Array, ...] = ()
    visible: Array | None = None
    bias: Array | None = None
    chosen: Array | None = None
    tied: float = 0.0
    grid: tuple[int, int] | None = None
    n_class_tokens: int = 0
    # Not optional where they are read: the layer needs them too, and refuses a call without.
    positions: Any = None
    projected_positions: Any = None
    values: Any = None
    first_values: Any = None
    previous_values: Any = None
    first_tokens: Any = None
    history: tuple[Array, ...] = ()
    all_heads: AllHeads | None = None

    def __post_init__(self) -> None:
        if not self.places:
            keys = np.arange(len(self.k))
            object.__setattr__(self, "places", (keys[max(len(keys) - len(self.q), 0) :], keys))

    @property
    def tokens(self) -> tuple[Array, Array, Array]:
        """q, k and v."""
        return self.q, self.k, self.v

    def of_identity(self) -> HeadCall:
        """The call with values that turn the output into the coefficients."""
        return replace(self, v=np.eye(len(self.k)))

    def take(self, queries: Array, keys: Array) -> HeadCall:
        """The call with some queries and keys alone, which see each other."""
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
            q=self.q[queries],
            places=(self.places[0][queries], self.places[1][keys]),
            visible=None,
            bias=None if self.bias is None else self.bias[np.ix_(queries, keys)],
            **changes,
        )


def head_calls(
    q: Array,
    k: Array,
    v: Array,
    context: Context | None,
    visible: Array | None = None,
    bias: Array | None = None,
) -> Iterator[HeadCall]:
    """The call of each head; parts of `context` of a single head, or of none, serve all."""
    pairs = len(q), q.shape[1], k.shape[1]
    visible, bias = (None if x is None else np.broadcast_to(x, pairs) for x in (visible, bias))
    all_heads = AllHeads(q, k, visible, bias)
    for head, tokens in enumerate(zip(q, k, v, strict=True)):
        of_head = partial(_array_of_head, head=head)
        found = {} if context is None else map_fields(context, of_head)
        seen, added = (None if x is None else x[head] for x in (visible, bias))
        yield HeadCall(*tokens, head, (), seen, added, **found, all_heads=all_heads)


def _array_of_head(name: str, x: Tensor, head: int) -> Array:
    return as_array(x if name in _SHARED else _of_head(x, head))


def _of_head(x: Tensor, head: int) -> Tensor:
    return x if x.ndim < 3 else x[head if len(x) > 1 else 0]


def map_fields(context: Context, function: Callable[[str, Tensor], Any]) -> dict[str, Any]:
    """Fields of the context with ``function(name, tensor)`` in place of every tensor in them."""

    def mapped(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(mapped(name, x) for x in value)
        return function(name, value) if isinstance(value, Tensor) else value

    return {name: mapped(name, value) for name, value in context._asdict().items()}


def solve_head(twin: Twin, layer: nn.Module, call: HeadCall, *, rows: Array | None = None) -> Array:
    """The solver's output for one head, each query solved on the keys that it sees.

    Queries that see the same keys are solved together. Where queries are keys (`Twin.pairing` is
    "self"), the problem is that of all visible points, of which a query must be one. A query that
    sees no key gives zeros, and so do those not among `rows`, if the twin is `by_rows`.
    """
    masked = not (call.visible is None and call.bias is None)
    if not twin.by_rows or not (masked or rows is not None):
        return _solved(twin, layer, call)
    n, visible, (query_places, key_places) = len(call.q), call.visible, call.places
    if visible is None:
        visible = np.ones((n, len(call.k)), dtype=bool)
    out = np.zeros((n, call.v.shape[1]))
    for seen, queries in _by_visible_keys(visible, np.arange(n) if rows is None else rows):
        keys = np.flatnonzero(seen)
        if len(keys) == 0:
            continue
        if twin.pairing != "self":
            out[queries] = _solve_seen(twin, layer, call.take(queries, keys))
            continue
        places = np.searchsorted(key_places[keys], query_places[queries])
        out[queries] = _solved(twin, layer, replace(call, q=call.k).take(keys, keys))[places]
    return out


def _solved(twin: Twin, layer: nn.Module, call: HeadCall) -> Array:
    """What the solver returns, which must be a row for each query."""
    found = np.asarray(twin.solve(layer, call))
    if found.shape != (expected := (len(call.q), call.v.shape[1])):
        raise ValueError(
            f"twin {twin.name}: solve returned an array of shape {found.shape}, not {expected}"
        )
    return found


def _solve_seen(twin: Twin, layer: nn.Module, call: HeadCall) -> Array:
    """Queries that see all keys; a bias multiplies the weights of a row, and their sum stays."""
    if call.bias is None or twin.reads_bias:
        return _solved(twin, layer, call)
    weights = _solved(twin, layer, replace(call.of_identity(), bias=None))
    weights = weights * np.exp(call.bias)
    return weights @ call.v / weights.sum(axis=1, keepdims=True)


def largest(scores: Array, count: int, sizes: Array, call: HeadCall) -> list[Array]:
    """Indices of the `count` largest scores of each query, or a choice as good as that.

    Scores that differ from the last of these by rounding, up to ``call.tied * sizes``, are equal
    to it, and of equal ones the layer's choice counts, if with it there are enough.
    """
    first = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    if call.chosen is None:
        return list(first)
    last = np.take_along_axis(scores, first[:, -1:], axis=1)
    equal = np.abs(scores - last) <= call.tied * sizes[:, None]
    picked = np.where(equal, call.chosen, scores > last)
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
