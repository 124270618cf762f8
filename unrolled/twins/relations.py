"""How a layer and its solver may be related, and how the deviation from that is measured."""

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

from ..laws import Measurement, largest_difference, rounding, worst
from ..laws.subject import as_array
from ..solved_operator import Solved
from .heads import Array, Tensors
from .pairs import Pair, calls_of_heads, layer_matrix, layer_output, solver_output, term_sizes

Evidence = Literal["solver", "certificate", "formula", "bound"]
_SOLVED = 1e-10
_TINY = np.finfo(np.float64).tiny


# The exact twins of this package differ by 2e-5 at most in float32. What may differ by more than a
# percent is no rounding, and a check that lets it pass shows nothing.
_COARSEST_ROUNDING = 1e-2
ROUNDING_ADVICE = (
    "float64 agrees, so that this may be rounding, which Numerics.logit_range (the spread of a "
    "head's logits) and Numerics.passes (iterations) say the size of; the tolerance is 32 eps x "
    f"passes x range, and {_COARSEST_ROUNDING:g} at most"
)


# Codes are of their dtype, but objective and dual value are computed in float64.
_BETTER_THAN_OPTIMAL = 1e-7


class Inequalities:
    """Entries ``lhs <= rhs``, each judged by ``(lhs - rhs) / scale``.

    Examples
    --------
    >>> from twinsolve.unrolled.twins import Inequalities
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
            Of shapes that broadcast.
        scale : array-like, optional
            Size of the numbers that both sides are rounded from; ``max(|lhs|, |rhs|)`` by default.
        """
        found, bound = np.asarray(lhs, dtype=np.float64), np.asarray(rhs, dtype=np.float64)
        size = self._add(found, bound, scale)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self._ratios.append(np.ravel(np.where(bound > 1e-4 * size, found / bound, 0.0)))

    def attained(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        *,
        share: ArrayLike = 1.0,
        scale: ArrayLike | None = None,
    ) -> None:
        """Add ``share rhs <= lhs <= rhs``: an extremal case, in which the proof has equality.

        Parameters
        ----------
        lhs, rhs, scale : array-like
            As in `at_most`.
        share : array-like, default=1.0
            Which share of the bound is provably reached.
        """
        self.at_most(lhs, rhs, scale=scale)
        self._add(np.asarray(share) * np.asarray(rhs), np.asarray(lhs, dtype=np.float64), scale)

    def _add(self, lhs: Array, rhs: Array, scale: ArrayLike | None) -> Array:
        size = np.maximum(np.abs(lhs), np.abs(rhs)) if scale is None else np.asarray(scale)
        with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity: NaN, a fault
            excess = (lhs - rhs) / np.maximum(size, np.finfo(np.float64).tiny)
        self._excesses.append(np.ravel(np.maximum(excess, 0.0)))
        return size

    def excess(self) -> float:
        """Largest ``max(0, lhs - rhs) / scale`` of all entries; NaN if one is."""
        return float(np.max(np.concatenate(self._excesses)))

    def tightness(self) -> float:
        """Largest ``lhs / rhs`` of the entries with a right side over 1e-4 of the scale.

        1 where a bound is reached; below that share rounding decides.
        """
        return float(np.max(np.concatenate(self._ratios)))


@dataclass(frozen=True)
class Problem:
    """The optimisation problem behind a layer, solved.

    Attributes
    ----------
    coef : ndarray of shape (n_queries, n_keys)
        Certified solution C*.
    objective : callable
        F: coefficients of that shape to a number, infinite outside the constraints.
    lower_bound : float
        Dual value: at most ``F* = min F``.
    rate : float
        The c of the proved rate ``F(C_K) - F* <= c / K`` of the layer's K iterations; infinite
        where the layer's step is too long for the proof.
    """

    coef: Array
    objective: Callable[[Array], float]
    lower_bound: float
    rate: float

    def excess(self, codes: Array) -> float:
        """How far the objective of these codes is above the dual value."""
        return self.objective(codes) - self.lower_bound


class TaskOutputs(NamedTuple):
    """What the solver and the layer give for the task numbers, and on which tokens (None: all)."""

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
    """`measure_difference` of a layer's output from the solver's.

    Where that fails, a layer that chooses keys is held to ``solve(choice())``, and one that
    promises less to what it promises.
    """
    limits: dict[str, Any] = {"tolerance": tolerance, "rounding": rounding, "summed": summed}
    expected = solve(None)
    measured = measure_difference(found, expected, **limits)
    if twin.numerics.chooses and not measured.passed:
        measured = measure_difference(found, solve(choice()), **limits)
    if measured.passed or twin.numerics.promised is None:
        return measured
    promised: Measurement = twin.numerics.promised(layer, inputs, found, expected)
    return promised


def compare_outputs(
    twin: Pair, layer: nn.Module, inputs: Tensors, *, tolerance: float
) -> Measurement:
    """Largest difference of the two outputs, as `judge_outputs` has it.

    In float32 the tolerance is ``32 eps * passes * logit range``, whatever it is in float64, but no
    more than 1e-2.
    """
    found = layer_output(twin, layer, inputs)  # first, as it says best what it cannot take
    rounding = rounding_of(twin, layer, inputs, twin.numerics.passes(layer))
    if inputs[0].dtype == torch.float32:
        rounding = min(rounding, _COARSEST_ROUNDING)
    tokens = twin.inputs.kind == "tokens"
    return judge_outputs(
        twin,
        layer,
        inputs,
        found,
        lambda chosen: solver_output(twin, layer, inputs, chosen=chosen),
        tolerance=tolerance if inputs[0].dtype == torch.float64 else rounding,
        rounding=rounding,
        summed=lambda: term_sizes(twin, layer, calls_of_heads(twin, inputs)) if tokens else None,
        choice=lambda: layer_matrix(twin, layer, *inputs[:2]) != 0,
    )


@dataclass(frozen=True)
class Relation:
    """What is compared between a layer and its solver; base of the others.

    Attributes
    ----------
    tolerance : float
        Largest accepted deviation in float64.
    certificate : callable, optional
        ``certificate(twin, layer, tensors)`` gives a residual of the conditions of optimality of
        the problem that the layer's output solves, in units of the output and without a formula of
        the solution; see `twinsolve.unrolled.twins.certificates`. In float64 it is held to the
        tolerance too.
    problem : callable, optional
        ``problem(layer, call)`` solves the optimisation problem behind the layer, as a `Problem`.
    evidence : {"solver", "certificate", "formula", "bound"}
        What an agreement shows: an independent solver of the problem behind the layer reaches the
        same; the layer's output is optimal by a certificate of that problem; the same formula,
        written again; an inequality holds. By default "bound" of a `Bound`, "certificate" of a
        `Rate`, a `Limit` or where there is one, and "formula" otherwise.
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
        """How far the layer deviates."""
        compared = compare_outputs(twin, self._run(layer), inputs, tolerance=self.tolerance)
        return worst([compared, *self._certified(twin, self._run(layer), inputs)])

    def task_outputs(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> TaskOutputs:
        """What the solver and the layer give, for the task numbers."""
        layer = self._run(layer)
        return TaskOutputs(solver_output(twin, layer, inputs), layer_output(twin, layer, inputs))

    def _run(self, layer: nn.Module) -> nn.Module:
        """The layer as it is compared."""
        return layer

    def _certified(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> list[Measurement]:
        if self.certificate is None or inputs[0].dtype != torch.float64:
            return []
        return [Measurement(self.certificate(twin, layer, inputs), self.tolerance)]

    def _problems(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> list[Problem]:
        if self.problem is None:
            raise ValueError(f"{twin.name}: the relation needs a problem")
        return [self.problem(layer, call) for call in calls_of_heads(twin, inputs)]


@dataclass(frozen=True)
class Identity(Relation):
    """Layer and solver compute the same: ``max|layer - solver| / max|solver|``.

    In float64 the residual of the certificate, where there is one, is held to the same tolerance;
    so it is in `Init`, `Iterate` and `FixedPointLimit`.
    """

    name: ClassVar[str] = "identity"


@dataclass(frozen=True)
class Init(Relation):
    """As `Identity`, of the layer at its initial parameters, where it is its origin."""

    name: ClassVar[str] = "init"


@dataclass(frozen=True)
class Bound(Relation):
    """Proved inequalities ``lhs <= rhs``: ``max(0, lhs - rhs) / scale``, the worst of all entries.

    ``sides(layer, *tensors)`` measures both sides with the layer, the right one by the solvers, and
    gives them as `Inequalities`: on the data, and on inputs of its own on which the proof has
    equality, where a layer that falls short fails too. The tightness is the largest ``lhs / rhs``.
    The task numbers are those of the twin's `solve` and of the layer.
    """

    name: ClassVar[str] = "bound"
    _: KW_ONLY
    sides: Callable[..., Inequalities]
    evidence: Evidence = "bound"

    def measure(self, twin: Pair, layer: nn.Module, inputs: Tensors) -> Measurement:
        with torch.no_grad():
            found = self.sides(layer, *inputs)
        passes = twin.numerics.passes(layer)
        tolerance = tolerance_of(twin, layer, inputs, self.tolerance, passes)
        return Measurement(found.excess(), tolerance, found.tightness())


@dataclass(frozen=True)
class Iterate(Relation):
    """After K iterations both hold the same iterate, for every K; the worst K counts.

    The layer must have an attribute `n_iter`. The task numbers are those of the largest K.
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
    """K iterations of the layer are within the proved rate of the optimum, for every K.

    The deviation is the largest ``(F(C_K) - F*) / (c / K)``; see `Problem` for F and c. Codes that
    are better than the optimum by more than 1e-7 fail. No Lasso comes closer to the proved rate
    than a fifth or so, so that a layer which is twice as slow may be within it: `Iterate` sees
    that. The task numbers are those of the solver's and the layer's iterates at the largest K.
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
        few = tuple(x[:, tokens] for x in inputs)
        problems = self._problems(twin, layer, few)
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

    def _excesses(
        self, twin: Pair, layer: nn.Module, inputs: Tensors, n_iter: int
    ) -> list[tuple[Problem, float]]:
        """The problem of each head, and how far the codes after so many iterations are off."""
        problems, codes = (
            self._problems(twin, layer, inputs),
            _codes_after(twin, layer, inputs, n_iter),
        )
        pairs = zip(problems, codes, strict=True)
        return [(problem, problem.excess(found)) for problem, found in pairs]


def _most_alike(keys: Array, count: int) -> Array:
    """A token and those of largest cosine with it, where the smallest of these is largest."""
    unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), _TINY)
    nearest = np.argsort(-np.abs(unit @ unit.T), axis=1, kind="stable")[:, :count]
    cosines = np.abs(np.einsum("id,id->i", unit, unit[nearest[:, -1]]))
    return np.sort(nearest[cosines.argmax()])


@dataclass(frozen=True)
class FixedPointLimit(Relation):
    """Many iterations of the layer reach what the solver finds at once, as `Identity` measures.

    The layer must have an attribute `n_iter`; `solve` gives the limit, whatever that is.
    """

    name: ClassVar[str] = "limit"
    tolerance: float = 1e-7
    n_iter: int = 1000

    def _run(self, layer: nn.Module) -> nn.Module:
        return with_n_iter(layer, self.n_iter)


def _codes_after(twin: Pair, layer: nn.Module, inputs: Tensors, n_iter: int) -> Array:
    return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])


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
    twin: Pair, layer: nn.Module, inputs: Tensors, tolerance: float, steps: int
) -> float:
    """`tolerance` in float64, else ``32 eps * steps * logit range``."""
    if inputs[0].dtype == torch.float64:
        return tolerance
    return rounding_of(twin, layer, inputs, steps)


def rounding_of(twin: Pair, layer: nn.Module, inputs: Tensors, steps: int) -> float:
    """``32 eps * steps * logit range``, eps of the dtype of the inputs."""
    logits = float(twin.numerics.logit_range(layer, *(as_array(x) for x in inputs)))
    return rounding(inputs[0].dtype, steps, logits)
