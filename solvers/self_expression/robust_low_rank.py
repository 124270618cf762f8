"""Low-rank representation with outlying samples: nuclear norm and l2,1 norm, certified."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..solution import Solution, aim, certified, warn_unless_converged
from ..sparse_coding.problem import check_points
from .low_rank import thin_svd

_CHECK_EVERY = 10
_RELAXATION = 1.6
_RARER = 1.1
_LEAST_SHARE = 0.01  # of the spectral norm: smaller thresholds lose digits in a Gram matrix


def robust_low_rank_self_expression(
    X: ArrayLike, *, lam: float, tol: float = 1e-6, max_iter: int = 5000
) -> Solution:
    """Low-rank representation of the rows of X by each other, if whole rows may be outliers.

    ::

        min_{C, E}  |C|_* + lam sum_i |e_i|     subject to   X = C X + E

    For the returned C, ``E = X - C X``. ADMM solves the problem in the row space of the data (thin
    SVD ``X = U diag(s) R^T``, ``C = C' U^T``), with penalties that balance the residuals. For
    affine subspaces, append a constant feature to X first (homogeneous coordinates).

    The certificate is ``gap = (P - D) / P`` with ``P = |C|_* + lam sum_i |x_i - c_i X|`` and
    ``D = <X, Y>`` at a dual point with ``|y_i| <= lam`` and ``|Y X^T|_2 <= 1``. It is the dual
    point of ADMM, made feasible by clipping its rows and then scaling it.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Weight of the outliers, > 0. At ``lam >= max_i |pinv(X)_:i|`` no row is an outlier, and C is
        the noiseless solution of `low_rank_self_expression`.
    tol : float, default=1e-6
        Largest accepted gap.
    max_iter : int, default=5000

    Returns
    -------
    Solution
        `coef` is a dense array; the rows are one problem, so `objective`, `gap`, `n_iter` and
        `converged` are single numbers. `dual` is Y, of the shape of X.

    Warns
    -----
    ConvergenceWarning
        If the gap ends above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size,
        ``lam <= 0``, ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Liu, Lin and Yu, "Robust subspace segmentation by low-rank representation" (2010); EQUATIONS
    CL-6.

    Examples
    --------
    >>> from twinsolve.solvers import robust_low_rank_self_expression
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 0.1]]
    >>> C = robust_low_rank_self_expression(X, lam=1.0).coef
    >>> (14 * C).round(3) + 0
    array([[1., 2., 3., 0.],
           [2., 4., 6., 0.],
           [3., 6., 9., 0.],
           [0., 0., 0., 0.]])
    """
    X = check_points(X)
    lam, tol = check_positive(lam, "lam"), check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    points = X.astype(np.float64)
    U, s, Rt = thin_svd(X)
    J, dual, n_iter = np.zeros_like(U), np.zeros_like(points), 0
    if len(s):
        J, dual, n_iter = _admm(points, U, s, Rt, lam, aim(tol, X.dtype), max_iter)
    J[~X.any(axis=1)] = 0  # these rows are 0 up to rounding
    solution = certified(
        J @ U.T,
        lambda C: certify_robust(points, C, points, dual, lam),
        dtype=X.dtype,
        tol=tol,
        n_iter=n_iter,
        cure="increase max_iter or tol",
    )
    warn_unless_converged(solution)
    return solution


def _admm(
    X: Array, U: Array, s: Array, Rt: Array, lam: float, tol: float, max_iter: int
) -> tuple[Array, Array, int]:
    """ADMM on ``C' = J, U S = C' S + E`` for data scaled to spectral norm 1.

    Each constraint has its own penalty, as small singular values need a large penalty for E.
    Returns J and the dual point of the best certificate, and the number of iterations.
    """
    top, s = s[0], s / s[0]
    B, weight = U * s, lam * top
    C, rho, rho_e = U.copy(), 1.0, 1.0 / (s[-1] * s[len(s) // 2])
    dual, dual_e = np.zeros_like(C), np.zeros_like(C)
    best, rows, adapt_at = (np.inf, C, X), s[:, None] * top * Rt, float(_CHECK_EVERY)
    residual = B - C * s
    for iteration in range(1, max_iter + 1):
        J = shrink_spectrum(C + dual / rho, 1 / rho)
        E = shrink_rows(residual + dual_e / rho_e, weight / rho_e)
        relaxed = _RELAXATION * J + (1 - _RELAXATION) * C
        relaxed_e = _RELAXATION * E + (1 - _RELAXATION) * residual
        previous = C
        C = (rho * relaxed - dual + (rho_e * (B - relaxed_e) + dual_e) * s) / (rho + rho_e * s**2)
        residual = B - C * s
        dual += rho * (C - relaxed)
        dual_e += rho_e * (residual - relaxed_e)
        if iteration % _CHECK_EVERY and iteration < max_iter:
            continue
        _, gap, Y = certify_robust(X, J, rows, (dual_e @ Rt) / top, lam)
        if gap < best[0]:
            best = (gap, J, Y)
        if gap <= tol:
            break
        change = C - previous
        # Adapt ever more rarely, as the penalties might otherwise never settle.
        if iteration >= adapt_at:
            rho *= _balance(C - J, C, rho * change, dual)
            rho_e *= _balance(residual - E, B, rho_e * change * s, dual_e)
            adapt_at *= _RARER
    return best[1], best[2], iteration


def _balance(primal: Array, of: Array, change: Array, dual: Array) -> float:
    """Return a factor for the penalty that makes primal and dual residuals more equal."""
    tiny = np.finfo(np.float64).tiny
    primal_residual = np.linalg.norm(primal) / max(np.linalg.norm(of), tiny)
    dual_residual = np.linalg.norm(change) / max(np.linalg.norm(dual), tiny)
    factor = np.sqrt(max(primal_residual, tiny) / max(dual_residual, tiny))
    return float(np.clip(factor, 0.2, 5)) if not 0.5 < factor < 2 else 1.0


def certify_robust(
    X: Array, C: Array, A: Array, Y: Array, lam: float
) -> tuple[float, float, Array]:
    """Objective, relative gap and the feasible dual point from Y, for coefficients C of rows of A.

    A is X or ``U^T X``: coefficients C in ``U^T X`` have the objective of ``C U^T`` in X.
    """
    nuclear = np.linalg.norm(C, "nuc") if C.size else 0.0
    objective = nuclear + lam * np.linalg.norm(X - C @ A, axis=1).sum()
    norms = np.linalg.norm(Y, axis=1)
    Y = Y * np.minimum(1, lam / np.where(norms > 0, norms, lam))[:, None]
    Y /= max(1, _spectral_norm(Y, X))
    gap = max(objective - (X * Y).sum(), 0) / (objective or 1)
    return objective, gap, Y


def _spectral_norm(Y: Array, X: Array) -> float:
    """``|Y X^T|_2`` from the smallest of the Gram matrices that have its square as eigenvalue."""
    if X.shape[1] < len(X):
        X = np.asarray(np.linalg.qr(X, mode="r"))
    product = Y @ X.T
    gram = product.T @ product
    return float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0)))


def shrink_spectrum(Z: Array, threshold: float) -> Array:
    """Proximal map of the nuclear norm.

    It is ``Z f(Z^T Z)`` with ``f(t) = max(1 - threshold / sqrt(t), 0)``. The eigenvectors of the
    smaller Gram matrix take less time than an SVD. They change the result by about ``u |Z|^3 /
    threshold^2``, u the rounding unit, so a small threshold needs the SVD.
    """
    if len(Z) < Z.shape[1]:
        return shrink_spectrum(Z.T, threshold).T
    values, V = np.linalg.eigh(Z.T @ Z)
    if threshold**2 < _LEAST_SHARE**2 * values[-1]:
        P, s, Qt = np.linalg.svd(Z, full_matrices=False)
        return np.asarray((P * np.maximum(s - threshold, 0)) @ Qt)
    kept = values > threshold**2
    factors = 1 - threshold / np.sqrt(values[kept])
    return np.asarray(((Z @ V[:, kept]) * factors) @ V[:, kept].T)


def shrink_rows(Z: Array, threshold: float) -> Array:
    """Proximal map of the sum of the norms of the rows."""
    norms = np.linalg.norm(Z, axis=1, keepdims=True)
    return Z * np.maximum(1 - threshold / np.where(norms > 0, norms, 1), 0)
