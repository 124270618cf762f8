"""The relations between a layer and its solver, and how to measure deviations from them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.linalg import qr
from torch import nn

from ..unrolled.solved_operator import Solved
from .heads import Array, Tensors
from .laws import Measurement, largest_difference, rounding, worst
from .laws.subject import as_array
from .pairs import Pair, calls_of_heads, layer_matrix, layer_output, solver_output, term_sizes

Evidence = Literal["solver", "certificate", "formula", "bound"]
_SOLVED = 1e-10
_TINY = np.finfo(np.float64).tiny


# The exact twins of this package differ by at most 2e-5 in float32. A difference of over a percent
# is not rounding: a check that accepts it shows nothing.
_COARSEST_ROUNDING = 1e-2
ROUNDING_ADVICE = (
    "float64 agrees, so this may be rounding. The tolerance is 32 eps x passes x range, and "
    f"{_COARSEST_ROUNDING:g} at most: set Numerics.passes (iterations) and Numerics.logit_range "
    "(the range of a head's logits) to what the layer has"
)
# Codes are rounded to their dtype; objective and dual value are computed in float64.
_BETTER_THAN_OPTIMAL = 1e-7


class Inequalities:
    """A collection of inequalities ``lhs <= rhs``, each judged by ``(lhs - rhs) / scale``.

    Examples
    --------
    >>> from twinsolve.twins import Inequalities
    >>> sides = Inequalities()
    >>> sides.at_most([1.0, -2.0], [2.0, -1.0])
    >>> sides.attained(3.0, 4.0, share=0.5)
    >>> sides.excess(), sides.tightness()
    (0.0, 0.75)
    >>> sides.at_most(-1.0, -2.0)
    >>> sides.excess()
    0.5
    """

    def __init__(self) -> None:
        self._excesses: list[Array] = []
        self._ratios: list[Array] = []

    def at_most(self, lhs: ArrayLike, rhs: ArrayLike, *, scale: ArrayLike | None = None) -> None:
        """Add ``lhs <= rhs``.

        Parameters
        ----------
        lhs, rhs : array-like
            Their shapes must broadcast.
        scale : array-like, optional
            Size of the numbers whose rounding affects both sides; ``max(|lhs|, |rhs|)`` by default.
        """
        left, right = np.asarray(lhs, dtype=np.float64), np.asarray(rhs, dtype=np.float64)
        size = self._add(left, right, scale)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self._ratios.append(np.ravel(np.where(right > 1e-4 * size, left / right, 0.0)))

    def attained(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        *,
        share: ArrayLike = 1.0,
        scale: ArrayLike | None = None,
    ) -> None:
        """Add ``share rhs <= lhs <= rhs``, for inputs at which the proof has equality.

        Parameters
        ----------
        lhs, rhs, scale : array-like
            As in `at_most`.
        share : array-like, default=1.0
            Share of the bound that is provably reached.
        """
        self.at_most(lhs, rhs, scale=scale)
        self._add(np.asarray(share) * np.asarray(rhs), np.asarray(lhs, dtype=np.float64), scale)

    def _add(self, lhs: Array, rhs: Array, scale: ArrayLike | None) -> Array:
        """Keep the excesses ``(lhs - rhs) / scale``; return the scale."""
        size = np.maximum(np.abs(lhs), np.abs(rhs)) if scale is None else np.asarray(scale)
        with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity is NaN: fails
            excess = (lhs - rhs) / np.maximum(size, np.finfo(np.float64).tiny)
        self._excesses.append(np.ravel(np.maximum(excess, 0.0)))
        return size

    def excess(self) -> float:
        """Return the largest ``max(0, lhs - rhs) / scale``, or NaN if an entry is NaN."""
        return float(np.max(np.concatenate(self._excesses)))

    def tightness(self) -> float:
        """Return the largest ``lhs / rhs``; 1 means that a bound is reached.

        Entries whose right side is at most 1e-4 of the scale are left out, as they are rounding.
        """
        return float(np.max(np.concatenate(self._ratios)))


@dataclass(frozen=True)
class Problem:
    """The optimisation problem of a layer, with its solution.

    Attributes
    ----------
    coef : ndarray of shape (n_queries, n_keys)
        Certified solution C*.
    objective : callable
        The objective F of coefficients of this shape; infinite if they violate a constraint.
    lower_bound : float
        Dual value, at most ``F* = min F``.
    rate : float
        The c of the proved rate ``F(C_K) - F* <= c / K`` after K iterations of the layer. Infinite
        if the layer's step is too long for the proof.
    """

    coef: Array
    objective: Callable[[Array], float]
    lower_bound: float
    rate: float

    def excess(self, codes: Array) -> float:
        """Return the objective of these codes minus the dual value."""
        return self.objective(codes) - self.lower_bound


class TaskOutputs(NamedTuple):
    """Outputs of solver and layer for the numbers of a task, and their tokens (None is all)."""

    solver: Array
    layer: Array
    tokens: Array | None = None


def measure_difference(
    found: Array,
    expected: Array,
    *,
    tolerance: float,
    rounding: float,
    summed: Callable[[], Array | None],
) -> Measurement:
    """Measure `largest_difference`, with a larger tolerance where the terms of the output cancel.

    If the difference exceeds the tolerance, the limit is ``rounding * max(summed())``: `summed`
    returns the sizes of the terms that add up to the output, such as ``|C| |V|``. As rounding in
    float64 is about 1e-14, this excuses a fault only where the output is that much smaller than its
    terms.
    """
    deviation = largest_difference(found, expected)
    if deviation <= tolerance or (sizes := summed()) is None:
        return Measurement(deviation, tolerance)
    largest = np.abs(expected).max(initial=_TINY)
    relief = max(1.0, float(rounding / tolerance * sizes.max(initial=0.0) / largest))
    return Measurement(deviation / relief, tolerance, relief=relief)


def judge_outputs(
    twin: Pair,
    layer: nn.Module,
    inputs: Tensors,
    found: Array,
    solve: Callable[[Array | None], Array],
    *,
    tolerance: float,
    rounding: float,
    summed: Callable[[], Array | None],
    choice: Callable[[], Array],
) -> Measurement:
    """Measure the difference of a layer's output from the solver's, ``solve(None)``.

    If that fails, a layer that chooses keys is compared with ``solve(choice())``, and a layer that
    iterates to its own tolerance is judged by `Numerics.promised`.
    """
    limits: dict[str, Any] = {"tolerance": tolerance, "rounding": rounding, "summed": summed}
    expected = solve(None)
    measured = measure_difference(found, expected, **limits)
    if twin.numerics.chooses and not measured.holds:
        measured = measure_difference(found, solve(choice()), **limits)
    if measured.holds or twin.numerics.promised is None:
        return measured
    promised: Measurement = twin.numerics.promised(layer, inputs, found, expected)
    return promised


def compare_outputs(
    twin: Pair, layer: nn.Module, inputs: Tensors, *, tolerance: float
) -> Measurement:
    """Measure the largest difference of the two outputs by `judge_outputs`.

    `tolerance` is that of float64. In float32 it is ``32 eps * passes * logit range``, and 1e-2 at
    most.
    """
    output = layer_output(twin, layer, inputs)  # first, as the layer has the clearer errors
    rounding = rounding_of(twin, layer, inputs, twin.numerics.passes(layer))
    if inputs[0].dtype == torch.float32:
        rounding = min(rounding, _COARSEST_ROUNDING)
    tokens = twin.inputs.kind == "tokens"
    return judge_outputs(
        twin,
        layer,
        inputs,
        output,
        lambda chosen: solver_output(twin, layer, inputs, chosen=chosen),
        tolerance=tolerance if inputs[0].dtype == torch.float64 else rounding,
        rounding=rounding,
        summed=lambda: term_sizes(twin, layer, calls_of_heads(twin, inputs)) if tokens else None,
        choice=lambda: layer_matrix(twin, layer, *inputs[:2]) != 0,
    )


@dataclass(frozen=True)
class Relation:
    """What is compared between a layer and its solver; the base class of all relations.

    Attributes
    ----------
    tolerance : float
        Largest accepted deviation in float64.
    certificate : callable, optional
        ``certificate(twin, layer, tensors)`` returns how far the layer's output is from satisfying
        the optimality conditions of the problem that it solves. It is in units of the output and
        uses no formula of the solution; see `twinsolve.twins.judging.certificates`. In float64 it
        must be within the tolerance too.
    problem : callable, optional
        ``problem(layer, call)`` solves the optimisation problem of the layer and returns it as a
        `Problem`.
    evidence : {"solver", "certificate", "formula", "bound"}
        What an agreement proves. "solver": an independent solver of the layer's problem has the
        same result. "certificate": the output is optimal by a certificate of that problem.
        "formula": the same formula, written again, has the same value. "bound": an inequality
        holds. The default is "bound" for a `Bound`, "certificate" for a `Rate`, a `Limit` and a
        relation with a certificate, and "formula" otherwise.
    """

    name: ClassVar[str]
    tolerance: float = 1e-10
    _: KW_ONLY
    certificate: Callable[..., float] | None = None
    problem: Callable[..., Problem] | None = None
    evidence: Evidence = "formula"

    def __post_init__(self) -> None:
        if self.certificate is not None and self.evidence == "formula":
            object.__setattr__(self, "evidence", "certificate")

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        """Measure how far the layer deviates from the relation."""
        compared = compare_outputs(twin, self._run(layer), inputs, tolerance=self.tolerance)
        return worst([compared, *self._certified(twin, self._run(layer), inputs)])

    def task_outputs(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        """Return the outputs of the solver and the layer for the numbers of a task."""
        layer = self._run(layer)
        return TaskOutputs(solver_output(twin, layer, inputs), layer_output(twin, layer, inputs))

    def _run(self, layer: nn.Module) -> nn.Module:
        """Return the layer as it is compared: with the right number of iterations."""
        return layer

    def _certified(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> list[Measurement]:
        """Return the certificate's measurement, for float64 inputs if there is a certificate."""
        if self.certificate is None or inputs[0].dtype != torch.float64:
            return []
        return [Measurement(self.certificate(twin, layer, inputs), self.tolerance)]

    def _problems(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> list[Problem]:
        """Return the problem of each head."""
        if self.problem is None:
            raise ValueError(f"{twin.name}: the relation needs a problem")
        return [self.problem(layer, call) for call in calls_of_heads(twin, inputs)]


@dataclass(frozen=True)
class Identity(Relation):
    """Layer and solver have equal outputs; the deviation is ``max|layer - solver| / max|solver|``.

    In float64 the residual of the certificate, if there is one, must be within the tolerance too.
    The same holds for `Init`, `Iterate` and `FixedPointLimit`.
    """

    name: ClassVar[str] = "identity"


@dataclass(frozen=True)
class Init(Relation):
    """As `Identity`, for the layer at its initial parameters: there it equals its solver."""

    name: ClassVar[str] = "init"


@dataclass(frozen=True)
class Bound(Relation):
    """Proved inequalities ``lhs <= rhs``.

    The deviation is the largest ``max(0, lhs - rhs) / scale``, the tightness the largest
    ``lhs / rhs``. ``sides(layer, *tensors)`` returns `Inequalities`. It measures the left sides
    with the layer and the right sides with the solvers, on the data and on inputs at which the
    proof has equality. On these a layer that stays below the bound fails too. The numbers of a task
    compare the twin's `solve` with the layer.
    """

    name: ClassVar[str] = "bound"
    _: KW_ONLY
    sides: Callable[..., Inequalities]
    evidence: Evidence = "bound"

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        with torch.no_grad():
            sides = self.sides(layer, *inputs)
        passes = twin.numerics.passes(layer)
        tolerance = tolerance_of(twin, layer, inputs, self.tolerance, passes)
        return Measurement(sides.excess(), tolerance, sides.tightness())


@dataclass(frozen=True)
class Iterate(Relation):
    """After K iterations layer and solver have the same iterate; the worst K in `n_iter` counts.

    The layer must have an attribute `n_iter`. The numbers of a task use the largest K.
    """

    name: ClassVar[str] = "iterate"
    n_iter: tuple[int, ...] = (1, 2, 5, 10, 50)

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        compared = [
            compare_outputs(twin, with_n_iter(layer, K), inputs, tolerance=self.tolerance)
            for K in self.n_iter
        ]
        return worst(compared + self._certified(twin, layer, inputs))

    def _run(self, layer: nn.Module) -> nn.Module:
        return with_n_iter(layer, max(self.n_iter))


@dataclass(frozen=True)
class Rate(Relation):
    """K iterations of the layer come as near the optimum as the proved rate says, for every K.

    The deviation is the largest ``(F(C_K) - F*) / (c / K)``; see `Problem` for F and c. Codes that
    are better than the optimum by more than 1e-7 fail. A Lasso reaches at most about a fifth of the
    proved rate, so that a layer which is twice as slow may pass; `Iterate` detects it. The numbers
    of a task compare the iterates of solver and layer at the largest K.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1.0
    n_iter: tuple[int, ...] = (1, 4, 16, 64)
    _: KW_ONLY
    evidence: Evidence = "certificate"

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        problems, measured = self._problems(twin, layer, inputs), []
        for K in self.n_iter:
            for problem, codes in zip(problems, _codes_after(twin, layer, inputs, K), strict=True):
                excess = problem.excess(codes)
                measured.append(Measurement(_ratio(excess, problem.rate / K), 1.0))
                measured.append(Measurement(max(0.0, -excess), _BETTER_THAN_OPTIMAL))
        return worst(measured)

    def _run(self, layer: nn.Module) -> nn.Module:
        return with_n_iter(layer, max(self.n_iter))


@dataclass(frozen=True)
class Limit(Relation):
    """Many iterations of the layer reach the optimum; the deviation is ``|F(C_K) - F*|``.

    It is measured on two small sets of tokens:

    - Those whose keys are most independent (by pivoted QR). After `n_iter` iterations the deviation
      must be within the tolerance. There are so many tokens that ISTA's linear rate, ``1 - s^2 /
      |k^T k|_F`` with the smallest singular value s of the keys, makes it ``exp(-20)``.
    - The `n_tokens` that are most alike, for which ISTA is slow. After K = `n_iter_alike`
      iterations it must be within the proved rate c / K, as in `Rate`, if one is proved. A layer
      without `n_iter`, which stops by itself, must be within the tolerance here too.

    The numbers of a task compare the certified solution with the layer on the independent tokens.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 3000
    n_iter_alike: int = 1000
    n_tokens: int = 12
    _: KW_ONLY
    evidence: Evidence = "certificate"

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        independent, alike = (
            tuple(x[:, tokens] for x in inputs)
            for tokens in (
                self._independent(inputs),
                _most_alike(as_array(inputs[1][0]), self.n_tokens),
            )
        )
        tolerance = tolerance_of(twin, layer, independent, self.tolerance, 1)
        measured = [
            Measurement(abs(excess), tolerance)
            for _, excess in self._excesses(twin, layer, independent, self.n_iter)
        ]
        for problem, excess in self._excesses(twin, layer, alike, self.n_iter_alike):
            proved = problem.rate / self.n_iter_alike if hasattr(layer, "n_iter") else 0.0
            if np.isfinite(proved):
                of_rate = Measurement(_ratio(excess, proved), 1.0)
                measured.append(of_rate if proved > tolerance else Measurement(excess, tolerance))
                measured.append(Measurement(max(0.0, -excess), tolerance))
        return worst(measured)

    def task_outputs(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        tokens = self._independent(inputs)
        chosen_inputs = tuple(x[:, tokens] for x in inputs)
        problems = self._problems(twin, layer, chosen_inputs)
        values = as_array(chosen_inputs[2])
        solved = np.stack([problem.coef @ v for problem, v in zip(problems, values, strict=True)])
        converged = layer_output(twin, with_n_iter(layer, self.n_iter), chosen_inputs)
        return TaskOutputs(solved, converged, tokens)

    def _independent(self, inputs: Tensors) -> Array:
        """Return some tokens that are so independent that the iteration converges in time."""
        keys = as_array(inputs[1])
        order = qr(keys[0].T, mode="r", pivoting=True)[1][: self.n_tokens]
        for count in range(len(order), 0, -1):
            s = np.linalg.svd(keys[:, order[:count]], compute_uv=False)
            if (s[:, -1] ** 2 * self.n_iter >= 20 * np.linalg.norm(s**2, axis=1)).all():
                break
        return np.sort(order[:count])

    def _excesses(
        self, twin: Pair, layer: nn.Module, inputs: Tensors, n_iter: int
    ) -> list[tuple[Problem, float]]:
        """Return the problem of each head and the excess of its codes after `n_iter` iterations."""
        problems, codes = (
            self._problems(twin, layer, inputs),
            _codes_after(twin, layer, inputs, n_iter),
        )
        pairs = zip(problems, codes, strict=True)
        return [(problem, problem.excess(solution)) for problem, solution in pairs]


def _most_alike(keys: Array, count: int) -> Array:
    """Return the tokens that are most alike: a token and the `count` of largest cosine with it.

    The token is the one for which the smallest of these cosines is largest.
    """
    unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), _TINY)
    nearest = np.argsort(-np.abs(unit @ unit.T), axis=1, kind="stable")[:, :count]
    cosines = np.abs(np.einsum("id,id->i", unit, unit[nearest[:, -1]]))
    return np.sort(nearest[cosines.argmax()])


@dataclass(frozen=True)
class FixedPointLimit(Relation):
    """Many iterations of the layer reach the limit that the solver finds directly; see `Identity`.

    The layer must have an attribute `n_iter`; the twin's `solve` returns the limit.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 1000

    def _run(self, layer: nn.Module) -> nn.Module:
        return with_n_iter(layer, self.n_iter)


def _codes_after(twin: Pair, layer: nn.Module, inputs: Tensors, n_iter: int) -> Array:
    return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])


def _ratio(excess: float, bound: float) -> float:
    """Return ``excess / bound``, where 0 / 0 is 0."""
    if bound == 0:
        return 0.0 if excess <= 0 else float("inf")
    return excess / bound


def with_n_iter(layer: nn.Module, n_iter: int) -> nn.Module:
    """Return the layer with the same parameters and `n_iter` iterations."""
    changed: Any = copy.copy(layer)
    changed.n_iter = n_iter
    if isinstance(changed, Solved):  # iterates until it meets its own tolerance
        changed.tol = min(changed.tol, _SOLVED)
    return changed


def tolerance_of(
    twin: Pair, layer: nn.Module, inputs: Tensors, tolerance: float, steps: int
) -> float:
    """Return `tolerance` for inputs in float64, and else ``32 eps * steps * logit range``."""
    if inputs[0].dtype == torch.float64:
        return tolerance
    return rounding_of(twin, layer, inputs, steps)


def rounding_of(twin: Pair, layer: nn.Module, inputs: Tensors, steps: int) -> float:
    """Return ``32 eps * steps * logit range`` for the dtype of the inputs."""
    logits = float(twin.numerics.logit_range(layer, *(as_array(x) for x in inputs)))
    return rounding(inputs[0].dtype, steps, logits)
