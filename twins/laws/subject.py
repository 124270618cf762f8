"""The subject of laws: a layer, with what the laws need to know about it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ...unrolled.attention import Context
from .masks import NO_MASKS, Masks
from .measurement import Array, Measurement, largest_difference, rounding

Tensors = tuple[Tensor, ...]
Way = Literal["backward", "torch.func"]
N_HEADS = 3
_SIZES: dict[str, Any] = {
    "n": 14, "width": 6, "n_values": 4, "images": (2, 3, 11, 9), "heads": N_HEADS, "spread": 1.0
}  # fmt: skip
ROUNDED_ANEW = 3  # number of passes whose rounding counts; that of earlier ones is damped


class Declared(Protocol):
    """The properties that a layer on queries, keys and values declares, as an `Operator` does."""

    row_stochastic: bool
    nonnegative: bool
    linear_in_values: bool
    of_first_values: bool
    square_only: bool
    causal: bool
    pair_masks: bool
    additive_masks: bool
    data_dependent: bool
    positional: Literal["relative", "absolute"] | None
    max_length: int | None
    needs: tuple[str, ...]
    reads: tuple[str, ...]


class Reference(Protocol):
    """A function that computes the expected output in float64 without the layer's own code."""

    def __call__(
        self,
        layer: nn.Module,
        inputs: Tensors,
        context: Context | None,
        masks: Masks,
        rows: Array | None,
    ) -> Array:
        """Return the output at the layer's present parameters; only `rows` need be solved."""


class TooManyTokensError(ValueError):
    """A law draws more tokens than the layer takes: it cannot be tried on this layer."""


@dataclass(frozen=True)
class Accuracy:
    """How far the output of a correct layer may be from the expected output.

    Attributes
    ----------
    tolerance : float
        Tolerance of outputs in float64, relative to the largest.
    passes : callable
        ``passes(layer)``: number of passes over the data; each pass rounds.
    logit_range : callable
        ``logit_range(layer, *arrays)``: largest difference of two logits.
    rounded : {"anything", "weights", "output"}
        What the layer rounds to bfloat16 if it computes in float32.
    continuous : bool
        Whether rounding of the inputs changes the output only by rounding.
    iterates : bool
        Whether the layer iterates until a tolerance is met.
    differences : bool
        Whether tokens, where the layer compares them by differences, enter these as they are.
    """

    tolerance: float = 1e-10
    passes: Callable[[Any], int] = lambda layer: 1
    logit_range: Callable[..., float] = lambda layer, *arrays: 1.0
    rounded: Literal["anything", "weights", "output"] = "anything"
    continuous: bool = True
    iterates: bool = False
    differences: bool = True


def call_layer(layer: Any, *inputs: Tensor, **given: Any) -> Tensor:
    """Call the layer."""
    return layer(*inputs, **given)


def draw_inputs(kind: str, rng: np.random.Generator, *, same: bool, **sizes: Any) -> Tensors:
    """Draw float64 inputs: tokens of three heads, features, or images in colour.

    `same` makes the queries the keys. `spread` is the scale of queries and keys, and `channels` the
    number of channels of the images.
    """
    size = _SIZES | sizes
    n, width, heads = size["n"], size["width"], size["heads"]
    if kind == "image":
        batch, channels, *sides = size["images"]
        return (torch.from_numpy(rng.random((batch, size.get("channels", channels), *sides))),)
    if kind == "features":
        return (torch.from_numpy(rng.standard_normal((n, width))),)
    q, k = (
        size["spread"] * torch.from_numpy(rng.standard_normal((heads, n, width))) for _ in range(2)
    )
    v = torch.from_numpy(rng.standard_normal((heads, n, size["n_values"])))
    return (k if same else q), k, v


def check_length(declared: Declared | None, inputs: Tensors) -> None:
    """Raise a `TooManyTokensError` if there are more tokens than the layer takes."""
    largest = None if declared is None else declared.max_length
    if largest is not None and inputs[0].shape[-2] > largest:
        n = inputs[0].shape[-2]
        raise TooManyTokensError(f"the layer takes at most {largest} tokens, got {n}")


@dataclass(frozen=True)
class Subject:
    """A layer and float64 inputs on which its laws are measured.

    Attributes
    ----------
    layer : nn.Module
        In float64, at parameters that differ from head to head.
    inputs : tuple of Tensor
        Queries, keys and values of shape (heads, tokens, width); a feature matrix; or images.
    seed : tuple of int
        Seed of all random numbers that the laws draw.
    kind : {"tokens", "features", "image"}
    declared : Declared, optional
        What a layer on queries, keys and values with masks declares; None for other layers.
    reference : Reference, optional
        Without it, laws that compare with a reference do not apply.
    build : callable, optional
        ``build(inputs, rng)`` makes the layer for inputs of another size. By default the layer
        stays the same.
    apply : callable
        ``apply(layer, *inputs, context=..., **masks)`` runs the layer.
    make_context : callable
        ``make_context(inputs)`` returns the `Context` that the layer needs beside them, or None.
    accuracy : Accuracy
    differentiable : tuple of str
        Names of what the output has gradients by: "q", "k", "v", or "tokens" if queries are keys;
        "inputs", "parameters", "context".
    twice : mapping of {"backward", "torch.func"} to {"right", "refused", "either"}
        What second derivatives by each way must be.
    same_points : bool
        Whether the queries are the keys.
    rows_apart : bool
        Whether a row depends on no query but its own.
    large : mapping
        Sizes for which the layer uses its code path for large inputs, if the usual ones are too
        small.
    kept : mapping
        Sizes of all drawn inputs, which laws cannot change since the layer's parameters have them.
    brief : bool
        Whether laws are measured only in the hardest cases.
    """

    layer: nn.Module
    inputs: Tensors
    seed: tuple[int, ...] = (0,)
    kind: Literal["tokens", "features", "image"] = "tokens"
    declared: Declared | None = None
    reference: Reference | None = None
    build: Callable[[Tensors, np.random.Generator], nn.Module] | None = None
    apply: Callable[..., Tensor] = call_layer
    make_context: Callable[[Tensors], Context | None] = lambda inputs: None
    accuracy: Accuracy = field(default_factory=Accuracy)
    differentiable: tuple[str, ...] = ("q", "k", "v", "parameters", "context")
    twice: Mapping[Way, str] = field(default_factory=dict)
    same_points: bool = False
    rows_apart: bool = True
    large: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    brief: bool = False

    @property
    def context(self) -> Context | None:
        """The context that the layer gets beside its inputs, in their dtype."""
        context = self.make_context(self.inputs)
        if context is None:
            return None
        return map_tensors(context, lambda name, x: x.to(self.inputs[0].dtype))

    def rng(self, name: str) -> np.random.Generator:
        """Return a generator whose numbers depend only on the seed and the name."""
        return np.random.default_rng([*self.seed, *name.encode()])

    def on(self, inputs: Tensors, context: Context | None = None) -> Subject:
        """Return the layer on other inputs; a context given here serves all later inputs too."""
        make = self.make_context if context is None else lambda inputs: context
        return replace(self, inputs=inputs, make_context=make)

    def drawn(self, rng: np.random.Generator, **sizes: Any) -> Subject:
        """Return the layer on newly drawn inputs, of which it must take as many."""
        drawn = self._drawn(rng, sizes)
        check_length(self.declared, drawn.inputs)
        return drawn

    def _drawn(self, rng: np.random.Generator, sizes: dict[str, Any]) -> Subject:
        sizes |= self.kept
        return self.on(draw_inputs(self.kind, rng, same=self.same_points, **sizes))

    def resized(self, rng: np.random.Generator, **sizes: Any) -> Subject:
        """Return a layer of this kind, built for newly drawn inputs of another size."""
        if self.build is None:
            return self.drawn(rng, **sizes)
        drawn = self._drawn(rng, sizes)
        return replace(drawn, layer=self.build(drawn.inputs, rng))

    def to(self, dtype: torch.dtype) -> Subject:
        """Return the layer and its inputs in this dtype; expected outputs use the rounded ones."""
        layer = copy.deepcopy(self.layer).to(dtype)
        return replace(self, layer=layer, inputs=tuple(x.to(dtype) for x in self.inputs))

    def run(self, masks: Masks = NO_MASKS) -> Tensor:
        """Run the layer and return its output."""
        context = self.context
        keywords = {} if context is None else {"context": context}
        return self.apply(self.layer, *self.inputs, **keywords, **masks.given)

    def run_matrix(self, masks: Masks = NO_MASKS) -> Tensor:
        """Return the matrix of the layer."""
        layer: Any = self.layer
        return layer.matrix(*self.inputs[:2], context=self.context, **masks.given)

    def output(self, masks: Masks = NO_MASKS) -> Array:
        """Run the layer in its own dtype and return its output as a float64 array."""
        with torch.no_grad():
            return as_array(self.run(masks))

    def matrix(self, masks: Masks = NO_MASKS) -> Array:
        """Return the matrix of the layer, computed in its own dtype, as a float64 array."""
        with torch.no_grad():
            return as_array(self.run_matrix(masks))

    def expected(self, masks: Masks = NO_MASKS, rows: Array | None = None) -> Array:
        """Return the output of the reference, or without one the layer's own in float64."""
        if self.reference is None:
            exact = self.to(torch.float64)
            return exact.on(exact.inputs, self.context).output(masks)
        return self.reference(self.layer, self.inputs, self.context, masks, rows)

    def judge(self, found: Array, expected: Array) -> Measurement:
        """Compare float64 outputs, or arrays of their size, with expected ones."""
        return Measurement(largest_difference(found, expected), self.accuracy.tolerance)

    def compare(self, masks: Masks = NO_MASKS, rows: Array | None = None) -> Measurement:
        """Compare the layer's output with the expected one, to the tolerance of its dtype."""
        judged = slice(None) if rows is None else rows
        actual = self.output(masks)[..., judged, :]
        expected = self.expected(masks, rows)[..., judged, :]
        dtype, accuracy = self.inputs[0].dtype, self.accuracy
        if dtype == torch.float64:
            return self.judge(actual, expected)
        if dtype.itemsize == 2 and accuracy.rounded != "anything":
            # Each number may be off by eps / 2 of its size; the rest must be correct to float32.
            excess = np.abs(actual - expected) - torch.finfo(dtype).eps / 2 * np.abs(expected)
            actual, dtype = np.maximum(excess, 0) + expected, torch.float32
        passes = accuracy.passes(self.layer)
        if dtype.itemsize == 2:
            # The layer computes in float32, but each pass may round weights and values by eps / 2.
            tolerance = torch.finfo(dtype).eps * (1 + min(passes, ROUNDED_ANEW))
        else:
            arrays = (as_array(x.to(dtype)) for x in self.inputs)
            tolerance = rounding(dtype, passes, float(accuracy.logit_range(self.layer, *arrays)))
        return Measurement(largest_difference(actual, expected), tolerance)


def as_array(x: Tensor) -> Array:
    """Return the tensor as a float64 array."""
    return x.detach().cpu().double().numpy()


def map_tensors(context: Context, function: Callable[[str, Tensor], Any]) -> Context:
    """Return the context with ``function(name, tensor)`` in place of every tensor."""

    def map_value(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map_value(name, x) for x in value)
        return function(name, value) if isinstance(value, Tensor) else value

    return Context(**{name: map_value(name, value) for name, value in context._asdict().items()})


def identity_values(k: Tensor) -> Tensor:
    """Return the identity as values: the output of an operator is then its matrix."""
    return torch.eye(k.shape[-2], dtype=k.dtype).expand(len(k), -1, -1)
