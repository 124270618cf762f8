"""Self-expression with a nuclear norm penalty, in closed form."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array, check_matrix
from ..sparse_coding.problem import check_points
from ..sparse_points import dense_points
from .ridge import check_coefficients


def low_rank_self_expression(X: ArrayLike, *, lam: float) -> Array:
    """Low-rank representation of the rows of X by each other, with Frobenius noise or noiseless.

    ::

        min_C  |X - C X|_F^2 + lam |C|_*                  (lam > 0)
        min_C  |C|_*   subject to   X = C X               (lam = 0, the limit)

    With the thin SVD ``X = U diag(s) R^T`` the solution is
    ``C = U diag(max(0, 1 - lam / (2 s^2))) U^T``: directions with ``s > sqrt(lam / 2)`` are active.
    At ``lam = 0`` the solution is ``U_r U_r^T`` over the r directions with s above the rounding
    level ``s_1 max(n_samples, n_features) eps``. The diagonal is not zero. Low-rank subspace
    clustering writes ``|C|_* + (tau / 2) |X - C X|_F^2``, with ``tau = 2 / lam``.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Penalty >= 0.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        Symmetric and positive semidefinite.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size or
        ``lam < 0``.

    References
    ----------
    Liu, Lin and Yu (2010); Favaro, Vidal and Ravichandran (2011); EQUATIONS SE-LRR, SE-LRR0, CL-7.
    The paper prints ``max(s - lam, 0)`` in place of the filter above (erratum E3-k/l).

    Examples
    --------
    >>> from twinsolve.solvers import low_rank_self_expression
    >>> low_rank_self_expression([[2.0, 0.0], [0.0, 1.0]], lam=1.0)
    array([[0.875, 0.   ],
           [0.   , 0.5  ]])
    """
    X = check_points(X)
    lam = check_positive(lam, "lam", allow_zero=True)
    U, s, _ = thin_svd(X)
    active = s > np.sqrt(lam / 2)
    U, s = U[:, active], s[active]
    C = (U * (1 - lam / (2 * s**2))) @ U.T
    return C.astype(X.dtype, copy=False)


def low_rank_gap(X: ArrayLike, coef: ArrayLike, *, lam: float) -> float:
    """Certified relative suboptimality of any coefficients for `low_rank_self_expression`.

    For ``lam > 0`` the gap is ``(P(C) - D(N)) / |X|_F^2`` with
    ``P(C) = |X - C X|_F^2 + lam |C|_*`` and the dual objective
    ``D(N) = <N, X> - |N|_F^2 / 4``. The dual point ``N = 2 a (X - C X)`` is the best multiple of
    the residual with ``|N X^T|_2 <= lam``. The gap is never smaller than
    ``(P(C) - P*) / |X|_F^2``. For ``lam = 0`` it is the larger of ``|X - C X|_F / |X|_F`` and
    ``|C|_* / rank(X) - 1``, as the optimum is the rank, which the dual point ``pinv(X)^T`` proves.

    Parameters
    ----------
    X, lam
        As given to `low_rank_self_expression`.
    coef : array-like of shape (n_samples, n_samples)

    Returns
    -------
    float
        At least 0; a zero X with zero coefficients has gap 0.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes or ``lam < 0``.

    References
    ----------
    EQUATIONS SE-LRR, SE-LRR0.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import low_rank_gap
    >>> low_rank_gap([[2.0, 0.0], [0.0, 1.0]], [[0.875, 0.0], [0.0, 0.5]], lam=1.0)
    0.0
    """
    X = check_matrix(dense_points(X, "X"), "X")
    C = check_coefficients(coef, len(X))
    lam = check_positive(lam, "lam", allow_zero=True)
    s = np.linalg.svd(X.astype(np.float64), compute_uv=False)
    rank, X = int((s > rank_cutoff(X, s)).sum()), X.astype(np.float64)
    residual, nuclear, square = X - C @ X, np.linalg.norm(C, "nuc"), (s**2).sum()
    energy = (residual**2).sum()
    if lam == 0:
        gap = max(np.sqrt(energy / (square or 1)), (nuclear - rank) / (rank or 1))
        return float(max(gap, 0))
    spectral = 2 * np.linalg.norm(residual @ X.T, 2)
    scale = (X * residual).sum() / (energy or 1)
    scale = np.clip(scale, 0, lam / spectral if spectral > 0 else np.inf)
    dual = 2 * scale * (X * residual).sum() - scale**2 * energy
    return float(max(energy + lam * nuclear - dual, 0) / (square or 1))


def rank_cutoff(X: Array, s: Array) -> float:
    """Level at or under which singular values are rounding errors in the precision of `X`."""
    return float(s[0]) * max(X.shape) * float(np.finfo(X.dtype).eps)


def thin_svd(X: Array) -> tuple[Array, Array, Array]:
    """SVD ``X = U diag(s) R^T`` in float64, without singular values at rounding level.

    Zero rows of X give exactly zero rows of U.
    """
    U, s, Rt = np.linalg.svd(X.astype(np.float64), full_matrices=False)
    U[~X.any(axis=1)] = 0
    significant = s > rank_cutoff(X, s)
    return U[:, significant], s[significant], Rt[significant]
