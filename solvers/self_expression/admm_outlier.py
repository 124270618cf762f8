"""Sparse self-expression with sparse outliers by the ADMM of the literature, in its two forms."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, refuse_sparse
from ..kernels.compiled import jit_reordered
from ..scales import squared_norms
from ..solution import Solution, certified, warn_unless_converged
from ..sparse_coding.penalty import Penalty, soft_threshold
from ..sparse_coding.problem import check_points
from .admm import cure, how_admm_ended
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
    """Sparse self-expression of corrupted data by ADMM, in the form of the paper or of its code.

    The form of the SSC paper, with ``mu = 2 / lam`` and ``p = penalty``, starts from zeros ::

        Z <- (mu (X - E) X^T + p C - L) (mu X X^T + p I)^-1
        C <- S_{1 / p}(Z + L / p),   diag(C) <- 0
        E <- S_{lam_outlier / 2}(X - Z X)
        L <- L + p (Z - C)

    and ends if ``max |Z - C| < tol``. Its fixed point is the optimum of `outlier_self_expression`.

    The circulated code runs ADMM on the dictionary ``[X; I / g]``, ``g = lam_outlier / lam``, with
    the code ``[C, g E]``. Z is a copy of this whole code; diag(Z) is set to zero after solving for
    Z. Besides the penalty ``mu / 2``, the constraint ``X = C X + E`` has a multiplier. So this form
    solves another problem, ``min |C|_1 + g |E|_1`` subject to ``X = C X + E``, which has no noise
    term; mu changes only the path of the iterates. It ends if ``max |Z - C| < tol`` and
    ``|x_i - e_i - z_i X| < tol |x_i - e_i|``.

    Use it only to reproduce numbers of the literature: `outlier_self_expression` solves the problem
    of the paper, with a certificate. Each form factorises one matrix of shape
    (n_samples, n_samples). For the dictionary it is ``X X^T + (1 / g^2 + p / mu) I``, by Woodbury's
    identity.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, lam_outlier : float
        Penalties > 0 of `outlier_self_expression`; the literature takes `outlier_lams_from_alpha`.
    penalty : float
        Penalty > 0 of the constraint Z = C; alpha in the literature.
    circulated : bool, default=False
        Use the form of the circulated code instead of the form of the paper.
    tol : float, default=2e-4
        Tolerance of the stopping rule.
    max_iter : int, default=150

    Returns
    -------
    Solution
        `coef` is a dense array whose diagonal is exactly zero. `gap` and `objective` are those of
        `outlier_self_expression`; `message` says whether the stopping rule of ADMM ended it.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`, as it does if the rule stops early.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, fewer
        than two samples, `lam`, `lam_outlier`, `penalty` or ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013), appendix; EQUATIONS CL-3, CL-5.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import admm_outlier_self_expression
    >>> X = [[2.0, 2.0, 0.0], [2.0, 2.0, 5.0]]
    >>> settings = {"lam": 0.8, "lam_outlier": 1.0, "penalty": 10.0, "tol": 1e-5}
    >>> admm_outlier_self_expression(X, **settings).coef.round(4)
    array([[0.   , 0.064],
           [0.95 , 0.   ]])
    """
    refuse_sparse(X, "outliers are single features")
    X = check_points(X, min_rows=2)
    lam, lam_outlier = check_positive(lam, "lam"), check_positive(lam_outlier, "lam_outlier")
    penalty, tol = check_positive(penalty, "penalty"), check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    iterate = _circulated_form if circulated else _paper_form
    points = X.astype(np.float64)
    sparse = Penalty.checked(lam, len(X), zero_diagonal=True)
    C, n_iter, stopped = iterate(points, lam, lam_outlier, penalty, tol, max_iter)
    solution = certified(
        C,
        lambda codes: certify_outlier(points, points, codes, sparse, lam_outlier),
        dtype=X.dtype,
        scale=squared_norms(points),
        tol=tol,
        n_iter=n_iter,
        cure=cure("outlier_self_expression"),
        ended=how_admm_ended(n_iter, stopped),
    )
    warn_unless_converged(solution)
    return solution


def _paper_form(
    X: Array, lam: float, lam_outlier: float, p: float, tol: float, max_iter: int
) -> tuple[Array, int, bool]:
    """Run the ADMM of the paper, on X - E in place of E."""
    n, mu = len(X), 2 / lam
    inverse = np.linalg.inv(mu * X @ X.T + p * np.eye(n))
    C, L = np.zeros((2, n, n))
    clean, t = X, lam_outlier / 2
    for iteration in range(1, max_iter + 1):
        Z = (mu * clean @ X.T + p * C - L) @ inverse
        C = soft_threshold(Z + L / p, 1 / p)
        np.fill_diagonal(C, 0)
        fit = Z @ X
        clean = fit + np.clip(X - fit, -t, t)
        L += p * (Z - C)
        if np.abs(Z - C).max() < tol:
            return C, iteration, True
    return C, max_iter, False


def _circulated_form(
    X: Array, lam: float, lam_outlier: float, p: float, tol: float, max_iter: int
) -> tuple[Array, int, bool]:
    """Run the ADMM of the circulated code, on the dictionary ``[X; I / g]``.

    Z, C and L belong to the atoms X, and Ze, F and Le to the unit vectors. Y is the multiplier of
    ``X = C X + E``. ``YX = Y X^T`` is updated along with Y, which leaves two products with X in an
    iteration.
    """
    n, mu, g = len(X), 2 / lam, lam_outlier / lam
    ridge = 1 / g**2 + p / mu
    gram = X @ X.T
    inverse = np.linalg.inv(gram + ridge * np.eye(n))
    C, L, YX = np.zeros((3, n, n))
    S, Le, Y = np.zeros((3, *X.shape))
    by_fit, by_right = 1 / (ridge * g), (1 - 1 / (ridge * g**2)) / p
    for iteration in range(1, max_iter + 1):
        target = mu * gram + YX
        right, right_e = target + p * C - L, target / g + S @ X.T
        Z = (right - (right @ gram + right_e / g) @ inverse) / p
        explained, diagonal = Z @ gram, Z.diagonal().copy()
        np.fill_diagonal(Z, 0)
        fit = Z @ X
        YX += mu * ((1 + diagonal[:, None]) * gram - explained)
        YX -= mu / g * (by_right * right_e - by_fit * explained)
        C = soft_threshold(Z + L / p, 1 / p)
        np.fill_diagonal(C, 0)
        disagreement, violation = _step(X, fit, diagonal, S, Le, Y, mu, g, p, by_fit, by_right)
        L += p * (Z - C)
        if max(np.abs(Z - C).max(), disagreement) < tol and violation < tol:
            return C, iteration, True
    return C, max_iter, False


@jit_reordered
def _step(
    X: Array,
    fit: Array,
    diagonal: Array,
    S: Array,
    Le: Array,
    Y: Array,
    mu: float,
    g: float,
    p: float,
    by_fit: float,
    by_right: float,
) -> tuple[float, float]:
    """Update the outliers' part of an iteration, S, Le and Y, in place and in one pass.

    Letters as in `_circulated_form`, with ``S = p F - Le`` and ``e = Ze / g``; `fit` is ``Z X``
    without the diagonal of Z, and `by_fit` and `by_right` are the factors in the solution for Ze.
    Returns ``max |Ze - F|`` and the largest ``|x - e - z X|`` of a row relative to ``|x - e|``.
    """
    n, d = X.shape
    disagreement, violation = 0.0, 0.0
    for i in range(n):
        error, norm = 0.0, 0.0
        for j in range(d):
            right = (mu * X[i, j] + Y[i, j]) / g + S[i, j]
            Ze = by_right * right - by_fit * (fit[i, j] + diagonal[i] * X[i, j])
            shifted = Ze + Le[i, j] / p
            F = shifted - min(max(shifted, -1 / p), 1 / p)
            clean = X[i, j] - Ze / g
            residual = clean - fit[i, j]
            Y[i, j] += mu * residual
            Le[i, j] += p * (Ze - F)
            S[i, j] = p * F - Le[i, j]
            disagreement = max(disagreement, abs(Ze - F))
            error += residual * residual
            norm += clean * clean
        violation = max(violation, np.sqrt(error / norm) if norm > 0 else np.sqrt(error))
    return disagreement, violation
