"""A layer beside its solver: what both are given, and what each of them gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Context
from ..laws.subject import Way, as_array, identity_values, map_tensors
from .heads import Array, HeadCall, Tensors, head_calls

Kind = Literal["tokens", "features", "image", "patches"]
Pairing = Literal["any", "self", "cross"]
Rounded = Literal["anything", "weights", "output"]


def _call(layer: nn.Module, *tensors: Tensor, **context: Any) -> Tensor:
    output: Tensor = layer(*tensors, **context)
    return output


@dataclass(frozen=True)
class Inputs:
    """What layer and solver take, and how the layer is run on it.

    Attributes
    ----------
    kind : {"tokens", "features", "image", "patches"}
        ``(q, k, v)`` as an operator does, one array of tokens, or one batch of images (batch,
        channels, height, width). For tokens, the layer is given all heads and the solver one at a
        time; "patches", of a task, are tokens of a noisy photograph alone.
    pairing : {"any", "self", "cross"}
        Whether keys are the queries themselves, other points, or either.
    by_rows : bool
        Whether a query's output depends on the keys that it sees alone, so that with masks the
        solver is given these; otherwise it reads ``call.visible`` itself, or takes no masks.
    reads_bias : bool
        Whether the output depends on which logits are the largest, so that the solver adds
        ``call.bias`` to them itself.
    context : callable, optional
        ``context(q, k, v)``, of arrays with heads, gives the `Context` of tensors that the layer
        needs beside them; the solver finds it in its `HeadCall`.
    apply : callable
        ``apply(layer, *tensors)`` runs the layer on its inputs; a plain call by default, with
        ``context=`` where there is one.
    """

    kind: Kind = "tokens"
    pairing: Pairing = "any"
    by_rows: bool = True
    reads_bias: bool = False
    context: Callable[[Array, Array, Array], Context] | None = None
    apply: Callable[..., Tensor] = _call


@dataclass(frozen=True)
class Numerics:
    """What rounding, tolerances and choices of a layer do to its output.

    Attributes
    ----------
    logit_range : callable
        ``logit_range(layer, *arrays)``, by which the float32 tolerance scales, as rounding of a
        logit is multiplied by its size: the largest difference of two logits of a head; 1 by
        default.
    passes : callable
        ``passes(layer)``: sequential passes over the data, such as iterations, which scale the
        float32 tolerance, as each rounds anew; 1 by default. Whatever both are, the tolerance of
        outputs in float32 ends at 1e-2.
    rounded : {"anything", "weights", "output"}
        What a layer that computes in float32 at least rounds to bfloat16: its output alone, or its
        weights too. Each number of these is then that of the solver, rounded, to the tolerance of
        float32. A layer that rounds anything else has the tolerance of bfloat16.
    summed : callable, optional
        ``summed(layer, call)`` gives, of the tokens of one head, the sizes of the terms that add up
        to the output, in its shape, where rounding may be all that is left of them; ``|C| |V|`` by
        default.
    promised : callable, optional
        ``promised(layer, tensors, found, expected)``, of a layer that iterates to a tolerance of
        its own: how far its outputs `found` are from the solver's, and how far that tolerance and
        rounding let them be, as a `Measurement`. Outputs that miss the relation's tolerance are
        held to it.
    chooses : bool
        Whether each query chooses some keys, so that equal ones may be chosen in more than one way;
        the solver then takes the layer's choice among these from ``call.chosen``.
    """

    logit_range: Callable[..., float] = lambda layer, *arrays: 1.0
    passes: Callable[[Any], int] = lambda layer: 1
    rounded: Rounded = "anything"
    summed: Callable[..., Array] | None = None
    promised: Callable[[Any, Tensors, Array, Array], Any] | None = None
    chooses: bool = False


@dataclass(frozen=True)
class Derivatives:
    """Which derivatives a layer has.

    Attributes
    ----------
    of : bool or tuple of str
        Whether gradients flow through all that the layer gives, to inputs, context and parameters,
        or to which of these alone.
    twice : tuple of {"backward", "torch.func"}
        The ways that give second derivatives, both by default: two backward passes, and two
        transforms. The others must be refused by a RuntimeError. Judged of layers that are
        differentiable in all.
    """

    of: bool | tuple[str, ...] = True
    twice: tuple[Way, ...] = ("backward", "torch.func")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A layer and the solver that it unrolls; a `Twin` also says how they are related.

    Attributes
    ----------
    name : str
        Unique, as printed in tables.
    family : str
        File that both sides live in.
    source : str
        Paper, or whose layer it is.
    layer : type
        Class of the layer.
    build : callable
        ``build(*arrays)`` makes the layer with parameters that suit the data, at its origin.
    solve : callable
        ``solve(layer, *arrays)`` gives the solver's output in float64 at the layer's present
        parameters; it alone translates the one into the other's arguments. For tokens it is
        ``solve(layer, call)`` with the `HeadCall` of one head at a time.
    equation : str, optional
        Equation id.
    options : mapping of str to callable
        Further ``build`` functions, by the name of what they change: settings other than the
        default that change the mathematics, for which `solve` has the counterpart.
    covers : callable
        Which layers of the class the twin is about; all by default.
    inputs : Inputs
    numerics : Numerics
    derivatives : Derivatives
    fitted : mapping of str to callable or None
        Parameters of the layer that what is solved depends on, for `fit_origin`: `Positive`, or a
        number. ``fitted[name](head_dim)`` is the value of one that is None.
    task : mapping of str to Any
        Fields of the twin that differ where it is to serve clustering or denoising, such as
        `build`: those of `for_task`. None by default, where the layer as built does.
    """

    name: str
    family: str
    source: str
    layer: type[nn.Module]
    build: Callable[..., nn.Module]
    solve: Callable[..., Array]
    equation: str = ""
    options: Mapping[str, Callable[..., nn.Module]] = field(default_factory=dict)
    covers: Callable[[Any], bool] = lambda layer: True
    inputs: Inputs = field(default_factory=Inputs)
    numerics: Numerics = field(default_factory=Numerics)
    derivatives: Derivatives = field(default_factory=Derivatives)
    fitted: Mapping[str, Callable[[int], float] | None] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)

    def with_context(self, context: Callable[..., Context] | None) -> Self:
        """The twin whose layer is given another `Context`."""
        return replace(self, inputs=replace(self.inputs, context=context))


def solve_head(twin: Pair, layer: nn.Module, call: HeadCall, *, rows: Array | None = None) -> Array:
    """The solver's output for one head, each query solved on the keys that it sees.

    Queries that see the same keys are solved together. Where queries are keys (`Inputs.pairing` is
    "self"), the problem is that of all visible points, of which a query must be one. A query that
    sees no key gives zeros, and so do those not among `rows`, if the twin is `by_rows`.
    """
    masked = not (call.visible is None and call.bias is None)
    if not twin.inputs.by_rows or not (masked or rows is not None):
        return _solve_and_check_shape(twin, layer, call)
    n, visible, (query_places, key_places) = len(call.q), call.visible, call.places
    if visible is None:
        visible = np.ones((n, len(call.k)), dtype=bool)
    out = np.zeros((n, call.v.shape[1]))
    for seen, queries in _group_by_visible_keys(visible, np.arange(n) if rows is None else rows):
        keys = np.flatnonzero(seen)
        if len(keys) == 0:
            continue
        if twin.inputs.pairing != "self":
            out[queries] = _solve_with_bias(twin, layer, call.take(queries, keys))
            continue
        places = np.searchsorted(key_places[keys], query_places[queries])
        out[queries] = _solve_and_check_shape(
            twin, layer, replace(call, q=call.k).take(keys, keys)
        )[places]
    return out


def _solve_and_check_shape(twin: Pair, layer: nn.Module, call: HeadCall) -> Array:
    """What the solver returns, which must be a row for each query."""
    found = np.asarray(twin.solve(layer, call))
    if found.shape != (expected := (len(call.q), call.v.shape[1])):
        raise ValueError(
            f"twin {twin.name}: solve returned an array of shape {found.shape}, not {expected}"
        )
    return found


def _solve_with_bias(twin: Pair, layer: nn.Module, call: HeadCall) -> Array:
    """Queries that see all keys; a bias multiplies the weights of a row, and their sum stays."""
    if call.bias is None or twin.inputs.reads_bias:
        return _solve_and_check_shape(twin, layer, call)
    weights = _solve_and_check_shape(twin, layer, replace(call.of_identity(), bias=None))
    weights = weights * np.exp(call.bias)
    return weights @ call.v / weights.sum(axis=1, keepdims=True)


def _group_by_visible_keys(visible: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
    """Each set of keys that some of the rows see, and which of them do."""
    sets, of_row = np.unique(visible[rows], axis=0, return_inverse=True)
    for index, seen in enumerate(sets):
        yield seen, rows[of_row.ravel() == index]


def layer_output(twin: Pair, layer: nn.Module, inputs: Tensors, **masks: Any) -> Array:
    """What the layer gives in its own dtype, as float64; `masks` as operators take them."""
    context = twin_context(twin, inputs)
    with torch.no_grad():
        given = {} if context is None else {"context": context}
        return as_array(twin.inputs.apply(layer, *inputs, **given, **masks))


def layer_matrix(twin: Pair, layer: nn.Module, q: Tensor, k: Tensor) -> Array:
    """The layer's coefficients by its own forward pass, on values that are the identity."""
    return layer_output(twin, layer, (q, k, identity_values(k)))


def solver_output(
    twin: Pair,
    layer: nn.Module,
    inputs: Tensors,
    *,
    visible: Array | None = None,
    bias: Array | None = None,
    rows: Array | None = None,
    chosen: Array | None = None,
) -> Array:
    """What the solver gives in float64 on the layer's own, possibly rounded, inputs.

    For tokens, `visible` of a shape that broadcasts to (heads, n_queries, n_keys) says which keys
    each query sees, all by default, and `bias` of such a shape adds to logits. Where the twin's
    solver serves rows apart, only the `rows` given are solved, and others are zero. `chosen` pairs
    are those of the layer (see `Numerics.chooses`).
    """
    if twin.inputs.kind != "tokens":
        return twin.solve(layer, *(as_array(x) for x in inputs))
    calls = calls_of_heads(twin, inputs, visible=visible, bias=bias)
    chosen_calls = (with_choice(call, chosen, inputs[0].dtype) for call in calls)
    return np.stack([solve_head(twin, layer, call, rows=rows) for call in chosen_calls])


def calls_of_heads(
    twin: Pair, inputs: Tensors, *, visible: Array | None = None, bias: Array | None = None
) -> Iterator[HeadCall]:
    """What the twin's solver is given of each head."""
    q, k, v = (as_array(x) for x in inputs)
    return head_calls(q, k, v, twin_context(twin, inputs), visible, bias)


def with_choice(call: HeadCall, chosen: Array | None, dtype: torch.dtype) -> HeadCall:
    """The call with the layer's choice of keys for all heads, made from scores in this dtype."""
    if chosen is None:
        return call
    return replace(call, chosen=chosen[call.head], tied=8 * torch.finfo(dtype).eps)


def twin_context(twin: Pair, inputs: Tensors) -> Context | None:
    """What the layer needs beside its inputs, in their dtype."""
    if twin.inputs.context is None:
        return None
    context = twin.inputs.context(*(as_array(x) for x in inputs))
    return map_tensors(context, lambda name, x: x.to(inputs[0].dtype))


def term_sizes(
    twin: Pair, layer: nn.Module, calls: Iterable[HeadCall], *, rows: Array | None = None
) -> Array | None:
    """Sizes of the terms that add up to the solver's output of each head, where these are known."""
    if twin.numerics.summed is not None:
        return np.stack([twin.numerics.summed(layer, call) for call in calls])
    if not getattr(layer, "linear_in_values", False):
        return None
    return np.stack(
        [
            np.abs(solve_head(twin, layer, call.of_identity(), rows=rows)) @ np.abs(call.v)
            for call in calls
        ]
    )
