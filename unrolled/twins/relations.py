"""How a layer and its solver may be related, and how the deviation from that is measured."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .registry import Problem, Twin

Array = np.ndarray
Tensors = tuple[Tensor, ...]


class Measurement(NamedTuple):
    """A deviation and the tolerance that it is held against."""

    deviation: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.deviation <= self.tolerance


class Relation(Protocol):
    """What is compared between a layer and its solver."""

    name: ClassVar[str]

    @property
    def tolerance(self) -> float:
        """Largest accepted deviation in float64."""

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement: ...


def layer_output(twin: Twin, layer: nn.Module, inputs: Tensors) -> Array:
    """What the layer gives in its own dtype, as float64."""
    with torch.no_grad():
        return _array(twin.apply(layer, *inputs))


def layer_matrix(twin: Twin, layer: nn.Module, q: Tensor, k: Tensor) -> Array:
    """The layer's coefficients by its own forward pass, on values that are the identity."""
    identity = torch.eye(k.shape[-2], dtype=k.dtype).expand(len(k), -1, -1)
    return layer_output(twin, layer, (q, k, identity))


def solver_output(twin: Twin, layer: nn.Module, inputs: Tensors) -> Array:
    """What the solver gives in float64 on the layer's own, possibly rounded, inputs."""
    if twin.inputs != "tokens":
        return twin.solve(layer, *(_array(x) for x in inputs))
    return np.stack([twin.solve(layer, *arrays, head=h) for h, arrays in heads(inputs)])


def heads(inputs: Tensors) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Index and float64 arrays of each head of tensors of shape (heads, tokens, width)."""
    for head, tensors in enumerate(zip(*inputs, strict=True)):
        yield head, tuple(_array(x) for x in tensors)


def compare_outputs(
    twin: Twin, layer: nn.Module, inputs: Tensors, *, tolerance: float, steps: int = 1
) -> Measurement:
    """Largest difference of the two outputs over the solver's largest entry.

    In float32 the tolerance is ``32 eps * steps * logit range``, whatever it is in float64.
    """
    expected = solver_output(twin, layer, inputs)
    difference = np.abs(layer_output(twin, layer, inputs) - expected).max()
    deviation = float(difference / max(np.abs(expected).max(), np.finfo(np.float64).tiny))
    return Measurement(deviation, _tolerance(twin, layer, inputs, tolerance, steps))


@dataclass(frozen=True)
class Identity:
    """Layer and solver compute the same: ``max|layer - solver| / max|solver|``."""

    name: ClassVar[str] = "identity"
    tolerance: float = 1e-10

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        return compare_outputs(twin, layer, inputs, tolerance=self.tolerance, steps=twin.passes)


@dataclass(frozen=True)
class Iterate:
    """After K iterations both hold the same iterate, for every K; the worst K counts.

    The layer must have an attribute `n_iter`.
    """

    name: ClassVar[str] = "iterate"
    tolerance: float = 1e-10
    n_iter: tuple[int, ...] = (1, 2, 5, 10, 50)

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        return _worst(
            [
                compare_outputs(
                    twin, _with_n_iter(layer, K), inputs, tolerance=self.tolerance, steps=K
                )
                for K in self.n_iter
            ]
        )


@dataclass(frozen=True)
class Rate:
    """K iterations of the layer are within the proved rate of the optimum, for every K.

    The deviation is the largest ``(F(C_K) - F*) / (c / K)``; see `Problem` for F and c.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1.0
    n_iter: tuple[int, ...] = (1, 4, 16, 64, 256)

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        problems = _problems(twin, layer, inputs)
        return _worst(
            [
                Measurement(_suboptimality(problem, codes) / (problem.rate / K), self.tolerance)
                for K in self.n_iter
                for problem, codes in zip(problems, _codes(twin, layer, inputs, K), strict=True)
            ]
        )


@dataclass(frozen=True)
class Limit:
    """Many iterations of the layer reach the optimum: ``F(C_K) - F*`` on the first few tokens."""

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 20_000
    n_tokens: int = 8

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        few = tuple(x[:, : self.n_tokens] for x in inputs)
        tolerance = _tolerance(twin, layer, few, self.tolerance, steps=1)
        problems, codes = _problems(twin, layer, few), _codes(twin, layer, few, self.n_iter)
        return _worst(
            [
                Measurement(_suboptimality(problem, C), tolerance)
                for problem, C in zip(problems, codes, strict=True)
            ]
        )


def _problems(twin: Twin, layer: nn.Module, inputs: Tensors) -> list[Problem]:
    if twin.problem is None:
        raise ValueError(f"{twin.name}: the relation needs Twin.problem")
    return [twin.problem(layer, q, k, head=h) for h, (q, k) in heads(inputs[:2])]


def _codes(twin: Twin, layer: nn.Module, inputs: Tensors, n_iter: int) -> Array:
    return layer_matrix(twin, _with_n_iter(layer, n_iter), *inputs[:2])


def _suboptimality(problem: Problem, codes: Array) -> float:
    return problem.objective(codes) - problem.lower_bound


def _with_n_iter(layer: nn.Module, n_iter: int) -> nn.Module:
    changed: Any = copy.deepcopy(layer)
    changed.n_iter = n_iter
    return changed


def _tolerance(
    twin: Twin, layer: nn.Module, inputs: Tensors, tolerance: float, steps: int
) -> float:
    dtype = inputs[0].dtype
    if dtype == torch.float64:
        return tolerance
    logits = max(1.0, twin.logit_range(layer, *(_array(x) for x in inputs)))
    return 32 * torch.finfo(dtype).eps * steps * logits


def _worst(measurements: list[Measurement]) -> Measurement:
    def excess(measurement: Measurement) -> float:
        ratio = measurement.deviation / measurement.tolerance
        return ratio if ratio == ratio else float("inf")

    return max(measurements, key=excess)


def _array(x: Tensor) -> Array:
    return x.detach().cpu().double().numpy()
