"""Derivatives of a layer against differences of its solver, each along a drawn direction."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..attention import Context
from .heads import Array, Tensors, map_fields
from .pairs import solver_output
from .relations import Measurement
from .subjects import Subject, free_parameters

_STEPS = (3e-6, 1e-7, 1e-8)  # differences are accurate to 1e-11 f''' + 1e-9 f, at last 1e-8 f
_TOLERANCE = 1e-5
_LONGEST = 10.0  # by which a move is longer, so that differences stay accurate
_SECOND_STEPS = (2e-4, 2e-5)  # second differences are then accurate to 1e-8 f'''' + 1e-8 f
_SECOND_TOLERANCE = 1e-4
_LEAST_CURVATURE = 1e-3  # of the slope: less is that of a straight line, to the same accuracy


class Gradients:
    """The gradient of a random combination of the outputs, in float64.

    The layer's, by one backward pass, is held against central differences of the solver, which
    reads the layer's parameters. Directions are half random and half the layer's own gradient, so
    that no derivative is small by chance.

    Parameters
    ----------
    subject : Subject
    rng : Generator
    rows : ndarray of int, optional
        Queries whose outputs are combined; all by default.
    visible : ndarray of bool, optional
        As `solver_output` takes it.
    **masks
        The same as the layer takes it.
    """

    def __init__(
        self,
        subject: Subject,
        rng: np.random.Generator,
        *,
        rows: Array | None = None,
        visible: Array | None = None,
        **masks: Any,
    ) -> None:
        self.subject, self.context = subject, subject.context
        self.seed = int(rng.integers(2**32))
        self.rows = rows
        self.visible = visible
        self.masks = masks

    @property
    def names(self) -> list[str]:
        """What there is to differentiate by."""
        return list(self._at)

    def measure(self, *names: str) -> Measurement:
        """Deviation of the derivatives along a direction of all these, over the larger one.

        A layer that chooses (keys, a support) may choose anew within a step; a shorter one then
        decides.
        """
        rng = np.random.default_rng([self.seed, *"".join(names).encode()])
        direction = self._balanced(
            {name: tuple(_direction(g, rng) for g in self._gradient[name]) for name in names}
        )
        found = float(_along(self._gradient, direction))
        deviation = float("inf")
        for step in _STEPS:
            if not deviation <= _TOLERANCE:
                ahead, behind = (self._solved(direction, h) for h in (step, -step))
                deviation = _relative(found, (ahead - behind) / (2 * step))
        return Measurement(deviation, _TOLERANCE)

    def _balanced(self, direction: dict[str, Tensors]) -> dict[str, Tensors]:
        """The direction with longer moves by those that the slope would else say little of."""
        slopes = {
            name: abs(float(_along(self._gradient, {name: moves})))
            for name, moves in direction.items()
        }
        most = max(slopes.values())
        factors = {
            name: min(most / slope, _LONGEST) if slope else _LONGEST
            for name, slope in slopes.items()
        }
        return {name: tuple(factors[name] * d for d in moves) for name, moves in direction.items()}

    def measure_second(self, *, transformed: bool = False) -> Measurement:
        """Deviation of the second derivatives along one direction of all that there is.

        It holds the mixed ones of any two. They are taken by two backward passes, or by the
        transforms of ``torch.func``; where PyTorch's fused kernel has none, by that which it names
        for this. Where the solver bends within a step, a shorter one decides.
        """
        rng = np.random.default_rng([self.seed, *b"second"])
        direction = {
            name: tuple(_direction(g, rng) / g.numel() ** 0.5 for g in gradient)
            for name, gradient in self._gradient.items()
        }
        found = self._curvature(direction, transformed)
        least = _LEAST_CURVATURE * abs(float(_along(self._gradient, direction)))
        here, deviation = self._solved(direction, 0.0), float("inf")
        for step in _SECOND_STEPS:
            if not deviation <= _SECOND_TOLERANCE:
                ahead, behind = (self._solved(direction, h) for h in (step, -step))
                deviation = _relative(found, (ahead - 2 * here + behind) / step**2, least)
        return Measurement(deviation, _SECOND_TOLERANCE)

    def _curvature(self, direction: dict[str, Tensors], transformed: bool) -> float:
        if transformed:
            with sdpa_kernel(SDPBackend.MATH):
                second = torch.func.grad(
                    lambda at: _along(torch.func.grad(self._combination)(at), direction)
                )(self._at)
            return float(_along(second, direction).detach())
        try:
            return self._curvature_by_passes(direction)
        except RuntimeError as error:
            if "scaled_dot_product" not in str(error):
                raise
        with sdpa_kernel(SDPBackend.MATH):
            return self._curvature_by_passes(direction)

    def _curvature_by_passes(self, direction: dict[str, Tensors]) -> float:
        at = _leaves(self._at)
        slope = _along(_backward(self._combination(at), at, create_graph=True), direction)
        return float(_along(_backward(slope, at), direction)) if slope.requires_grad else 0.0

    @cached_property
    def _at(self) -> dict[str, Tensors]:
        """Inputs and, where the twin is about others too, parameters and context."""
        subject = self.subject
        at: dict[str, Tensors] = {name: (x,) for name, x in self._tokens.items()}
        if free_parameters(subject.twin, subject.layer):
            at["parameters"] = tuple(x.detach() for x in self._named_parameters().values())
        if tensors := _tensors_of(self.context):
            at["context"] = tensors
        named: Any = subject.twin.derivatives.of
        return {name: x for name, x in at.items() if named is True or name in named}

    @property
    def _tokens(self) -> dict[str, Tensor]:
        inputs = self.subject.inputs
        if len(inputs) == 1:
            return {"inputs": inputs[0]}
        q, k, v = inputs
        if self.subject.twin.inputs.pairing == "self":
            return {"tokens": k, "v": v}
        return {"q": q, "k": k, "v": v}

    def _inputs(self, at: dict[str, Tensors]) -> Tensors:
        given = {name: at.get(name, (x,))[0] for name, x in self._tokens.items()}
        if "tokens" in given:
            return given["tokens"], given["tokens"], given["v"]
        return tuple(given.values())

    def _context(self, at: dict[str, Tensors]) -> Context | None:
        if self.context is None or "context" not in at:
            return self.context
        tensors = iter(at["context"])
        return Context(**map_fields(self.context, lambda name, x: next(tensors)))

    def _named_parameters(self) -> dict[str, Tensor]:
        layer = self.subject.layer
        return {name: x for name, x in layer.named_parameters() if x.requires_grad}

    @cached_property
    def _cotangent(self) -> Tensor:
        subject = self.subject
        given = {} if self.context is None else {"context": self.context}
        with torch.no_grad():
            shape = subject.twin.inputs.apply(
                subject.layer, *subject.inputs, **given, **self.masks
            ).shape
        drawn = torch.from_numpy(np.random.default_rng(self.seed).standard_normal(shape))
        if self.rows is not None:
            judged = torch.zeros(shape[-2], 1, dtype=drawn.dtype)
            judged[self.rows] = 1
            drawn *= judged
        return drawn

    @cached_property
    def _gradient(self) -> dict[str, Tensors]:
        at = _leaves(self._at)
        return _backward(self._combination(at), at)

    def _combination(self, at: dict[str, Tensors]) -> Tensor:
        """The combination of the layer's outputs."""
        names = (f"layer.{name}" for name in self._named_parameters())
        given = {} if self.context is None else {"context": self._context(at)}
        output = torch.func.functional_call(
            _Applied(self.subject),
            dict(zip(names, at.get("parameters", ()), strict=False)),
            self._inputs(at),
            given | self.masks,
        )
        return (output * self._cotangent).sum()

    def _solved(self, direction: dict[str, Tensors], step: float) -> float:
        """The combination of the solver's outputs a step along the direction."""
        layer, at = self.subject.layer, dict(self._at)
        for name, moves in direction.items():
            at[name] = tuple(x + step * d for x, d in zip(at[name], moves, strict=True))
        if "parameters" in direction:
            layer = copy.deepcopy(layer)
            own = (x for x in layer.parameters() if x.requires_grad)
            with torch.no_grad():
                for parameter, value in zip(own, at["parameters"], strict=True):
                    parameter.copy_(value)
        moved = self.subject.on(self._inputs(at), self._context(at))
        out = solver_output(moved.twin, layer, moved.inputs, visible=self.visible, rows=self.rows)
        return float((out * self._cotangent.numpy()).sum())


class _Applied(nn.Module):
    """The layer as its twin runs it, so that its parameters can be exchanged."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.layer, self.apply_twin = subject.layer, subject.twin.inputs.apply

    def forward(self, *inputs: Tensor, **given: Any) -> Tensor:
        return self.apply_twin(self.layer, *inputs, **given)


def _tensors_of(context: Context | None) -> Tensors:
    found: list[Tensor] = []
    if context is not None:
        map_fields(context, lambda name, x: found.append(x))
    return tuple(found)


def _leaves(at: dict[str, Tensors]) -> dict[str, Tensors]:
    return {
        name: tuple(x.detach().clone().requires_grad_() for x in tensors)
        for name, tensors in at.items()
    }


def _backward(
    value: Tensor, at: dict[str, Tensors], *, create_graph: bool = False
) -> dict[str, Tensors]:
    gradients = torch.autograd.grad(
        value,
        [x for tensors in at.values() for x in tensors],
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    found = iter(gradients)
    return {name: tuple(next(found) for _ in tensors) for name, tensors in at.items()}


def _along(gradient: dict[str, Tensors], direction: dict[str, Tensors]) -> Tensor:
    pairs = [
        (g * d).sum()
        for name, moves in direction.items()
        for g, d in zip(gradient[name], moves, strict=True)
    ]
    return torch.stack(pairs).sum()


def _relative(found: float, expected: float, least: float = 0.0) -> float:
    """Their difference over the larger one."""
    size = max(abs(found), abs(expected), least, np.finfo(np.float64).tiny)
    return abs(found - expected) / size


def _direction(gradient: Tensor, rng: np.random.Generator) -> Tensor:
    drawn = torch.from_numpy(rng.standard_normal(gradient.shape))
    size = gradient.square().mean().sqrt()
    return drawn + gradient / size if size > 0 else drawn
