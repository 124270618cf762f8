"""The energy as a problem to be solved: its checks, its gradient and its certificate."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array, Solution, check_matrix, check_positive
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
    ) -> Solution:
        dual = self.weights.laplacian(u)
        gap = self.gap(dual + self.fidelity * (u - self.f))
        coef = u.astype(dtype, copy=False)
        return Solution(coef, self.objective(u, dual), gap, dual, n_iter, gap <= tol, history)


def check_problem(f: ArrayLike, K: Any, lam: float, fidelity: str) -> tuple[Problem, Any]:
    """Return the problem and the dtype of its answer: float32 if f and K are."""
    f = check_matrix(f, "f")
    if fidelity not in FIDELITIES:
        raise ValueError(f"fidelity: must be one of {FIDELITIES}, got {fidelity!r}")
    lam = check_positive(lam, "lam")
    weights = check_weights(K, len(f))
    d = weights.degrees + weights.loops
    scale = d if fidelity == "degree" else np.ones_like(d)
    return Problem(f.astype(np.float64), weights, lam * scale), common_dtype(f, K)


def relative_error(error: Array, f: Array) -> Array:
    """Largest error over the largest entry of f, in each column; 0 where f is 0."""
    return np.abs(error).max(axis=0) * reciprocal(np.abs(f).max(axis=0))


def reciprocal(x: Array) -> Array:
    """1 / x, and 0 where x is 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def warn_unless_converged(gap: Array, tol: float, cure: str) -> None:
    """Warn the caller of the public function that calls this one."""
    if (missed := int((~(gap <= tol)).sum())) > 0:
        warnings.warn(
            f"{missed} of {len(gap)} columns did not reach the certified relative error "
            f"tol={tol:.3g} (worst {gap.max():.3g}); {cure}",
            ConvergenceWarning,
            stacklevel=3,
        )
