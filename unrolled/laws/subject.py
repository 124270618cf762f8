"""The subject of laws: a layer, with what the laws need to know about it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Context
from .masks import NO_MASKS, Masks
from .measurement import Array, Measurement, largest_difference, rounding

Tensors = tuple[Tensor, ...]
Way = Literal["backward", "torch.func"]
N_HEADS = 3
_SIZES: dict[str, Any] = {
    "n": 14, "width": 6, "n_values": 4, "images": (2, 3, 11, 9), "heads": N_HEADS, "spread": 1.0
}  # fmt: skip
ROUNDED_ANEW = 3  # what lies more passes back is damped


class Declared(Protocol):
    """The laws that a layer on queries, keys and values declares, as an `Operator` does."""

    row_stochastic: bool
    nonnegative: bool
    linear_in_values: bool
    of_first_values: bool
    square_only: bool
    causal: bool
    pair_masks: bool
    additive_masks: bool
    data_dependent: bool
    needs: tuple[str, ...]
    reads: tuple[str, ...]


class Reference(Protocol):
    """The expected output in float64, by another way than the layer's own."""

    def __call__(
        self,
        layer: nn.Module,
        inputs: Tensors,
        context: Context | None,
        masks: Masks,
        rows: Array | None,
    ) -> Array:
        """Outputs of the layer at its present parameters; of `rows` alone, others are zero."""


@dataclass(frozen=True)
class Accuracy:
    """How far a correct layer may be from the expected output.

    Attributes
    ----------
    tolerance : float
        Tolerance of outputs in float64, relative to the largest.
    passes : callable
        ``passes(layer)``: number of passes over the data, each of which rounds anew.
    logit_range : callable
        ``logit_range(layer, *arrays)``: largest difference of two logits, whose rounding counts.
    rounded : {"anything", "weights", "output"}
        What a layer that computes in float32 at least rounds to bfloat16.
    continuous : bool
        Whether a change by rounding moves the output by rounding.
    iterates : bool
        Whether the layer iterates until a tolerance is met.
    """

    tolerance: float = 1e-10
    passes: Callable[[Any], int] = lambda layer: 1
    logit_range: Callable[..., float] = lambda layer, *arrays: 1.0
    rounded: Literal["anything", "weights", "output"] = "anything"
    continuous: bool = True
    iterates: bool = False


def call_layer(layer: Any, *inputs: Tensor, **given: Any) -> Tensor:
    """Call the layer."""
    return layer(*inputs, **given)


def draw_inputs(kind: str, rng: np.random.Generator, *, same: bool, **sizes: Any) -> Tensors:
    """Random float64 inputs: tokens of three heads that differ, features, or images in colour.

    With `spread`, queries and keys are that much larger; `channels` are those of the images.
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


@dataclass(frozen=True)
class Subject:
    """A layer and float64 inputs to try its laws on.

    Attributes
    ----------
    layer : nn.Module
        In float64, at parameters that differ from head to head.
    inputs : tuple of Tensor
        Queries, keys and values of shape (heads, tokens, width); a feature matrix; or images.
    seed : tuple of int
        Seeds what the laws draw.
    kind : {"tokens", "features", "image"}
    declared : Declared, optional
        The laws of a layer on queries, keys and values that takes masks; None of other layers.
    reference : Reference, optional
        Without one, laws that compare with a reference do not apply.
    build : callable, optional
        ``build(inputs, rng)`` makes the layer for inputs of another size; by default it stays the
        same.
    apply : callable
        ``apply(layer, *inputs, context=..., **masks)`` runs the layer.
    make_context : callable
        ``make_context(inputs)`` gives the `Context` that the layer needs beside them, or None.
    accuracy : Accuracy
    differentiable : tuple of str
        What has gradients: "q", "k", "v", or "tokens" where queries are keys; "inputs",
        "parameters", "context".
    twice : mapping of {"backward", "torch.func"} to {"right", "refused", "either"}
        What two derivatives by each way must be.
    same_points : bool
        Whether the queries are the keys.
    rows_apart : bool
        Whether a row depends on no query but its own.
    large : mapping
        Sizes so large that the layer computes in another way, where the usual ones are too small.
    kept : mapping
        Sizes that drawn inputs have whatever a law asks for, as the layer has parameters for these.
    brief : bool
        Whether laws are measured in the hardest cases only.
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
        """Random numbers that depend on the seed and the name alone."""
        return np.random.default_rng([*self.seed, *name.encode()])

    def on(self, inputs: Tensors, context: Context | None = None) -> Subject:
        """The layer on other inputs; a context given here stays for all later inputs."""
        make = self.make_context if context is None else lambda inputs: context
        return replace(self, inputs=inputs, make_context=make)

    def drawn(self, rng: np.random.Generator, **sizes: Any) -> Subject:
        """The layer on inputs drawn anew."""
        sizes |= self.kept
        return self.on(draw_inputs(self.kind, rng, same=self.same_points, **sizes))

    def resized(self, rng: np.random.Generator, **sizes: Any) -> Subject:
        """A layer of this kind, built for inputs of another size."""
        drawn = self.drawn(rng, **sizes)
        if self.build is None:
            return drawn
        return replace(drawn, layer=self.build(drawn.inputs, rng))

    def to(self, dtype: torch.dtype) -> Subject:
        """The layer and its inputs, rounded; expected outputs are those of the rounded ones."""
        layer = copy.deepcopy(self.layer).to(dtype)
        return replace(self, layer=layer, inputs=tuple(x.to(dtype) for x in self.inputs))

    def run(self, masks: Masks = NO_MASKS) -> Tensor:
        """Output of the layer."""
        context = self.context
        given = {} if context is None else {"context": context}
        return self.apply(self.layer, *self.inputs, **given, **masks.given)

    def run_matrix(self, masks: Masks = NO_MASKS) -> Tensor:
        """Matrix that the layer returns."""
        layer: Any = self.layer
        return layer.matrix(*self.inputs[:2], context=self.context, **masks.given)

    def output(self, masks: Masks = NO_MASKS) -> Array:
        """Output of the layer in its own dtype, as a float64 array."""
        with torch.no_grad():
            return as_array(self.run(masks))

    def matrix(self, masks: Masks = NO_MASKS) -> Array:
        """Matrix of the layer in its own dtype, as a float64 array."""
        with torch.no_grad():
            return as_array(self.run_matrix(masks))

    def expected(self, masks: Masks = NO_MASKS, rows: Array | None = None) -> Array:
        """The reference's output, or without one the layer's own in float64."""
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
        found = self.output(masks)[..., judged, :]
        expected = self.expected(masks, rows)[..., judged, :]
        dtype, accuracy = self.inputs[0].dtype, self.accuracy
        if dtype == torch.float64:
            return self.judge(found, expected)
        if dtype.itemsize == 2 and accuracy.rounded != "anything":
            # Each number is right to eps / 2 of its size, and beyond that to float32.
            excess = np.abs(found - expected) - torch.finfo(dtype).eps / 2 * np.abs(expected)
            found, dtype = np.maximum(excess, 0) + expected, torch.float32
        passes = accuracy.passes(self.layer)
        if dtype.itemsize == 2:
            # Computed in float32, but each pass may round weights and values, by eps / 2 each.
            tolerance = torch.finfo(dtype).eps * (1 + min(passes, ROUNDED_ANEW))
        else:
            arrays = (as_array(x.to(dtype)) for x in self.inputs)
            tolerance = rounding(dtype, passes, float(accuracy.logit_range(self.layer, *arrays)))
        return Measurement(largest_difference(found, expected), tolerance)


def as_array(x: Tensor) -> Array:
    """The tensor as a float64 array."""
    return x.detach().cpu().double().numpy()


def map_tensors(context: Context, function: Callable[[str, Tensor], Any]) -> Context:
    """The context with ``function(name, tensor)`` in place of every tensor in it."""

    def mapped(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(mapped(name, x) for x in value)
        return function(name, value) if isinstance(value, Tensor) else value

    return Context(**{name: mapped(name, value) for name, value in context._asdict().items()})


def identity_values(k: Tensor) -> Tensor:
    """Values that turn the output of an operator into its matrix."""
    return torch.eye(k.shape[-2], dtype=k.dtype).expand(len(k), -1, -1)
