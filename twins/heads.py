"""What a solver is given of one head: its tokens, and the layer's parameters as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..unrolled.attention import Context, Positive
from .laws.subject import as_array, map_tensors

Array = np.ndarray
Tensors = tuple[Tensor, ...]

_SHARED = ("positions", "first_tokens")
_OF_KEYS = ("k", "v", "values", "first_values", "previous_values", "gates")


class AllHeads(NamedTuple):
    """Tokens (heads, tokens, width) and masks (heads, n_queries, n_keys) of all heads."""

    queries: Array
    keys: Array
    visible: Array | None = None
    bias: Array | None = None
    values: Array | None = None


@dataclass(frozen=True)
class HeadCall:
    """The arguments of a solver for one head of a call, as float64 arrays.

    Attributes
    ----------
    q, k, v : ndarray of shape (n_queries, d), (n_keys, d), (n_keys, e)
    head : int
        Index of the head; the layer uses the parameters of this head.
    places : pair of ndarray of int
        Positions of the queries and of the keys in the sequence. By default query i of n is token
        ``n_keys - n + i``. Hiding other tokens does not change these positions.
    visible : ndarray of bool, of shape (n_queries, n_keys), optional
        The keys that each query sees; None is all. Only solvers of twins that are not `by_rows`
        read it: the others get only the visible keys.
    bias : ndarray of shape (n_queries, n_keys), optional
        Is added to the logits. `solve_head` adds it if the inputs are `by_rows` and not
        `reads_bias`.
    chosen : ndarray of bool, of shape (n_queries, n_keys), optional
        The keys that the layer chose for each query. Among keys of equal score any choice is right.
    tied : float
        Scores count as equal if they differ by at most this share of their size.
    positions, grid, n_class_tokens, projected_positions, values, first_values, previous_values, \
first_tokens, history, gates, query_gates
        As in `Context`. `positions` holds all tokens of the sequence; the other fields hold the
        queries and keys of this call.
    all_heads : AllHeads, optional
        Inputs of all heads, for layers that mix heads.
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
    # Typed Any, not optional: a solver reads only those without which its layer refuses the call.
    positions: Any = None
    projected_positions: Any = None
    values: Any = None
    first_values: Any = None
    previous_values: Any = None
    first_tokens: Any = None
    history: tuple[Array, ...] = ()
    gates: Any = None
    query_gates: Any = None
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
        """Return the call with identity values, whose output is the coefficients."""
        return replace(self, v=np.eye(len(self.k)))

    def take(self, queries: Array, keys: Array) -> HeadCall:
        """Return the call with only these queries and keys; each query sees all these keys."""
        changes: dict[str, Any] = {
            name: getattr(self, name)[keys] for name in _OF_KEYS if getattr(self, name) is not None
        }
        if self.projected_positions is not None:
            of_queries, of_keys = self.projected_positions
            changes["projected_positions"] = of_queries[queries], of_keys[keys]
        if self.query_gates is not None:
            changes["query_gates"] = self.query_gates[queries]
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
    """Yield the call of each head; tensors of `context` with one head or none serve all heads."""
    shape = len(q), q.shape[1], k.shape[1]
    visible, bias = (None if x is None else np.broadcast_to(x, shape) for x in (visible, bias))
    all_heads = AllHeads(q, k, visible, bias, v)
    for head, tokens in enumerate(zip(q, k, v, strict=True)):
        select = partial(_select_head, head=head)
        fields = {} if context is None else map_tensors(context, select)._asdict()
        fields.pop("states", None)  # of decoding alone
        seen, added = (None if x is None else x[head] for x in (visible, bias))
        yield HeadCall(*tokens, head, (), seen, added, **fields, all_heads=all_heads)


def _select_head(name: str, x: Tensor, head: int) -> Array:
    """Return the part of a tensor of the context that belongs to a head."""
    shared = name in _SHARED or x.ndim < 3
    return as_array(x if shared else x[head if len(x) > 1 else 0])


def choose_largest(scores: Array, count: int, sizes: Array, call: HeadCall) -> list[Array]:
    """Return the indices of the `count` largest scores of each query, or an equally good choice.

    Scores within ``call.tied * sizes`` of the smallest chosen one count as equal to it. Among equal
    scores the keys are those that the layer chose, if the layer chose enough keys.
    """
    largest = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    if call.chosen is None:
        return list(largest)
    smallest = np.take_along_axis(scores, largest[:, -1:], axis=1)
    equal = np.abs(scores - smallest) <= call.tied * sizes[:, None]
    picked = np.where(equal, call.chosen, scores > smallest)
    return [
        np.flatnonzero(row) if row.sum() >= largest.shape[1] else default
        for row, default in zip(picked, largest, strict=True)
    ]


def heads(inputs: Tensors) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield the index and the float64 arrays of each head of tensors (heads, tokens, width)."""
    for head, tensors in enumerate(zip(*inputs, strict=True)):
        yield head, tuple(as_array(x) for x in tensors)


def solve_each_image(solve: Callable[[Any, Array], Array]) -> Callable[[Any, Array], Array]:
    """Return a solver of a batch of images from a solver of one image."""
    return lambda layer, images: np.stack([solve(layer, image) for image in images])


def head_value(parameter: Positive | nn.ModuleList, head: int, t: int = 0) -> float:
    """Return the parameter's value for one head and iteration, in float32 at least as in the layer.

    Iterations after the last parameter use the last one. The layer's own code is not called.
    """
    if not isinstance(parameter, Positive):
        parameter = cast(Positive, parameter[min(t, len(parameter) - 1)])
    if parameter.log is None:
        return parameter.initial
    log = parameter.log.detach()
    values = log.to(torch.promote_types(log.dtype, torch.float32)).exp().double().flatten()
    return float(values[head if len(values) > 1 else 0])


def iteration_values(parameters: nn.ModuleList, n_iter: int) -> Array:
    """Return the values of `n_iter` iterations; those after the last parameter repeat it."""
    return np.array([head_value(parameters, 0, t) for t in range(n_iter)])


def move_parameters(layer: Any) -> Any:
    """Move the layer's parameters off their initial values, each head by another amount."""
    with torch.no_grad():
        for parameter in layer.parameters():
            shift = torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype)
            parameter += shift.reshape(parameter.shape) + 0.05
    return layer


def build_moved(build: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return a build that moves the parameters off their initial values."""
    return lambda *arrays: move_parameters(build(*arrays, **settings))


def image_builder(
    layer: Callable[..., Any], *, of_channels: bool = False, **defaults: Any
) -> Callable[..., Any]:
    """Return ``build(images, **settings)``, which makes a float64 layer with these defaults.

    If `of_channels`, the layer gets the number of channels of the images.
    """

    def build(images: Array, **settings: Any) -> Any:
        channels = {"channels": images.shape[1]} if of_channels else {}
        return layer(**defaults | channels | settings, dtype=torch.float64)

    return build


def perturb_parameters(layer: Any, share: float = 0.1) -> Any:
    """Add noise to every parameter of the layer: a share of the parameter's root mean square."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(share * parameter.square().mean().sqrt() * noise)
    return layer
