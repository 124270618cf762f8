"""cvxpy statements of self-expression."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array
from .sparse_coding import sparse_code


def sparse_self_expression(
    X: ArrayLike, *, lam: float | ArrayLike, nonnegative: bool = False
) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam |C|_1`` with ``diag(C) = 0`` by interior points.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float or array-like of shape (n_samples,)
    nonnegative : bool, default=False

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-12.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import sparse_self_expression
    >>> sparse_self_expression([[1.0], [2.0]], lam=1.0).round(4)
    array([[0.   , 0.375],
           [1.5  , 0.   ]])
    """
    return sparse_code(X, X, lam=lam, zero_diagonal=True, nonnegative=nonnegative)


def least_squares_self_expression(
    X: ArrayLike, *, lam: float, zero_diagonal: bool = False
) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam |C|_F^2``, optionally with ``diag(C) = 0``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float
    zero_diagonal : bool, default=False

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-LSR, SE-LSRd.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import least_squares_self_expression
    >>> least_squares_self_expression([[1.0], [2.0]], lam=5.0).round(4)
    array([[0.1, 0.2],
           [0.2, 0.4]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)))
    objective = cp.sum_squares(points - C @ points) + lam * cp.sum_squares(C)
    return _solve(objective, [cp.diag(C) == 0] if zero_diagonal else [], C)


def low_rank_self_expression(X: ArrayLike, *, lam: float) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam |C|_*``, or ``min |C|_*`` with ``X = C X`` if ``lam = 0``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-LRR, SE-LRR0.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import low_rank_self_expression
    >>> low_rank_self_expression([[2.0, 0.0], [0.0, 1.0]], lam=1.0).round(4) + 0
    array([[0.875, 0.   ],
           [0.   , 0.5  ]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)))
    if lam == 0:
        return _solve(cp.normNuc(C), [points == C @ points], C)
    return _solve(cp.sum_squares(points - C @ points) + lam * cp.normNuc(C), [], C)


def _solve(objective: cp.Expression, constraints: list[cp.Constraint], C: cp.Variable) -> Array:
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return np.asarray(C.value)
