"""Sparse self-expression with sparse outliers by the ADMM of the literature, in its two forms."""

import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array, Solution, check_integer, check_matrix, check_positive
from .admm import shrink
from .huber import certify_outlier


def admm_outlier_self_expression(
    X: ArrayLike,
    *,
    lam: float,
    lam_outlier: float,
    penalty: float,
    circulated: bool = False,
    tol: float = 2e-4,
    max_iter: int = 150,
) -> Solution:
    """Sparse self-expression of corrupted data by ADMM, as in the SSC paper or as circulated.

    The paper's form, with ``mu = 2 / lam`` and ``p = penalty``, from zeros ::

        Z <- (mu (X - E) X^T + p C - L) (mu X X^T + p I)^-1
        C <- S_{1 / p}(Z + L / p),   diag(C) <- 0
        E <- S_{lam_outlier / 2}(X - Z X)
        L <- L + p (Z - C)

    until ``max |Z - C| < tol``. Its fixed point is the optimum of
    `outlier_self_expression`.

    The circulated code runs ADMM on the dictionary ``[X; I / g]``, ``g = lam_outlier / lam``, whose
    code ``[C, g E]`` is split from Z as a whole, sets diag(Z) to zero after solving for it, and has
    a multiplier of ``X = C X + E`` beside the penalty ``mu / 2``. So it solves another problem,
    ``min |C|_1 + g |E|_1`` subject to ``X = C X + E``, where nothing is noise and mu only steers
    the way. It stops at ``max |Z - C| < tol`` and ``|x_i - e_i - z_i X| < tol |x_i - e_i|``.

    For reproducing the literature's numbers: `outlier_self_expression` solves the paper's problem,
    to a certificate. Either form factorises one matrix, of shape (n_samples, n_samples): the
    inverse on the dictionary is that of ``X X^T + (1 / g^2 + p / mu) I`` by Woodbury's identity.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, lam_outlier : float
        Penalties > 0 of `outlier_self_expression`; `outlier_lams_from_alpha` in the literature.
    penalty : float
        Of the constraint Z = C, > 0; alpha in the literature.
    circulated : bool, default=False
        The circulated form instead of the paper's.
    tol : float, default=2e-4
    max_iter : int, default=150

    Returns
    -------
    Solution
        `coef` is a dense array whose diagonal is exactly zero. `gap` and `objective` are those of
        `outlier_self_expression`; `converged` says whether ADMM stopped before `max_iter`.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, `lam`, `lam_outlier`, `penalty` or ``tol <= 0`` or
        ``max_iter < 1``.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013), appendix; EQUATIONS CL-3, CL-5.

    Examples
    --------
    >>> from twinsolve.solvers import admm_outlier_self_expression
    >>> X = [[2.0, 2.0, 0.0], [2.0, 2.0, 5.0]]
    >>> settings = {"lam": 0.8, "lam_outlier": 1.0, "penalty": 5.0, "tol": 1e-9, "max_iter": 1000}
    >>> admm_outlier_self_expression(X, **settings).coef.round(4)
    array([[0.   , 0.064],
           [0.95 , 0.   ]])
    """
    X = check_matrix(X, "X", min_rows=2)
    lam, lam_outlier = check_positive(lam, "lam"), check_positive(lam_outlier, "lam_outlier")
    penalty, tol = check_positive(penalty, "penalty"), check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    iterate = _circulated_form if circulated else _paper_form
    points = X.astype(np.float64)
    C, n_iter, converged = iterate(points, lam, lam_outlier, penalty, tol, max_iter)
    objective, gap, dual = certify_outlier(points, points, C, lam, lam_outlier)
    counts, flags = np.full(len(X), n_iter), np.full(len(X), converged)
    return Solution(C.astype(X.dtype, copy=False), objective, gap, dual, counts, flags)


def _paper_form(
    X: Array, lam: float, lam_outlier: float, p: float, tol: float, max_iter: int
) -> tuple[Array, int, bool]:
    n, mu = len(X), 2 / lam
    inverse = np.linalg.inv(mu * X @ X.T + p * np.eye(n))
    C, L = np.zeros((2, n, n))
    E = np.zeros_like(X)
    for iteration in range(1, max_iter + 1):
        Z = (mu * (X - E) @ X.T + p * C - L) @ inverse
        C = shrink(Z + L / p, 1 / p)
        np.fill_diagonal(C, 0)
        E = shrink(X - Z @ X, lam_outlier / 2)
        L += p * (Z - C)
        if np.abs(Z - C).max() < tol:
            return C, iteration, True
    return C, max_iter, False


def _circulated_form(
    X: Array, lam: float, lam_outlier: float, p: float, tol: float, max_iter: int
) -> tuple[Array, int, bool]:
    """Codes in ``[X; I / g]``: Z, C, L of X; Ze, F, Le of the unit vectors; Y is of X = C X + E."""
    n, mu, g = len(X), 2 / lam, lam_outlier / lam
    ridge = 1 / g**2 + p / mu
    inverse = np.linalg.inv(X @ X.T + ridge * np.eye(n))
    C, L = np.zeros((2, n, n))
    F, Le, Y = np.zeros((3, *X.shape))
    for iteration in range(1, max_iter + 1):
        target = mu * X + Y
        right, right_e = target @ X.T + p * C - L, target / g + p * F - Le
        image = right @ X
        H = ((image + right_e / g) @ X.T) @ inverse
        image_h = H @ X
        Z, Ze = (right - H) / p, (right_e - (image + right_e / g - image_h) / (ridge * g)) / p
        fit = (image - image_h) / p - Z.diagonal()[:, None] * X
        np.fill_diagonal(Z, 0)
        C, F = shrink(Z + L / p, 1 / p), shrink(Ze + Le / p, 1 / p)
        np.fill_diagonal(C, 0)
        clean = X - Ze / g
        Y += mu * (clean - fit)
        L += p * (Z - C)
        Le += p * (Ze - F)
        missed = max(np.abs(Z - C).max(), np.abs(Ze - F).max())
        if missed < tol and _relative(clean - fit, clean).max() < tol:
            return C, iteration, True
    return C, max_iter, False


def _relative(missed: Array, of: Array) -> Array:
    norms = np.linalg.norm(of, axis=1)
    return np.linalg.norm(missed, axis=1) / np.where(norms > 0, norms, 1)
