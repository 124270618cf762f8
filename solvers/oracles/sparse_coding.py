"""cvxpy statement of sparse coding."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array


def sparse_code(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    l1_ratio: float = 1.0,
    weights: ArrayLike = 1.0,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Array:
    """Solve ``min_C |Y - C D|_F^2 + sum_i lam_i (r |c_i|_1 + (1 - r)/2 |c_i|^2)``, r = l1_ratio.

    Optionally with ``diag(C) = 0`` or ``C >= 0``. An interior point method, for tens of rows.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
    l1_ratio : float, default=1.0
    weights : array-like of shape (n_atoms,), default=1.0
        Of the ``|c_ij|``.
    zero_diagonal, nonnegative : bool, default=False

    Returns
    -------
    ndarray of shape (n_signals, n_atoms)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-12, SE-15n, SE-17, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.sparse_coding import sparse_code
    >>> sparse_code([[3.0]], [[1.0]], lam=2.0).round(5)
    array([[2.]])
    """
    Y, D = np.asarray(Y, dtype=float), np.asarray(dictionary, dtype=float)
    lams = np.broadcast_to(np.asarray(lam, dtype=float), len(Y))
    C = cp.Variable((len(Y), len(D)), nonneg=nonnegative)
    of_rows = np.tile(lams[:, None], (1, len(D)))
    penalty = l1_ratio * cp.sum(cp.multiply(of_rows * np.asarray(weights), cp.abs(C)))
    if l1_ratio < 1:
        penalty += (1 - l1_ratio) / 2 * cp.sum(cp.multiply(of_rows, cp.square(C)))
    constraints = [cp.diag(C) == 0] if zero_diagonal else []
    problem = cp.Problem(cp.Minimize(cp.sum_squares(Y - C @ D) + penalty), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(C.value)
