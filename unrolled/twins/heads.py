"""One head at a time: what a solver is called with, and the layer's parameters as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Context, Positive
from ..laws.subject import as_array, map_tensors

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
        Added to the logits, by `solve_head` where inputs are `by_rows`, not `reads_bias`.
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
        of_head = partial(_select_head_array, head=head)
        found = {} if context is None else map_tensors(context, of_head)._asdict()
        seen, added = (None if x is None else x[head] for x in (visible, bias))
        yield HeadCall(*tokens, head, (), seen, added, **found, all_heads=all_heads)


def _select_head_array(name: str, x: Tensor, head: int) -> Array:
    return as_array(x if name in _SHARED else _select_head(x, head))


def _select_head(x: Tensor, head: int) -> Tensor:
    return x if x.ndim < 3 else x[head if len(x) > 1 else 0]


def choose_largest(scores: Array, count: int, sizes: Array, call: HeadCall) -> list[Array]:
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


def heads(inputs: Tensors) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Index and float64 arrays of each head of tensors of shape (heads, tokens, width)."""
    for head, tensors in enumerate(zip(*inputs, strict=True)):
        yield head, tuple(as_array(x) for x in tensors)


def solve_each_image(solve: Callable[[Any, Array], Array]) -> Callable[[Any, Array], Array]:
    """The solver of a batch of images, by that of one."""
    return lambda layer, images: np.stack([solve(layer, image) for image in images])


def head_value(parameter: Positive | nn.ModuleList, head: int, t: int = 0) -> float:
    """The parameter's value for one head (and iteration), rounded as the layer rounds it.

    Of iterations, later ones repeat the last. The layer's own evaluation is not called.
    """
    if not isinstance(parameter, Positive):
        parameter = cast(Positive, parameter[min(t, len(parameter) - 1)])
    if parameter.log is None:
        return parameter.initial
    values = parameter.log.detach().exp().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def iteration_values(parameters: nn.ModuleList, n_iter: int) -> Array:
    """Values for each of `n_iter` iterations; the last parameter serves all that follow."""
    return np.array([head_value(parameters, 0, t) for t in range(n_iter)])


def move_parameters(layer: Any) -> Any:
    """The layer with its parameters off their initial values, by another amount in each head."""
    with torch.no_grad():
        for parameter in layer.parameters():
            shift = torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype)
            parameter += shift.reshape(parameter.shape) + 0.05
    return layer


def build_moved(build: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """The build with parameters off their initial values."""
    return lambda *arrays: move_parameters(build(*arrays, **settings))


def image_builder(
    layer: Callable[..., Any], *, of_channels: bool = False, **defaults: Any
) -> Callable[..., Any]:
    """``build(images, **settings)`` of a layer in float64 at these settings, unless given others.

    With `of_channels`, the layer is told how many the images have.
    """

    def build(images: Array, **settings: Any) -> Any:
        channels = {"channels": images.shape[1]} if of_channels else {}
        return layer(**defaults | channels | settings, dtype=torch.float64)

    return build


def perturb_parameters(layer: Any, share: float = 0.1) -> Any:
    """The layer with every parameter moved on its own, by a share of its size."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(share * parameter.square().mean().sqrt() * noise)
    return layer
