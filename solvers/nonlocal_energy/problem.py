"""The energy as a problem to be solved: its checks, its gradient and its certificate."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array, Certify, check_matrix, check_positive, rounding_error
from .differences import EPS
from .weights import Weights, check_weights, common_dtype

FIDELITIES = ("constant", "degree")
MORE = "increase max_iter, lam or tol"
ROUNDING = "rounding errors limit it: increase lam or tol"


class EnergyProblem(NamedTuple):
    """``min_u J(u) + 1/2 sum_i fidelity_i |u_i - f_i|^2``, in float64; columns are apart."""

    f: Array
    weights: Weights
    fidelity: Array  # (n_tokens, 1); zero for tokens without neighbours if degree weighted

    def gradient(self, u: Array) -> Array:
        return self.weights.laplacian(u) + self.fidelity * (u - self.f)

    def gap(self, gradient: Array) -> Array:
        """Certified error ``max_i |gradient_i / fidelity_i|`` over half the range of f, by column.

        The Hessian H has no positive entries off its diagonal and ``H 1 = fidelity``, so that
        ``H^-1 >= 0`` and ``|u - u*| <= H^-1 |gradient| <= max_i |gradient_i / fidelity_i|``.
        """
        return relative_error(gradient * reciprocal(self.fidelity), self.f)

    def objective(self, u: Array, dual: Array) -> Array:
        difference = u - self.f
        doubled = (u - u.mean(axis=0)) * dual + difference * (difference * self.fidelity)
        return doubled.sum(axis=0) / 2

    def certify(self, u: Array) -> tuple[Array, Array, Array]:
        """Objective, gap and dual point, for `certified`."""
        dual, _, gap, _ = self.certificate(u)
        return self.objective(u, dual), gap, dual

    def certificate(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Gradients of J and E, the gap, and the part of it that covers rounding errors."""
        dual, rounding = self.weights.certified_laplacian(u)
        pull = self.fidelity * (u - self.f)
        gradient = dual + pull
        rounding += 2 * EPS * (np.abs(dual) + np.abs(pull))
        return dual, gradient, self.gap(np.abs(gradient) + rounding), self.gap(rounding)


def check_energy_problem(
    f: ArrayLike, K: Any, lam: float, fidelity: str
) -> tuple[EnergyProblem, Any]:
    """Return the problem and the dtype of its answer: float32 if f and K are."""
    f = check_matrix(f, "f")
    if fidelity not in FIDELITIES:
        raise ValueError(f"fidelity: must be one of {FIDELITIES}, got {fidelity!r}")
    lam = check_positive(lam, "lam")
    weights = check_weights(K, len(f))
    d = weights.degrees + weights.loops
    scale = d if fidelity == "degree" else np.ones_like(d)
    problem = EnergyProblem(f.astype(np.float64), weights, lam * scale)
    check_size(f, len(f) * float((weights.degrees + problem.fidelity).max()))
    return problem, common_dtype(f, K)


def check_size(f: Array, weight: float) -> None:
    """Refuse tokens whose energies at the given weight overflow."""
    largest = float(np.abs(f).max())
    if not np.isfinite(8 * max(weight, 1.0) * largest * largest):
        raise ValueError(f"f: entries up to {largest:.3g} overflow here; scale f, K or lam down")


def relative_error(error: Array, f: Array) -> Array:
    """Largest error over half the range of f, in each column: no shift changes it.

    Over its largest entry where f is constant up to rounding; 0 where both are 0.
    """
    largest, error = np.abs(f).max(axis=0), np.abs(error).max(axis=0)
    size = np.ptp(f, axis=0) / 2
    size = np.where(size > rounding_error(np.float64) * largest, size, largest)
    return np.divide(error, size, out=np.where(error > 0, np.inf, 0.0), where=size > 0)


def default_tol(tol: float | None, dtype: Any) -> float:
    """The tolerance if given, else one that rounding to `dtype` leaves within reach."""
    if tol is None:
        return 1e-8 if dtype == np.float64 else 1e-5
    return check_positive(tol, "tol")


def reciprocal(x: Array) -> Array:
    """1 / x, and 0 where x is 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def record(certify: Certify, trajectory: list[Array]) -> dict[str, Array]:
    """The states u_0 to u_n of a run with their certificates."""
    objective, gap, _ = zip(*map(certify, trajectory), strict=True)
    return {"coef": np.stack(trajectory), "objective": np.stack(objective), "gap": np.stack(gap)}
