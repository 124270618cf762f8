"""Self-expression with a ridge penalty, in closed form."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array, check_matrix
from ..sparse_coding.problem import check_points
from ..sparse_points import dense_points

_ALONE = 1e-6  # share of the largest term of a projection under which an entry loses digits


def least_squares_self_expression(
    X: ArrayLike, *, lam: float, zero_diagonal: bool = False
) -> Array:
    """Least squares regression coefficients: ridge regression of each row of X on all rows.

    ::

        min_C  |X - C X|_F^2 + lam |C|_F^2,     optionally with diag(C) = 0

    With the thin SVD ``X = U diag(s) R^T`` the solution is ``C = U diag(s^2 / (s^2 + lam)) U^T``.
    With the zero diagonal (leave-one-out ridge, not symmetric) it is ``C_ij = -P_ij / P_ii`` for
    ``P = (X X^T + lam I)^-1``. For ``lam`` far above ``s_1^2`` the first solution tends to the
    scaled Gram matrix ``X X^T / lam``.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Penalty > 0.
    zero_diagonal : bool, default=False
        Whether samples may not represent themselves; needs two samples.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        With `zero_diagonal` the diagonal is exactly zero.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size,
        ``lam <= 0`` or too few samples.

    References
    ----------
    Lu et al., "Robust and efficient subspace segmentation via least squares regression" (2012);
    EQUATIONS SE-LSR, SE-LSRd, SE-14. The paper prints the closed form without the zero diagonal for
    the problem with it (erratum E3-j).

    Examples
    --------
    >>> from twinsolve.solvers import least_squares_self_expression
    >>> least_squares_self_expression([[1.0], [2.0]], lam=5.0)
    array([[0.1, 0.2],
           [0.2, 0.4]])
    >>> least_squares_self_expression([[1.0], [2.0]], lam=1.0, zero_diagonal=True)
    array([[0. , 0.4],
           [1. , 0. ]])
    """
    X = check_points(X, min_rows=2 if zero_diagonal else 1)
    lam = check_positive(lam, "lam")
    U, s, _ = np.linalg.svd(X.astype(np.float64), full_matrices=False)
    C = _leave_one_out(U, s, lam) if zero_diagonal else (U * (s**2 / (s**2 + lam))) @ U.T
    zero = ~X.any(axis=1)
    C[zero], C[:, zero] = 0, 0
    return C.astype(X.dtype, copy=False)


def least_squares_residual(
    X: ArrayLike, coef: ArrayLike, *, lam: float, zero_diagonal: bool = False
) -> Array:
    """Relative residual, for each row, of the optimality of `least_squares_self_expression`.

    Coefficients are optimal iff ``M = (X - C X) X^T - lam C`` is zero (off the diagonal, with the
    zero diagonal). The residual is ``|m_i| / |g_i|`` with ``m_i`` row i of M and ``g_i`` row i of
    ``X X^T``; it is 1 at C = 0. The objective of row i is at most ``|m_i|^2 / lam`` above its
    optimum.

    Parameters
    ----------
    X, lam, zero_diagonal
        As given to `least_squares_self_expression`.
    coef : array-like of shape (n_samples, n_samples)

    Returns
    -------
    ndarray of shape (n_samples,)
        Infinity for rows that violate the zero diagonal.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes or ``lam <= 0``.

    References
    ----------
    EQUATIONS SE-LSR, SE-LSRd.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import least_squares_residual
    >>> C = [[0.0, 0.25], [0.0, 0.0]]
    >>> least_squares_residual([[1.0], [2.0]], C, lam=4.0, zero_diagonal=True)
    array([0., 1.])
    """
    X = check_matrix(dense_points(X, "X"), "X").astype(np.float64)
    C = check_coefficients(coef, len(X))
    gram = X @ X.T
    gradient = gram - C @ gram - check_positive(lam, "lam") * C
    if zero_diagonal:
        np.fill_diagonal(gradient, 0)
        np.fill_diagonal(gram, 0)
    scale = np.linalg.norm(gram, axis=1)
    residual = np.linalg.norm(gradient, axis=1) / np.where(scale > 0, scale, 1)
    if zero_diagonal:
        residual[C.diagonal() != 0] = np.inf
    return residual


def check_coefficients(coef: ArrayLike, n: int) -> Array:
    C = check_matrix(coef, "coef", n_features=n).astype(np.float64)
    if len(C) != n:
        raise ValueError(f"coef: must have shape {(n, n)}, got {C.shape}")
    return C


def _leave_one_out(U: Array, s: Array, lam: float) -> Array:
    """Return ``-P_ij / P_ii``; P is computed times `lam`, so that a tiny lam is harmless.

    The entries of P carry errors of the rounding of its largest terms. A sample that is nearly
    alone in its direction has a smaller P_ii than these leave right: it is regressed by itself.
    """
    weights = lam / (s**2 + lam)
    P, largest = (U * weights) @ U.T, weights.max()
    if U.shape[0] > U.shape[1]:
        outside = -U @ U.T
        np.fill_diagonal(outside, np.maximum(1 + outside.diagonal(), 0))
        P, largest = P + outside, 1.0
    diagonal = P.diagonal()
    isolated = np.flatnonzero(diagonal < _ALONE * largest)
    C = -P / np.where(diagonal > 0, diagonal, 1)[:, None]
    np.fill_diagonal(C, 0)
    for i in isolated.tolist():
        C[i] = _regress_on_others(U * s, i, lam)
    return C


def _regress_on_others(X: Array, i: int, lam: float) -> Array:
    """Regress row i of X on the other rows, without directions at rounding level."""
    U, s, Vt = np.linalg.svd(np.delete(X, i, axis=0), full_matrices=False)
    real = s > len(X) * np.finfo(s.dtype).eps * s[0]
    s, U, Vt = s[real], U[:, real], Vt[real]
    return np.insert(U @ (s / (s**2 + lam) * (Vt @ X[i])), i, 0.0)
