"""The problem of minimising the energy: checks, gradient and certificate."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, cg

from ...validation import check_positive
from ..inputs import Array, as_numbers, check_matrix, fill_holes, rounding_error
from ..solution import Certify
from .differences import EPS
from .weights import Weights, check_weights, common_dtype

FIDELITIES = ("constant", "degree")


class EnergyProblem(NamedTuple):
    """``min_u J(u) + 1/2 sum_i fidelity_i |u_i - f_i|^2``, in float64, for each column."""

    f: Array
    weights: Weights
    fidelity: Array  # (n_tokens, 1); zero in holes, and without neighbours if degree weighted
    decay: Array  # (n_tokens, 1), H z / max z for a vector z > 0; the fidelity without holes

    def gradient(self, u: Array) -> Array:
        return self.weights.laplacian(u) + self.fidelity * (u - self.f)

    def gap(self, gradient: Array) -> Array:
        """Certified relative error of each column.

        It is ``max_i |gradient_i / fidelity_i|`` divided by half the range of f. The Hessian H has
        no positive entries off its diagonal and ``H 1 = fidelity``. So ``H^-1 >= 0``, and
        ``|u - u*| <= H^-1 |gradient| <= max_i |gradient_i / fidelity_i|``. Where fidelities vanish,
        another z > 0 with ``H z > 0`` replaces 1: ``|u - u*| <= z max_i |gradient_i / (H z)_i|``.
        """
        return relative_error(gradient * reciprocal(self.decay), self.f)

    def objective(self, u: Array, dual: Array) -> Array:
        """Return the energy of u in each column, from the gradient `dual` of its smooth part."""
        difference = u - self.f
        doubled = (u - u.mean(axis=0)) * dual + difference * (difference * self.fidelity)
        return doubled.sum(axis=0) / 2

    def certify(self, u: Array) -> tuple[Array, Array, Array]:
        """Objective, gap and dual point, for `certified`."""
        dual, _, gap, _ = self.certificate(u)
        return self.objective(u, dual), gap, dual

    def certificate(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Gradients of J and E, the gap, and the part of the gap that covers rounding errors."""
        dual, rounding = self.weights.certified_laplacian(u)
        pull = self.fidelity * (u - self.f)
        gradient = dual + pull
        rounding += 2 * EPS * (np.abs(dual) + np.abs(pull))
        return dual, gradient, self.gap(np.abs(gradient) + rounding), self.gap(rounding)


def check_energy_problem(
    f: ArrayLike, K: Any, lam: float, fidelity: str, valid: Array | None = None
) -> tuple[EnergyProblem, Any]:
    """Return the problem and the dtype of its answer: float32 if f and K are."""
    f = check_matrix(f, "f")
    if fidelity not in FIDELITIES:
        raise ValueError(f"fidelity: must be one of {FIDELITIES}, got {fidelity!r}")
    lam = check_positive(lam, "lam")
    weights = check_weights(K, len(f))
    d = weights.degrees + weights.loops
    scale = d if fidelity == "degree" else np.ones_like(d)
    double, pull = f.astype(np.float64), lam * scale
    if valid is not None:
        _check_paths(weights, valid)
        double = np.where(valid[:, None], double, double[valid].mean(axis=0))
        pull = pull * valid[:, None]
    problem = EnergyProblem(double, weights, pull, pull)
    check_size(f, len(f) * float((weights.degrees + problem.fidelity).max()))
    return problem if valid is None else _with_decay(problem), common_dtype(f, K)


def check_with_holes(
    f: ArrayLike, mask: ArrayLike | None, channel_axis: int | None = None
) -> tuple[Array, Array | None]:
    """Return f as `check_matrix` does, with zeros in its holes, and the mask; None is no hole.

    Raises
    ------
    ValueError
        As `check_matrix` and `fill_holes`.
    """
    values: Any = f if issparse(f) else as_numbers(f, "f")
    if issparse(f) or values.ndim != 2:
        return check_matrix(values, "f"), None  # which refuses it
    filled, valid = fill_holes(values, mask, "f", channel_axis)
    return check_matrix(filled, "f"), valid


def _check_paths(weights: Weights, valid: Array) -> None:
    """Refuse holes that no path along positive weights joins to a valid token."""
    if weights.matrix is None:  # the certificate shows it
        return
    _, parts = connected_components(csr_array(weights.matrix), directed=False)
    if (apart := ~np.isin(parts, parts[valid])).any():
        raise ValueError(
            f"mask: {np.count_nonzero(apart)} tokens have no path along K to a valid token, first "
            f"{int(apart.argmax())}"
        )


def _with_decay(problem: EnergyProblem) -> EnergyProblem:
    """Return the problem with the decay of a z that about solves ``H z = diag(H)``.

    In a hole, z is about the number of steps of a random walk from there to valid tokens.
    """
    weights, fidelity = problem.weights, problem.fidelity
    pivots = weights.degrees + fidelity
    scale = np.sqrt(pivots)
    inverse = reciprocal(scale)

    def product(y: Array) -> Array:  # with the Hessian, scaled to a diagonal of ones
        z = inverse * y.reshape(-1, 1)
        return (inverse * (weights.laplacian(z) + fidelity * z)).ravel()

    scaled = LinearOperator((len(pivots),) * 2, product, dtype=np.float64)
    least = float(scale[pivots > 0].min(initial=np.inf))
    y, _ = cg(scaled, scale.ravel(), rtol=0, atol=0.3 * least)  # H z is 0.7 diag(H) or more
    z = np.maximum(inverse * y[:, None], 0)
    change, rounding = weights.certified_laplacian(z)
    rounding += 2 * EPS * (np.abs(change) + fidelity * z)
    decay = (change + fidelity * z - rounding) / max(float(z.max()), _LEAST)
    return problem._replace(decay=np.where(pivots > 0, np.maximum(decay, _LEAST), 0))


_LEAST = 1e-100  # decay that certifies nothing


def check_size(f: Array, weight: float) -> None:
    """Raise a ValueError for tokens whose energies overflow at this weight."""
    largest = float(np.abs(f).max())
    if not np.isfinite(8 * max(weight, 1.0) * largest * largest):
        raise ValueError(
            f"f: entries up to {largest:.3g} make the energy overflow; scale f, K or lam down"
        )


def relative_error(error: Array, f: Array) -> Array:
    """Largest error divided by half the range of f, for each column; no shift of f changes it.

    If f is constant up to rounding, its largest entry replaces half its range. 0 / 0 is 0.
    """
    largest, error = np.abs(f).max(axis=0), np.abs(error).max(axis=0)
    size = np.ptp(f, axis=0) / 2
    size = np.where(size > rounding_error(np.float64) * largest, size, largest)
    return np.divide(error, size, out=np.where(error > 0, np.inf, 0.0), where=size > 0)


def default_tol(tol: float | None, dtype: Any) -> float:
    """Return `tol`; None becomes a tolerance that can be reached despite rounding to `dtype`."""
    if tol is None:
        return 1e-8 if dtype == np.float64 else 1e-5
    return check_positive(tol, "tol")


def reciprocal(x: Array) -> Array:
    """1 / x, and 0 where x is 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x > 0)


def record(certify: Certify, trajectory: list[Array]) -> dict[str, Array]:
    """Return the history of a run: its states u_0 to u_n with their certificates."""
    objective, gap, _ = zip(*map(certify, trajectory), strict=True)
    return {"coef": np.stack(trajectory), "objective": np.stack(objective), "gap": np.stack(gap)}
