"""cvxpy statement of the regularised nonlocal energy."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array


def minimize_energy(f: ArrayLike, k: ArrayLike, *, lam: float, fidelity: str = "constant") -> Array:
    """Solve ``min_u 1/2 sum_ij k_ij |u_i - u_j|^2 + lam/2 sum_i w_i |u_i - f_i|^2``.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    k : array-like of shape (n_tokens, n_tokens)
        Directed weights as the papers have them, nonnegative; the solver's K is ``k + k.T``.
    lam : float
    fidelity : {"constant", "degree"}, default="constant"
        ``w_i = 1``, or ``w_i = sum_j (k_ij + k_ji)``.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS NT-5, NT-FP.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.nonlocal_energy import minimize_energy
    >>> minimize_energy([[0.0], [4.0]], [[0.0, 1.0], [0.0, 0.0]], lam=2.0).round(5)
    array([[1.],
           [3.]])
    """
    f, k = np.asarray(f, dtype=float), np.asarray(k, dtype=float)
    u = cp.Variable(f.shape)
    i, j = np.nonzero(k)
    w = np.ones(len(f)) if fidelity == "constant" else k.sum(axis=0) + k.sum(axis=1)
    smoothness = cp.sum_squares(cp.multiply(np.sqrt(k[i, j])[:, None], u[i] - u[j]))
    distance = cp.sum_squares(cp.multiply(np.sqrt(w)[:, None], u - f))
    problem = cp.Problem(cp.Minimize(smoothness / 2 + lam / 2 * distance))
    problem.solve(solver=cp.CLARABEL)
    return np.asarray(u.value)
