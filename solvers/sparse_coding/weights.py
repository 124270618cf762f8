"""Weights of atoms in the penalty of sparse codes, by scaled atoms and a projection."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, hstack

from ..inputs import Array, as_numbers
from ..scales import squared_norms
from ..solution import Solution, aim, certified
from .penalty import Penalty
from .problem import certify, check_range


@dataclass(frozen=True, eq=False)
class WeightedAtoms:
    """The problem ``min_C |Y - C D|_F^2 + sum_ij lam_i w_j |c_ij|`` as one without weights.

    Atoms without a penalty, ``w_j = 0``, explain all of Y in the subspace that they span. What is
    left of the rows, Y', and of the other atoms, ``D' = (D - D P) / w``, is an ordinary problem in
    ``z_ij = w_j c_ij``; P is the projection on the subspace. A dual point must be orthogonal to it,
    as the projected residual is up to rounding.

    Attributes
    ----------
    Y, D : ndarray
        In float64.
    weights : ndarray of shape (n_atoms,)
    rows, atoms : ndarray
        Y' and D'.
    basis : ndarray of shape (rank, n_features)
        Orthonormal rows that span the subspace.
    free_codes : ndarray of shape (rank, number of atoms without penalty)
        Codes of the basis in these atoms, of least norm.
    """

    Y: Array
    D: Array
    weights: Array
    rows: Array
    atoms: Array
    basis: Array
    free_codes: Array

    @classmethod
    def of(cls, Y: Array, D: Array, weights: Array) -> "WeightedAtoms":
        Y, D, paid = Y.astype(np.float64), D.astype(np.float64), weights > 0
        left, sizes, basis = np.linalg.svd(D[~paid], full_matrices=False)
        rank = int((sizes > max(D.shape) * np.finfo(float).eps * sizes.max(initial=0)).sum())
        basis, free_codes = basis[:rank], (left[:, :rank] / sizes[:rank]).T
        atoms = _project_off(D[paid], basis) / weights[paid, None]
        check_range(atoms, "dictionary, divided by its weights,")
        return cls(Y, D, weights, _project_off(Y, basis), atoms, basis, free_codes)

    def codes(self, Z: csr_array) -> csr_array:
        """Return the codes C of the codes Z of the ordinary problem."""
        paid = self.weights > 0
        C = csr_array(Z / self.weights[paid])
        free = (self.Y - C @ self.D[paid]) @ self.basis.T @ self.free_codes
        order = np.argsort(np.concatenate([np.flatnonzero(paid), np.flatnonzero(~paid)]))
        return csr_array(hstack([C, csr_array(free)], format="csr")[:, order])

    def certify(self, C: csr_array, penalty: Penalty) -> tuple[Array, Array, Array]:
        """Objective, gap relative to ``|y_i|^2`` and dual point of any codes."""
        paid = self.weights > 0
        Z = csr_array(C[:, paid] * self.weights[paid])
        objective, gap, dual = certify(self.rows, self.atoms, Z, penalty)
        left = squared_norms(self.rows)
        excess = np.where(left > 0, gap * np.where(left > 0, left, 1), objective)
        inside = squared_norms((self.Y - C @ self.D) @ self.basis.T)
        norms, unbounded = squared_norms(self.Y), np.where(excess + inside > 0, np.inf, 0)
        return (
            objective + inside,
            np.divide(excess + inside, norms, out=unbounded, where=norms > 0),
            dual,
        )


def check_atom_weights(weights: ArrayLike, n_atoms: int, penalty: Penalty) -> Array:
    """Return the weights of atoms; a ValueError says what is wrong with them."""
    values = as_numbers(weights, "weights", np.float64)
    if values.shape != (n_atoms,):
        raise ValueError(f"weights: must have shape ({n_atoms},), got {values.shape}")
    if not (np.isfinite(values) & (values >= 0)).all() or not values.any():
        raise ValueError("weights: must be finite, >= 0 and not all 0")
    if np.any(penalty.l1_ratio != 1):
        raise ValueError("weights: weigh |c_ij| alone, so that l1_ratio must be 1")
    if not values.all() and (penalty.nonnegative or penalty.own is not None):
        raise ValueError(
            "weights: must be > 0 with nonnegative or zero_diagonal, as atoms of weight 0 may take "
            "any code"
        )
    return values


def solve_weighted(
    problem: WeightedAtoms,
    penalty: Penalty,
    tol: float,
    dtype: np.dtype,
    solve: Callable[[Array, Array, float], Solution],
) -> Solution:
    """Solve the ordinary problem by ``solve(rows, atoms, tol)``, and certify codes in `dtype`."""
    solved = solve(problem.rows, problem.atoms, aim(tol, dtype))
    return certified(
        problem.codes(solved.coef),
        lambda C: problem.certify(C, penalty),
        dtype=dtype,
        tol=tol,
        n_iter=solved.n_iter,
        n_passes=solved.n_passes,
        n_looked=solved.n_looked,
        scale=squared_norms(problem.Y),
    )


def _project_off(X: Array, basis: Array) -> Array:
    """Return what is left of rows off the subspace; 0 where that is rounding alone."""
    left = X - (X @ basis.T) @ basis
    left -= (left @ basis.T) @ basis
    rounding = 4 * np.finfo(float).eps * max(basis.shape) * np.sqrt(squared_norms(X))
    return np.where((np.sqrt(squared_norms(left)) > rounding)[:, None], left, 0)
