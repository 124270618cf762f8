"""The energy as a problem to be solved: its checks, its gradient and its certificate."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array, Solution, check_matrix, check_positive
from .differences import EPS
from .weights import Weights, check_weights, common_dtype

TOL = 1e-8
FIDELITIES = ("constant", "degree")


class Problem(NamedTuple):
    """``min_u J(u) + 1/2 sum_i fidelity_i |u_i - f_i|^2``, in float64; columns are apart."""

    f: Array
    weights: Weights
    fidelity: Array  # (n_tokens, 1); zero for tokens without neighbours if degree weighted

    def gradient(self, u: Array) -> Array:
        return self.weights.laplacian(u) + self.fidelity * (u - self.f)

    def gap(self, gradient: Array) -> Array:
        """Certified relative error ``max_i |gradient_i / fidelity_i| / max_i |f_i|``, by column.

        The Hessian H has no positive entries off its diagonal and ``H 1 = fidelity``, so that
        ``H^-1 >= 0`` and ``|u - u*| <= H^-1 |gradient| <= max_i |gradient_i / fidelity_i|``.
        """
        return relative_error(gradient * reciprocal(self.fidelity), self.f)

    def objective(self, u: Array, dual: Array) -> Array:
        difference = u - self.f
        doubled = (u - u.mean(axis=0)) * dual + difference * (difference * self.fidelity)
        return doubled.sum(axis=0) / 2

    def solution(
        self, u: Array, dtype: Any, n_iter: Array, tol: float, history: dict | None = None
    ) -> tuple[Solution, Array]:
        """Return the solution at u, and the part of its gap that covers rounding errors."""
        dual, _, gap, floor = self.certificate(u)
        coef, objective = u.astype(dtype, copy=False), self.objective(u, dual)
        return Solution(coef, objective, gap, dual, n_iter, gap <= tol, history), floor

    def certificate(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Gradients of J and E, the gap, and the part of it that covers rounding errors."""
        dual, rounding = self.weights.certified_laplacian(u)
        pull = self.fidelity * (u - self.f)
        gradient = dual + pull
        rounding += 2 * EPS * (np.abs(dual) + np.abs(pull))
        return dual, gradient, self.gap(np.abs(gradient) + rounding), self.gap(rounding)


def check_problem(f: ArrayLike, K: Any, lam: float, fidelity: str) -> tuple[Problem, Any]:
    """Return the problem and the dtype of its answer: float32 if f and K are."""
    f = check_matrix(f, "f")
    if fidelity not in FIDELITIES:
        raise ValueError(f"fidelity: must be one of {FIDELITIES}, got {fidelity!r}")
    lam = check_positive(lam, "lam")
    weights = check_weights(K, len(f))
    d = weights.degrees + weights.loops
    scale = d if fidelity == "degree" else np.ones_like(d)
    problem = Problem(f.astype(np.float64), weights, lam * scale)
    check_size(f, len(f) * float((weights.degrees + problem.fidelity).max()))
    return problem, common_dtype(f, K)


def check_size(f: Array, weight: float) -> None:
    """Refuse tokens whose energies at the given weight overflow."""
    largest = float(np.abs(f).max())
    if not np.isfinite(8 * max(weight, 1.0) * largest * largest):
        raise ValueError(f"f: entries up to {largest:.3g} overflow here; scale f, K or lam down")


def relative_error(error: Array, f: Array) -> Array:
    """Largest error over the largest entry of f, in each column; 0 where f is 0."""
    largest = np.abs(f).max(axis=0)
    return np.divide(
        np.abs(error).max(axis=0), largest, out=np.zeros_like(largest), where=largest > 0
    )


def reciprocal(x: Array) -> Array:
    """1 / x, and 0 where x is 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def warn_unless_converged(gap: Array, tol: float, exhausted: Array) -> None:
    """Warn the caller of the public function that calls this one.

    More iterations are advised if a column that missed `tol` is `exhausted`: it used up those that
    were allowed, and rounding errors do not stand in its way.
    """
    missed = ~(gap <= tol)
    if not missed.any():
        return
    more = (missed & exhausted).any()
    cure = (
        "increase max_iter, lam or tol" if more else "rounding errors limit it: increase lam or tol"
    )
    warnings.warn(
        f"{missed.sum()} of {len(gap)} columns did not reach the certified relative error "
        f"tol={tol:.3g} (worst {gap.max():.3g}); {cure}",
        ConvergenceWarning,
        stacklevel=3,
    )
