"""How a layer and its solver may be related, and how the deviation from that is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from scipy.linalg import qr
from torch import Tensor, nn

from ..attention import Context
from ..laws import Measurement as Measurement
from ..laws import largest_difference as largest_difference
from ..laws import rounding
from ..laws import worst as worst
from ..laws.subject import identity_values as identity_values
from ..solved_operator import Solved
from .heads import (
    Array,
    HeadCall,
    Tensors,
    as_array,
    head_calls,
    map_fields,
    solve_head,
)

if TYPE_CHECKING:
    from .registry import Problem, Twin

_SOLVED = 1e-10
_TINY = np.finfo(np.float64).tiny


# The exact twins of this package differ by 2e-5 at most in float32. What may differ by more than a
# percent is no rounding, and a check that lets it pass shows nothing.
_COARSEST_ROUNDING = 1e-2
ROUNDING_ADVICE = (
    "float64 agrees, so that this may be rounding, which Twin.logit_range (the spread of a head's "
    "logits) and Twin.passes (iterations) say the size of; the tolerance is 32 eps x passes x "
    f"range, and {_COARSEST_ROUNDING:g} at most"
)


# Codes are of their dtype, but objective and dual value are computed in float64.
_BETTER_THAN_OPTIMAL = 1e-7


class Relation(Protocol):
    """What is compared between a layer and its solver."""

    name: ClassVar[str]

    @property
    def tolerance(self) -> float:
        """Largest accepted deviation in float64."""

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        """How far the layer deviates."""

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        """What the solver and the layer give, for the task numbers."""


class TaskOutputs(NamedTuple):
    """What the solver and the layer give for the task numbers, and on which tokens (None: all)."""

    solver: Array
    layer: Array
    tokens: Array | None = None


def layer_output(twin: Twin, layer: nn.Module, inputs: Tensors, **masks: Any) -> Array:
    """What the layer gives in its own dtype, as float64; `masks` as operators take them."""
    context = twin_context(twin, inputs)
    with torch.no_grad():
        given = {} if context is None else {"context": context}
        return as_array(twin.apply(layer, *inputs, **given, **masks))


def layer_matrix(twin: Twin, layer: nn.Module, q: Tensor, k: Tensor) -> Array:
    """The layer's coefficients by its own forward pass, on values that are the identity."""
    return layer_output(twin, layer, (q, k, identity_values(k)))


def solver_output(
    twin: Twin,
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
    are those of the layer (see `Twin.chooses`).
    """
    if twin.inputs != "tokens":
        return twin.solve(layer, *(as_array(x) for x in inputs))
    calls = calls_of_heads(twin, inputs, visible=visible, bias=bias)
    chosen_calls = (with_choice(call, chosen, inputs[0].dtype) for call in calls)
    return np.stack([solve_head(twin, layer, call, rows=rows) for call in chosen_calls])


def calls_of_heads(
    twin: Twin, inputs: Tensors, *, visible: Array | None = None, bias: Array | None = None
) -> Iterator[HeadCall]:
    """What the twin's solver is given of each head."""
    q, k, v = (as_array(x) for x in inputs)
    return head_calls(q, k, v, twin_context(twin, inputs), visible, bias)


def with_choice(call: HeadCall, chosen: Array | None, dtype: torch.dtype) -> HeadCall:
    """The call with the layer's choice of keys for all heads, made from scores in this dtype."""
    if chosen is None:
        return call
    return replace(call, chosen=chosen[call.head], tied=8 * torch.finfo(dtype).eps)


def twin_context(twin: Twin, inputs: Tensors) -> Context | None:
    """What the layer needs beside its inputs, in their dtype."""
    if twin.context is None:
        return None
    context = twin.context(*(as_array(x) for x in inputs))
    return Context(**map_fields(context, lambda name, x: x.to(inputs[0].dtype)))


def compare_outputs(
    twin: Twin, layer: nn.Module, inputs: Tensors, *, tolerance: float
) -> Measurement:
    """Largest difference of the two outputs, as `measure_difference` has it.

    In float32 the tolerance is ``32 eps * passes * logit range``, whatever it is in float64, but no
    more than 1e-2. A layer that iterates to a tolerance of its own may be held to that.
    """
    found = layer_output(twin, layer, inputs)  # first, as it says best what it cannot take
    expected = solver_output(twin, layer, inputs)
    rounding = rounding_of(twin, layer, inputs, twin.passes(layer))
    if inputs[0].dtype == torch.float32:
        rounding = min(rounding, _COARSEST_ROUNDING)
    tolerance = tolerance if inputs[0].dtype == torch.float64 else rounding

    def summed() -> Array | None:
        if twin.inputs != "tokens":
            return None
        return term_sizes(twin, layer, calls_of_heads(twin, inputs))

    limits: dict[str, Any] = {"tolerance": tolerance, "rounding": rounding, "summed": summed}
    measured = measure_difference(found, expected, **limits)
    if twin.chooses and not measured.passed:
        chosen = layer_matrix(twin, layer, *inputs[:2]) != 0
        expected = solver_output(twin, layer, inputs, chosen=chosen)
        measured = measure_difference(found, expected, **limits)
    return or_promised(measured, twin, layer, inputs, found, expected)


def or_promised(
    measured: Measurement,
    twin: Twin,
    layer: nn.Module,
    inputs: Tensors,
    found: Array,
    expected: Array,
) -> Measurement:
    """What was measured, or where that fails and the layer promises less, what it promises."""
    if measured.passed or twin.promised is None:
        return measured
    return twin.promised(layer, inputs, found, expected)


def measure_difference(
    found: Array,
    expected: Array,
    *,
    tolerance: float,
    rounding: float,
    summed: Callable[[], Array | None],
) -> Measurement:
    """`largest_difference`, but for what rounding does to terms that cancel.

    Where the difference exceeds the tolerance, it is held to ``rounding * max(summed())``, with the
    sizes of the terms that add up to the output, such as ``|C| |V|``. In float64 rounding is some
    1e-14, so that a fault is excused only where the output is that much smaller than its terms.
    """
    deviation = largest_difference(found, expected)
    if deviation <= tolerance or (sizes := summed()) is None:
        return Measurement(deviation, tolerance)
    largest = np.abs(expected).max(initial=_TINY)
    relief = max(1.0, float(rounding / tolerance * sizes.max(initial=0.0) / largest))
    return Measurement(deviation / relief, tolerance, relief=relief)


def term_sizes(
    twin: Twin, layer: nn.Module, calls: Iterable[HeadCall], *, rows: Array | None = None
) -> Array | None:
    """Sizes of the terms that add up to the solver's output of each head, where these are known."""
    if twin.summed is not None:
        return np.stack([twin.summed(layer, call) for call in calls])
    if not getattr(layer, "linear_in_values", False):
        return None
    return np.stack(
        [
            np.abs(solve_head(twin, layer, call.of_identity(), rows=rows)) @ np.abs(call.v)
            for call in calls
        ]
    )


def _certified(
    twin: Twin, layer: nn.Module, inputs: Tensors, tolerance: float
) -> list[Measurement]:
    if twin.certificate is None or inputs[0].dtype != torch.float64:
        return []
    return [Measurement(twin.certificate(twin, layer, inputs), tolerance)]


def _both_outputs(twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
    return TaskOutputs(solver_output(twin, layer, inputs), layer_output(twin, layer, inputs))


@dataclass(frozen=True)
class Identity:
    """Layer and solver compute the same: ``max|layer - solver| / max|solver|``.

    In float64 the residual of the twin's certificate, where it has one, is held to the same
    tolerance; so it is in `Init`, `Iterate` and `FixedPointLimit`.
    """

    name: ClassVar[str] = "identity"
    tolerance: float = 1e-10

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        compared = compare_outputs(twin, layer, inputs, tolerance=self.tolerance)
        return worst([compared, *_certified(twin, layer, inputs, self.tolerance)])

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        return _both_outputs(twin, layer, inputs)


@dataclass(frozen=True)
class Init(Identity):
    """As `Identity`, of the layer at its initial parameters, where it is its origin."""

    name: ClassVar[str] = "init"


@dataclass(frozen=True)
class Bound:
    """Proved inequalities ``lhs <= rhs``: ``max(0, lhs - rhs) / scale``, the worst of all entries.

    `Twin.bound` measures both sides with the layer, the right one by the solvers: on the data, and
    on inputs of its own on which the proof has equality, where a layer that falls short fails too.
    The tightness is the largest ``lhs / rhs``. The task numbers are those of the twin's `solve` and
    of the layer.
    """

    name: ClassVar[str] = "bound"
    tolerance: float = 1e-10

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        if twin.bound is None:
            raise ValueError(f"{twin.name}: the relation needs Twin.bound")
        with torch.no_grad():
            sides = twin.bound(layer, *inputs)
        tolerance = tolerance_of(twin, layer, inputs, self.tolerance, twin.passes(layer))
        return Measurement(sides.excess(), tolerance, sides.tightness())

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        return _both_outputs(twin, layer, inputs)


@dataclass(frozen=True)
class Iterate:
    """After K iterations both hold the same iterate, for every K; the worst K counts.

    The layer must have an attribute `n_iter`. The task numbers are those of the largest K.
    """

    name: ClassVar[str] = "iterate"
    tolerance: float = 1e-10
    n_iter: tuple[int, ...] = (1, 2, 5, 10, 50)

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        return worst(
            [
                compare_outputs(twin, with_n_iter(layer, K), inputs, tolerance=self.tolerance)
                for K in self.n_iter
            ]
            + _certified(twin, layer, inputs, self.tolerance)
        )

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        return _both_outputs(twin, with_n_iter(layer, max(self.n_iter)), inputs)


@dataclass(frozen=True)
class Rate:
    """K iterations of the layer are within the proved rate of the optimum, for every K.

    The deviation is the largest ``(F(C_K) - F*) / (c / K)``; see `Problem` for F and c. Codes that
    are better than the optimum by more than 1e-7 fail. No Lasso comes closer to the proved rate
    than a fifth or so, so that a layer which is twice as slow may be within it: `Iterate` sees
    that. The task numbers are those of the solver's and the layer's iterates at the largest K.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1.0
    n_iter: tuple[int, ...] = (1, 4, 16, 64)

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        problems, measured = _problems(twin, layer, inputs), []
        for K in self.n_iter:
            for problem, codes in zip(problems, _codes(twin, layer, inputs, K), strict=True):
                excess = _suboptimality(problem, codes)
                measured.append(Measurement(_ratio(excess, problem.rate / K), 1.0))
                measured.append(Measurement(max(0.0, -excess), _BETTER_THAN_OPTIMAL))
        return worst(measured)

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        return _both_outputs(twin, with_n_iter(layer, max(self.n_iter)), inputs)


@dataclass(frozen=True)
class Limit:
    """Many iterations of the layer reach the optimum: ``|F(C_K) - F*|`` on a few tokens.

    On those whose keys are most independent (by pivoted QR) it is within the tolerance: as many
    that ISTA's linear rate, ``1 - s^2 / |k^T k|_F`` with the smallest singular value s of the keys,
    is ``exp(-20)`` after `n_iter` iterations. On `n_tokens` that are most alike, where ISTA is
    slow, it is within the proved rate c / K after K = `n_iter_alike` iterations, where one is
    proved, as in `Rate`; a layer without `n_iter`, which stops by itself, is held to the tolerance
    there too. The task numbers are those of the certified solution and of the layer, on the
    independent tokens.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 3000
    n_iter_alike: int = 1000
    n_tokens: int = 12

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        independent, alike = (
            tuple(x[:, tokens] for x in inputs)
            for tokens in (
                self._independent(inputs),
                _most_alike(as_array(inputs[1][0]), self.n_tokens),
            )
        )
        tolerance = tolerance_of(twin, layer, independent, self.tolerance, 1)
        measured = [
            Measurement(abs(_suboptimality(problem, codes)), tolerance)
            for problem, codes in _solved(twin, layer, independent, self.n_iter)
        ]
        for problem, codes in _solved(twin, layer, alike, self.n_iter_alike):
            proved = problem.rate / self.n_iter_alike if hasattr(layer, "n_iter") else 0.0
            if np.isfinite(proved):
                excess = _suboptimality(problem, codes)
                of_rate = Measurement(_ratio(excess, proved), 1.0)
                measured.append(of_rate if proved > tolerance else Measurement(excess, tolerance))
                measured.append(Measurement(max(0.0, -excess), tolerance))
        return worst(measured)

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        tokens = self._independent(inputs)
        few = tuple(x[:, tokens] for x in inputs)
        problems = _problems(twin, layer, few)
        values = as_array(few[2])
        solved = np.stack([problem.coef @ v for problem, v in zip(problems, values, strict=True)])
        converged = layer_output(twin, with_n_iter(layer, self.n_iter), few)
        return TaskOutputs(solved, converged, tokens)

    def _independent(self, inputs: Tensors) -> Array:
        keys = as_array(inputs[1])
        order = qr(keys[0].T, mode="r", pivoting=True)[1][: self.n_tokens]
        for count in range(len(order), 0, -1):
            s = np.linalg.svd(keys[:, order[:count]], compute_uv=False)
            if (s[:, -1] ** 2 * self.n_iter >= 20 * np.linalg.norm(s**2, axis=1)).all():
                break
        return np.sort(order[:count])


def _most_alike(keys: Array, count: int) -> Array:
    """A token and those of largest cosine with it, where the smallest of these is largest."""
    unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), _TINY)
    nearest = np.argsort(-np.abs(unit @ unit.T), axis=1, kind="stable")[:, :count]
    cosines = np.abs(np.einsum("id,id->i", unit, unit[nearest[:, -1]]))
    return np.sort(nearest[cosines.argmax()])


@dataclass(frozen=True)
class FixedPointLimit:
    """Many iterations of the layer reach what the solver finds at once, as `Identity` measures.

    The layer must have an attribute `n_iter`; `solve` gives the limit, whatever that is.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 1000

    def measure(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
        iterated = with_n_iter(layer, self.n_iter)
        compared = compare_outputs(twin, iterated, inputs, tolerance=self.tolerance)
        return worst([compared, *_certified(twin, iterated, inputs, self.tolerance)])

    def task_outputs(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        return _both_outputs(twin, with_n_iter(layer, self.n_iter), inputs)


def _problems(twin: Twin, layer: nn.Module, inputs: Tensors) -> list[Problem]:
    if twin.problem is None:
        raise ValueError(f"{twin.name}: the relation needs Twin.problem")
    return [twin.problem(layer, call) for call in calls_of_heads(twin, inputs)]


def _solved(
    twin: Twin, layer: nn.Module, inputs: Tensors, n_iter: int
) -> list[tuple[Problem, Array]]:
    """The problem of each head, and the layer's codes after so many iterations."""
    problems = _problems(twin, layer, inputs)
    return list(zip(problems, _codes(twin, layer, inputs, n_iter), strict=True))


def _codes(twin: Twin, layer: nn.Module, inputs: Tensors, n_iter: int) -> Array:
    return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])


def _suboptimality(problem: Problem, codes: Array) -> float:
    return problem.objective(codes) - problem.lower_bound


def _ratio(excess: float, bound: float) -> float:
    """Quotient with 0 / 0 = 0."""
    if bound == 0:
        return 0.0 if excess <= 0 else float("inf")
    return excess / bound


def with_n_iter(layer: nn.Module, n_iter: int) -> nn.Module:
    """The layer, with the same parameters, but so many iterations."""
    changed: Any = copy.copy(layer)
    changed.n_iter = n_iter
    if isinstance(changed, Solved):  # which iterates until its own tolerance is met
        changed.tol = min(changed.tol, _SOLVED)
    return changed


def tolerance_of(
    twin: Twin, layer: nn.Module, inputs: Tensors, tolerance: float, steps: int
) -> float:
    """`tolerance` in float64, else ``32 eps * steps * logit range``."""
    if inputs[0].dtype == torch.float64:
        return tolerance
    return rounding_of(twin, layer, inputs, steps)


def rounding_of(twin: Twin, layer: nn.Module, inputs: Tensors, steps: int) -> float:
    """``32 eps * steps * logit range``, eps of the dtype of the inputs."""
    logits = float(twin.logit_range(layer, *(as_array(x) for x in inputs)))
    return rounding(inputs[0].dtype, steps, logits)
