"""cvxpy statements of the nonlocal energy, and of energies of filter responses."""

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array


def minimize_energy(f: ArrayLike, k: ArrayLike, *, lam: float, fidelity: str = "constant") -> Array:
    """Solve ``min_u 1/2 sum_ij k_ij |u_i - u_j|^2 + lam/2 sum_i w_i |u_i - f_i|^2``.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    k : array-like of shape (n_tokens, n_tokens)
        Directed weights as in the papers, nonnegative; the solver takes ``K = k + k.T``.
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


def minimize_convex_ridge(
    f: ArrayLike, filters: ArrayLike, thresholds: ArrayLike, weights: ArrayLike, *, lam: float
) -> Array:
    """Solve ``min_u 1/2 |u - f|^2 + lam sum_ik weights_ik sum_w huber(<k_i, u_w>; thresholds_ik)``.

    Parameters
    ----------
    f : array-like of shape (height, width)
    filters : array-like of shape (n_filters, size, size)
        Applied to the windows inside the image.
    thresholds, weights : array-like of shape (n_filters, n_knots)
        Weights must be >= 0, so that every term is convex.
    lam : float

    Returns
    -------
    ndarray of shape (height, width)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS FE-3.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.nonlocal_energy import minimize_convex_ridge
    >>> minimize_convex_ridge([[0.0, 1.0]], [[[1.0]]], [[9.0]], [[1.0]], lam=1.0).round(5) + 0.0
    array([[0. , 0.5]])
    """
    u, responses = _responses(f, filters)
    knots = zip(responses, np.asarray(thresholds), np.asarray(weights), strict=True)
    huber = [
        weight / 2 * cp.sum(cp.huber(part, t))  # huber of cvxpy is twice as large
        for part, row, of_row in knots
        for t, weight in zip(row, of_row, strict=True)
    ]
    return _solve_denoising(u, f, lam * sum(huber))


def l1_analysis(f: ArrayLike, filters: ArrayLike, *, lam: float) -> Array:
    """Solve ``min_u 1/2 |u - f|^2 + lam sum_i sum_w |<k_i, u_w>|``.

    Parameters
    ----------
    f : array-like of shape (height, width)
    filters : array-like of shape (n_filters, size, size)
        Applied to the windows inside the image.
    lam : float

    Returns
    -------
    ndarray of shape (height, width)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS FE-5.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.nonlocal_energy import l1_analysis
    >>> l1_analysis([[0.0, 1.0]], [[[1.0]]], lam=0.25).round(5) + 0.0
    array([[0.  , 0.75]])
    """
    u, responses = _responses(f, filters)
    return _solve_denoising(u, f, lam * sum(cp.norm1(part) for part in responses))


def total_variation(
    f: ArrayLike, *, lam: float, isotropic: bool = True, mask: ArrayLike | None = None
) -> Array:
    """Solve ``min_u 1/2 |u - f|^2 + lam TV(u)``, with forward differences, 0 at the last pixels.

    With a mask, ``|u - f|^2`` is over the pixels where it is True.

    Parameters
    ----------
    f : array-like of shape (height, width)
    lam : float
    isotropic : bool, default=True
    mask : array-like of bool of shape (height, width), optional

    Returns
    -------
    ndarray of shape (height, width)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS FE-5.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.nonlocal_energy import total_variation
    >>> total_variation([[0.0, 1.0], [0.0, 1.0]], lam=0.25).round(5) + 0.0
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    u = cp.Variable(np.shape(f))
    height, width = u.shape
    down, right = np.eye(height, k=1) - np.eye(height), np.eye(width, k=-1) - np.eye(width)
    down[-1], right[:, -1] = 0, 0
    parts = [cp.vec(down @ u, order="C"), cp.vec(u @ right, order="C")]
    if isotropic:
        penalty = lam * cp.sum(cp.norm(cp.vstack(parts), 2, axis=0))
    else:
        penalty = lam * sum(cp.norm1(part) for part in parts)
    return _solve_denoising(u, f, penalty, mask)


def _responses(f: ArrayLike, filters: ArrayLike) -> tuple[cp.Variable, list[cp.Expression]]:
    """An image variable, and the inner products of each filter with its windows."""
    u = cp.Variable(np.shape(f))
    height, width = u.shape
    responses = []
    for k in np.asarray(filters, dtype=float):
        places = np.ndindex(height - k.shape[0] + 1, width - k.shape[1] + 1)
        rows = np.array(
            [np.pad(k, ((y, height - k.shape[0] - y), (x, width - k.shape[1] - x))).ravel()
             for y, x in places]
        )  # fmt: skip
        responses.append(rows @ cp.vec(u, order="C"))
    return u, responses


def _solve_denoising(
    u: cp.Variable, f: ArrayLike, penalty: Any, mask: ArrayLike | None = None
) -> Array:
    valid = np.ones(u.shape) if mask is None else np.asarray(mask, dtype=float)
    values = np.where(valid > 0, np.asarray(f, dtype=float), 0)
    residual = cp.multiply(valid, u - values)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(residual) / 2 + penalty))
    problem.solve(solver=cp.CLARABEL)
    return np.asarray(u.value)
