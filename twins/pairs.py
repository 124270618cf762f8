"""A layer and its solver: the inputs of both, and the output of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..unrolled.attention import Context
from .heads import Array, HeadCall, Tensors, head_calls
from .laws.subject import Way, as_array, call_layer, identity_values, map_tensors

Kind = Literal["tokens", "features", "image", "patches"]
Pairing = Literal["any", "self", "cross"]
Rounded = Literal["anything", "weights", "output"]


@dataclass(frozen=True)
class Inputs:
    """The inputs of layer and solver, and how to run the layer on them.

    Attributes
    ----------
    kind : {"tokens", "features", "image", "patches"}
        "tokens" are ``(q, k, v)`` as an operator takes them: the layer gets all heads, the solver
        one at a time. "features" is one array of tokens. "image" is one batch of images (batch,
        channels, height, width). "patches", which only a task has, are patches of a noisy
        photograph, one a row.
    pairing : {"any", "self", "cross"}
        Whether the keys are the queries ("self"), other points ("cross") or either ("any").
    by_rows : bool
        Whether the output of a query depends only on the keys that it sees. If so, the solver gets
        only these keys; if not, it reads ``call.visible`` itself or takes no masks.
    reads_bias : bool
        Whether the output depends on which logits are the largest. If so, the solver itself adds
        ``call.bias`` to the logits.
    context : callable, optional
        ``context(q, k, v)``, of arrays with heads, returns the `Context` that the layer needs
        beside its tokens. The solver finds it in its `HeadCall`.
    apply : callable
        ``apply(layer, *tensors)`` runs the layer. The default calls it, with ``context=`` if the
        twin has a context.
    """

    kind: Kind = "tokens"
    pairing: Pairing = "any"
    by_rows: bool = True
    reads_bias: bool = False
    context: Callable[[Array, Array, Array], Context] | None = None
    apply: Callable[..., Tensor] = call_layer


@dataclass(frozen=True)
class Numerics:
    """How rounding, the layer's own tolerance and its choices affect its output.

    Attributes
    ----------
    logit_range : callable
        ``logit_range(layer, *arrays)``: the largest difference of two logits of a head, 1 by
        default. The float32 tolerance is proportional to it, since larger logits have larger
        rounding errors.
    passes : callable
        ``passes(layer)``: the number of sequential passes over the data, such as iterations, 1 by
        default. The float32 tolerance is proportional to it, since each pass rounds. The float32
        tolerance of outputs is never above 1e-2.
    rounded : {"anything", "weights", "output"}
        What a layer rounds to bfloat16 if it computes in float32: only its output, or its weights
        too. These numbers must then be the solver's, rounded, to the tolerance of float32. A layer
        that rounds anything else has the tolerance of bfloat16.
    summed : callable, optional
        ``summed(layer, call)`` returns the sizes of the terms that add up to the output of one
        head, in the shape of the output. They matter where the terms cancel and leave little but
        rounding. ``|C| |V|`` by default.
    promised : callable, optional
        Of a layer that iterates to a tolerance of its own. ``promised(layer, tensors, found,
        expected)`` is a `Measurement`: how far the layer's outputs `found` are from the solver's
        `expected`, and how far that tolerance and rounding let them be. It judges outputs that
        miss the relation's tolerance.
    chooses : bool
        Whether each query chooses some keys. Keys with equal scores can be chosen in several ways;
        the solver then makes the layer's choice, which is in ``call.chosen``.
    scales_first : bool
        Whether tokens are scaled before they are compared, which rounds those far from the origin.
    """

    logit_range: Callable[..., float] = lambda layer, *arrays: 1.0
    passes: Callable[[Any], int] = lambda layer: 1
    rounded: Rounded = "anything"
    summed: Callable[..., Array] | None = None
    promised: Callable[[Any, Tensors, Array, Array], Any] | None = None
    chooses: bool = False
    scales_first: bool = False


@dataclass(frozen=True)
class Derivatives:
    """Which derivatives a layer has.

    Attributes
    ----------
    of : bool or tuple of str
        Whether the whole output has gradients by the inputs, the context and the parameters, or
        the names of those that have them.
    twice : tuple of {"backward", "torch.func"}
        How second derivatives can be computed: by two backward passes, by two transforms, or both,
        the default. The other way must raise a RuntimeError. Only layers with all gradients are
        judged.
    """

    of: bool | tuple[str, ...] = True
    twice: tuple[Way, ...] = ("backward", "torch.func")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A layer and the solver that it unrolls; a `Twin` also says how they are related.

    Attributes
    ----------
    name : str
        Unique name, as in tables.
    family : str
        Name of the family: that of the files of the layer and of the solver.
    source : str
        The paper, or the author of the layer.
    layer : type
        Class of the layer.
    build : callable
        ``build(*arrays)`` makes the layer with initial parameters that suit the data.
    solve : callable
        ``solve(layer, *arrays)`` returns the solver's output in float64 at the layer's present
        parameters. Only this function translates the layer's parameters into the solver's
        arguments. For tokens it is ``solve(layer, call)`` with the `HeadCall` of one head.
    equation : str, optional
        Equation id.
    options : mapping of str to callable
        Further ``build`` functions by name. Each sets an option of the layer that changes the
        mathematics; `solve` must follow it.
    covers : callable
        ``covers(layer)``: whether the twin is about this layer of the class; all by default.
    inputs : Inputs
    numerics : Numerics
    derivatives : Derivatives
    fitted : mapping of str to callable or None
        Parameters of the solved problem for `fit_origin`, by their names in the layer: each is a
        `Positive` or a number. ``fitted[name](head_dim)`` is the value of one that is None.
    task : mapping of str to Any
        Fields of the twin, such as `build`, that are different when it clusters or denoises; see
        `Twin.for_task`. Empty by default: the layer as built is used.
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
        """Return the twin with another maker of the layer's `Context`."""
        return replace(self, inputs=replace(self.inputs, context=context))


def solve_head(twin: Pair, layer: nn.Module, call: HeadCall, *, rows: Array | None = None) -> Array:
    """Solve one head, each query on the keys that it sees.

    Queries that see the same keys are solved together. If the queries are the keys
    (`Inputs.pairing` is "self"), all visible points are one problem, and each query must be one of
    them. If the twin is `by_rows`, the output is zero for a query that sees no key or is not among
    `rows`.
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
    """Return the solver's output, which must have one row for each query."""
    output = np.asarray(twin.solve(layer, call))
    if output.shape != (expected := (len(call.q), call.v.shape[1])):
        raise ValueError(
            f"twin {twin.name}: solve returned an array of shape {output.shape}, not {expected}"
        )
    return output


def _solve_with_bias(twin: Pair, layer: nn.Module, call: HeadCall) -> Array:
    """Solve queries that see all keys; the weights times ``exp(bias)`` are rescaled to sum one."""
    if call.bias is None or twin.inputs.reads_bias:
        return _solve_and_check_shape(twin, layer, call)
    weights = _solve_and_check_shape(twin, layer, replace(call.of_identity(), bias=None))
    weights = weights * np.exp(call.bias)
    return weights @ call.v / weights.sum(axis=1, keepdims=True)


def _group_by_visible_keys(visible: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
    """Yield each set of keys that some of the rows see, with these rows."""
    sets, of_row = np.unique(visible[rows], axis=0, return_inverse=True)
    for index, seen in enumerate(sets):
        yield seen, rows[of_row.ravel() == index]


def layer_output(twin: Pair, layer: nn.Module, inputs: Tensors, **masks: Any) -> Array:
    """Run the layer in its own dtype and return float64; `masks` are those of operators."""
    context = twin_context(twin, inputs)
    if context is not None:
        masks["context"] = context
    with torch.no_grad():
        return as_array(twin.inputs.apply(layer, *inputs, **masks))


def layer_matrix(twin: Pair, layer: nn.Module, q: Tensor, k: Tensor) -> Array:
    """Return the layer's coefficients: the output of its forward pass for identity values."""
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
    """Solve in float64 on the layer's own, possibly rounded, inputs.

    For tokens, `visible` says which keys each query sees, all by default, and `bias` is added to
    the logits; their shapes broadcast to (heads, n_queries, n_keys). If the twin is `by_rows`,
    only the given `rows` are solved and the others are zero. `chosen` holds the keys that the
    layer chose (see `Numerics.chooses`).
    """
    if twin.inputs.kind != "tokens":
        return twin.solve(layer, *(as_array(x) for x in inputs))
    calls = calls_of_heads(twin, inputs, visible=visible, bias=bias)
    chosen_calls = (with_choice(call, chosen, inputs[0].dtype) for call in calls)
    return np.stack([solve_head(twin, layer, call, rows=rows) for call in chosen_calls])


def calls_of_heads(
    twin: Pair, inputs: Tensors, *, visible: Array | None = None, bias: Array | None = None
) -> Iterator[HeadCall]:
    """Yield the call of the twin's solver for each head."""
    q, k, v = (as_array(x) for x in inputs)
    return head_calls(q, k, v, twin_context(twin, inputs), visible, bias)


def with_choice(call: HeadCall, chosen: Array | None, dtype: torch.dtype) -> HeadCall:
    """Return the call with the keys that the layer chose by scores in this dtype.

    `chosen` holds those of all heads.
    """
    if chosen is None:
        return call
    return replace(call, chosen=chosen[call.head], tied=8 * torch.finfo(dtype).eps)


def twin_context(twin: Pair, inputs: Tensors) -> Context | None:
    """Return the context that the layer needs beside its inputs, in their dtype."""
    if twin.inputs.context is None:
        return None
    context = twin.inputs.context(*(as_array(x) for x in inputs))
    return map_tensors(context, lambda name, x: x.to(inputs[0].dtype))


def term_sizes(
    twin: Pair, layer: nn.Module, calls: Iterable[HeadCall], *, rows: Array | None = None
) -> Array | None:
    """Return the sizes of the terms that add up to the solver's output of each head, if known."""
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
