"""cvxpy statements of the problems behind kernel smoothers."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array


def weighted_least_squares(weights: ArrayLike, values: ArrayLike) -> Array:
    """Solve ``min_u sum_j K_ij |y_j - u|^2`` for each row i of the weights K and values y_j.

    Parameters
    ----------
    weights : array-like of shape (n_queries, n_keys)
        Nonnegative, with positive row sums.
    values : array-like of shape (n_keys, n_values)

    Returns
    -------
    ndarray of shape (n_queries, n_values)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-5, IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import weighted_least_squares
    >>> weighted_least_squares([[1.0, 3.0]], [[0.0], [4.0]]).round(5)
    array([[3.]])
    """
    K, y = np.asarray(weights, dtype=float), np.asarray(values, dtype=float)
    u = cp.Variable((len(K), y.shape[1]))
    errors = [
        cp.sum_squares(cp.multiply(np.sqrt(K[i])[:, None], y - np.ones((len(y), 1)) @ u[i : i + 1]))
        for i in range(len(K))
    ]
    cp.Problem(cp.Minimize(cp.sum(cp.hstack(errors)))).solve(solver=cp.CLARABEL)
    return np.asarray(u.value)


def local_linear_regression(
    weights: ArrayLike, queries: ArrayLike, keys: ArrayLike, values: ArrayLike, *, reg: float = 0.0
) -> Array:
    """Solve ``min_{a, B} sum_j K_ij |y_j - a - (k_j - q_i) B|^2 + reg tr(S_i) |B|_F^2``.

    ``S_i`` is the weighted covariance of the keys; rows of K sum to 1. Returns a.

    Parameters
    ----------
    weights : array-like of shape (n_queries, n_keys)
    queries : array-like of shape (n_queries, n_features)
    keys : array-like of shape (n_keys, n_features)
    values : array-like of shape (n_keys, n_values)
    reg : float, default=0.0

    Returns
    -------
    ndarray of shape (n_queries, n_values)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS IF-9 to IF-12, with a slope.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import local_linear_regression
    >>> keys = [[0.0], [1.0]]
    >>> local_linear_regression([[0.5, 0.5]], [[2.0]], keys, keys).round(5)
    array([[2.]])
    """
    K, Q, X, Y = (np.asarray(x, dtype=float) for x in (weights, queries, keys, values))
    estimates = []
    for w, q in zip(K, Q, strict=True):
        spread = w @ ((X - w @ X) ** 2).sum(axis=1)
        a, B = cp.Variable((1, Y.shape[1])), cp.Variable((X.shape[1], Y.shape[1]))
        errors = Y - np.ones((len(Y), 1)) @ a - (X - q) @ B
        objective = cp.sum_squares(cp.multiply(np.sqrt(w)[:, None], errors))
        objective += reg * spread * cp.sum_squares(B)
        cp.Problem(cp.Minimize(objective)).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        estimates.append(np.asarray(a.value)[0])
    return np.array(estimates)


def sinkhorn(logits: ArrayLike) -> Array:
    """Solve ``min_P sum_ij P_ij log(P_ij / exp(logits_ij))`` over doubly stochastic P.

    Parameters
    ----------
    logits : array-like of shape (n_samples, n_samples)
        Minus infinity makes a zero of P.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS QK-Sinkhorn.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import sinkhorn
    >>> sinkhorn([[0.0, 0.0], [0.0, 0.0]]).round(5)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    L = np.asarray(logits, dtype=float)
    rows, columns = np.nonzero(np.isfinite(L))
    p = cp.Variable(len(rows), nonneg=True)
    divergence = -cp.sum(cp.entr(p)) - L[rows, columns] @ p
    sums = [np.eye(len(L))[index].T @ p == 1 for index in (rows, columns)]
    cp.Problem(cp.Minimize(divergence), sums).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    P = np.zeros(L.shape)
    P[rows, columns] = p.value
    return P


def simplex_projection(logits: ArrayLike) -> Array:
    """Solve ``min_p |p - z|^2`` subject to ``p >= 0, sum(p) = 1`` for every row z of the logits.

    Parameters
    ----------
    logits : array-like of shape (n_rows, n_entries)
        Finite.

    Returns
    -------
    ndarray of shape (n_rows, n_entries)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-SPM.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import simplex_projection
    >>> simplex_projection([[0.5, 0.0]]).round(5)
    array([[0.75, 0.25]])
    """
    z = np.asarray(logits, dtype=float)
    p = cp.Variable(z.shape, nonneg=True)
    return _solve_on_simplex(cp.Minimize(cp.sum_squares(p - z)), p, tol=1e-12)


def entropic_linear_program(logits: ArrayLike, *, temperature: float = 1.0) -> Array:
    """Solve ``max_p z.p - t sum_j p_j log p_j`` subject to ``p >= 0, sum(p) = 1`` for every row z.

    Parameters
    ----------
    logits : array-like of shape (n_rows, n_entries)
        Finite.
    temperature : float, default=1.0
        The weight t > 0 of the entropy; the solution is the softmax of ``z / t``.

    Returns
    -------
    ndarray of shape (n_rows, n_entries)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-4.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.oracles.kernel_smoothing import entropic_linear_program
    >>> entropic_linear_program([[np.log(3.0), 0.0]]).round(5)
    array([[0.75, 0.25]])
    """
    z = np.asarray(logits, dtype=float)
    p = cp.Variable(z.shape)
    objective = cp.sum(cp.multiply(z, p)) + temperature * cp.sum(cp.entr(p))
    return _solve_on_simplex(cp.Maximize(objective), p, tol=1e-11)  # the cone solver gives no more


def entmax(logits: ArrayLike, *, alpha: float) -> Array:
    """Solve ``max_p z.p + sum_j (p_j - p_j^alpha) / (alpha (alpha - 1))`` on the simplex.

    Parameters
    ----------
    logits : array-like of shape (n_rows, n_entries)
        Finite; its rows are the z.
    alpha : float
        Above 1; best a fraction of small numbers, for which the cone program is exact.

    Returns
    -------
    ndarray of shape (n_rows, n_entries)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS EN-1.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import entmax
    >>> entmax([[1.0, 0.0, -2.0]], alpha=1.5).round(4) + 0.0
    array([[0.8307, 0.1693, 0.    ]])
    """
    z = np.asarray(logits, dtype=float)
    p = cp.Variable(z.shape, nonneg=True)
    entropy = cp.sum(p) - cp.sum(cp.power(p, alpha))
    objective = cp.sum(cp.multiply(z, p)) + entropy / (alpha * (alpha - 1))
    return _solve_on_simplex(cp.Maximize(objective), p, tol=1e-8)


def _solve_on_simplex(objective: cp.Minimize | cp.Maximize, p: cp.Variable, *, tol: float) -> Array:
    problem = cp.Problem(objective, [cp.sum(p, axis=1) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
    return np.asarray(p.value)
