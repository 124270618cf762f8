"""Gradients of a layer against differences of its solver, each along a drawn direction."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .heads import Array, Tensors
from .relations import Measurement, solver_output
from .subjects import Subject, free_parameters

_STEPS = (3e-6, 1e-7)  # differences are then accurate to 1e-11 f''' + 1e-9 f
_TOLERANCE = 1e-5


class _Derivative(NamedTuple):
    at: Tensors
    gradient: Tensors


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
        self.subject = subject.on(subject.inputs, subject.context)
        self.seed = int(rng.integers(2**32))
        self.rows = rows
        self.visible = visible
        self.masks = masks

    @property
    def names(self) -> list[str]:
        """What there is to differentiate by."""
        names = list(self._leaves(self.subject.inputs))
        free = free_parameters(self.subject.twin, self.subject.layer)
        return [*names, "parameters"] if free else names

    def measure(self, name: str) -> Measurement:
        """Deviation of the derivatives along a direction, over the larger one.

        A layer that chooses (keys, a support) may choose anew within a step; a second, shorter one
        decides.
        """
        at, gradient = self._derivatives[name]
        rng = np.random.default_rng([self.seed, *name.encode()])
        direction = tuple(_direction(g, rng) for g in gradient)
        found = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))
        deviation = float("inf")
        for step in _STEPS:
            if not deviation <= _TOLERANCE:
                expected = self._difference(name, at, direction, step)
                size = max(abs(found), abs(expected), np.finfo(np.float64).tiny)
                deviation = abs(found - expected) / size
        return Measurement(deviation, _TOLERANCE)

    def _difference(self, name: str, at: Tensors, direction: Tensors, step: float) -> float:
        """The solver's derivative along the direction, by a central difference."""
        ahead, behind = (
            self._solved(name, tuple(x + h * d for x, d in zip(at, direction, strict=True)))
            for h in (step, -step)
        )
        return (ahead - behind) / (2 * step)

    def _parameters(self) -> Any:
        return (x for x in self.subject.layer.parameters() if x.requires_grad)

    def _leaves(self, inputs: Tensors) -> dict[str, Tensor]:
        if len(inputs) == 1:
            return {"inputs": inputs[0]}
        q, k, v = inputs
        if self.subject.twin.pairing == "self":
            return {"tokens": k, "v": v}
        return {"q": q, "k": k, "v": v}

    def _inputs(self, leaves: dict[str, Tensor]) -> Tensors:
        if "tokens" in leaves:
            return leaves["tokens"], leaves["tokens"], leaves["v"]
        return tuple(leaves.values())

    @cached_property
    def _cotangent(self) -> Tensor:
        shape = solver_output(self.subject.twin, self.subject.layer, self.subject.inputs).shape
        drawn = torch.from_numpy(np.random.default_rng(self.seed).standard_normal(shape))
        if self.rows is not None:
            judged = torch.zeros(shape[-2], 1, dtype=drawn.dtype)
            judged[self.rows] = 1
            drawn *= judged
        return drawn

    @cached_property
    def _derivatives(self) -> dict[str, _Derivative]:
        twin, layer, inputs = self.subject.twin, self.subject.layer, self.subject.inputs
        leaves = {
            name: x.detach().clone().requires_grad_() for name, x in self._leaves(inputs).items()
        }
        given = {} if self.subject.context is None else {"context": self.subject.context}
        output = twin.apply(layer, *self._inputs(leaves), **given, **self.masks)
        at = {name: (x,) for name, x in leaves.items()} | {"parameters": tuple(self._parameters())}
        sources = [x for tensors in at.values() for x in tensors]
        found = iter(
            torch.autograd.grad(
                (output * self._cotangent).sum(), sources, allow_unused=True, materialize_grads=True
            )
        )
        return {
            name: _Derivative(
                tuple(x.detach() for x in tensors), tuple(next(found) for _ in tensors)
            )
            for name, tensors in at.items()
        }

    def _solved(self, name: str, at: Tensors) -> float:
        """The combination of the solver's outputs where some of its arguments are others."""
        layer, leaves = self.subject.layer, self._leaves(self.subject.inputs)
        if name == "parameters":
            layer = copy.deepcopy(layer)
            moved = [x for x in layer.parameters() if x.requires_grad]
            with torch.no_grad():
                for parameter, value in zip(moved, at, strict=True):
                    parameter.copy_(value)
        else:
            leaves[name] = at[0]
        out = solver_output(
            self.subject.twin, layer, self._inputs(leaves), visible=self.visible, rows=self.rows
        )
        return float((out * self._cotangent.numpy()).sum())


def _direction(gradient: Tensor, rng: np.random.Generator) -> Tensor:
    drawn = torch.from_numpy(rng.standard_normal(gradient.shape))
    size = gradient.square().mean().sqrt()
    return drawn + gradient / size if size > 0 else drawn
