"""cvxpy statements of self-expression."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array
from .sparse_coding import sparse_code


def sparse_self_expression(
    X: ArrayLike, *, lam: float | ArrayLike, l1_ratio: float = 1.0, nonnegative: bool = False
) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam (r |C|_1 + (1 - r)/2 |C|_F^2)``, diag(C) = 0.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float or array-like of shape (n_samples,)
    l1_ratio : float, default=1.0
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
    EQUATIONS SE-12, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import sparse_self_expression
    >>> sparse_self_expression([[1.0], [2.0]], lam=1.0).round(4)
    array([[0.   , 0.375],
           [1.5  , 0.   ]])
    """
    return sparse_code(
        X, X, lam=lam, l1_ratio=l1_ratio, zero_diagonal=True, nonnegative=nonnegative
    )


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


def affine_sparse_self_expression(
    X: ArrayLike, *, lam: float, l1_ratio: float = 1.0, nonnegative: bool = False
) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam (r |C|_1 + (1 - r)/2 |C|_F^2)``, diag(C) = 0, C 1 = 1.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float
    l1_ratio : float, default=1.0
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
    EQUATIONS SE-12a, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import affine_sparse_self_expression
    >>> affine_sparse_self_expression([[1.0], [2.0]], lam=1.0).round(4) + 0
    array([[0., 1.],
           [1., 0.]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)), nonneg=nonnegative)
    penalty = l1_ratio * cp.sum(cp.abs(C)) + (1 - l1_ratio) / 2 * cp.sum_squares(C)
    constraints = [cp.diag(C) == 0, cp.sum(C, axis=1) == 1]
    return _solve(cp.sum_squares(points - C @ points) + lam * penalty, constraints, C)


def basis_pursuit_self_expression(X: ArrayLike, *, affine: bool = False) -> Array:
    """Solve ``min_C |C|_1`` with ``X = C X``, ``diag(C) = 0`` and, if affine, ``C 1 = 1``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    affine : bool, default=False

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-11, SE-11a.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import basis_pursuit_self_expression
    >>> basis_pursuit_self_expression([[1.0], [2.0]]).round(4) + 0
    array([[0. , 0.5],
           [2. , 0. ]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)))
    constraints = [points == C @ points, cp.diag(C) == 0]
    return _solve(cp.sum(cp.abs(C)), constraints + [cp.sum(C, axis=1) == 1] * affine, C)


def outlier_self_expression(X: ArrayLike, *, lam: float, lam_outlier: float) -> Array:
    """Solve ``min_{C, E} |X - C X - E|_F^2 + lam |C|_1 + lam_outlier |E|_1``, ``diag(C) = 0``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, lam_outlier : float

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS CL-3.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import outlier_self_expression
    >>> outlier_self_expression([[1.0], [2.0]], lam=1.0, lam_outlier=9.0).round(4) + 0
    array([[0.   , 0.375],
           [1.5  , 0.   ]])
    """
    points = np.asarray(X, dtype=float)
    C, E = cp.Variable((len(points), len(points))), cp.Variable(points.shape)
    penalty = lam * cp.sum(cp.abs(C)) + lam_outlier * cp.sum(cp.abs(E))
    return _solve(cp.sum_squares(points - C @ points - E) + penalty, [cp.diag(C) == 0], C)


def robust_low_rank_self_expression(X: ArrayLike, *, lam: float) -> Array:
    """Solve ``min_C |C|_* + lam sum_i |x_i - c_i X|``.

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
    EQUATIONS CL-6.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import robust_low_rank_self_expression
    >>> robust_low_rank_self_expression([[2.0, 0.0], [0.0, 1.0]], lam=0.75).round(4) + 0
    array([[1., 0.],
           [0., 0.]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)))
    outliers = cp.sum(cp.norm(points - C @ points, axis=1))
    return _solve(cp.normNuc(C) + lam * outliers, [], C)


def low_rank_sparse_self_expression(X: ArrayLike, *, lam: float, beta: float) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam (|C|_* + beta |C|_1)`` with ``diag(C) = 0``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, beta : float

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS CL-8.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import low_rank_sparse_self_expression
    >>> low_rank_sparse_self_expression([[1.0], [2.0]], lam=0.5, beta=1.0).round(4) + 0
    array([[0.   , 0.375],
           [1.5  , 0.   ]])
    """
    points = np.asarray(X, dtype=float)
    C = cp.Variable((len(points), len(points)))
    penalty = cp.normNuc(C) + beta * cp.sum(cp.abs(C))
    return _solve(cp.sum_squares(points - C @ points) + lam * penalty, [cp.diag(C) == 0], C)


def _solve(objective: cp.Expression, constraints: list[cp.Constraint], C: cp.Variable) -> Array:
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return np.asarray(C.value)
