"""Low-rank representation with outlying samples by the growing-penalty ADMM of the literature."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..solution import Solution, certified, warn_unless_converged
from ..sparse_coding.problem import check_points
from .admm import cure, how_admm_ended
from .low_rank import thin_svd
from .robust_low_rank import certify_robust, shrink_rows, shrink_spectrum

_LARGEST_PENALTY = 1e10


def admm_low_rank_self_expression(
    X: ArrayLike,
    *,
    lam: float,
    penalty: float = 1e-6,
    growth: float = 1.1,
    tol: float = 1e-8,
    max_iter: int = 1000,
    history: bool = False,
) -> Solution:
    """Low-rank representation by ADMM with a growing penalty, as in the literature.

    The problem is ``min_{C, E} |C|_* + lam sum_i |e_i|`` subject to ``X = C X + E``. With
    ``p = penalty`` at first, an iteration is ::

        J <- U diag(max(s - 1 / p, 0)) V^T,   U diag(s) V^T = C + W / p (SVD)
        C <- (J - W / p + (X - E + Y / p) X^T) (X X^T + I)^-1
        E <- max(1 - lam / (p |t_i|), 0) t_i for each row t_i of T = X - C X + Y / p
        Y <- Y + p (X - C X - E),   W <- W + p (C - J),   p <- min(growth p, 1e10)

    It starts from zeros, in the row space of the data, and ends if no entry of ``X - C X - E`` or
    ``C - J`` exceeds `tol` in size. Use it only to reproduce numbers of the literature:
    `robust_low_rank_self_expression` solves the problem, with a certificate.

    The stopping rule tests only whether the constraints hold, which a large p enforces by itself. C
    changes by O(1 / p) in an iteration, so a growing p freezes it, often before the optimum, at a
    point that depends on `penalty` and `growth`. A smaller `tol` does not help. The gap bounds the
    error. With a fixed penalty (``growth=1``) ADMM converges to the optimum.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Weight of the outliers, > 0.
    penalty : float, default=1e-6
        Initial p > 0.
    growth : float, default=1.1
        Factor >= 1 by which p grows in every iteration.
    tol : float, default=1e-8
        Largest accepted entry of the residuals of the constraints.
    max_iter : int, default=1000
    history : bool, default=False
        Record `objective` and `gap` of every iterate C, arrays of shape (n_iter,).

    Returns
    -------
    Solution
        `coef` is a dense array. `objective`, `gap` and `dual` are those of
        `robust_low_rank_self_expression`, at ``E = X - C X``; `message` says whether the stopping
        rule of ADMM ended it. The rows are one problem, so all but `coef` and `dual` are single
        numbers.

    Warns
    -----
    ConvergenceWarning
        If the gap ends above `tol`, as it does if the rule stops ADMM early.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, `lam`,
        `penalty` or ``tol <= 0``, ``growth < 1`` or ``max_iter < 1``.

    References
    ----------
    Liu, Lin and Yu, "Robust subspace segmentation by low-rank representation" (2010); Lin, Chen and
    Ma, "The augmented Lagrange multiplier method for exact recovery of corrupted low-rank matrices"
    (2010); EQUATIONS CL-6.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import admm_low_rank_self_expression
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 0.1]]
    >>> admm_low_rank_self_expression(X, lam=1.0, penalty=1.0, growth=1.0).coef.round(3) + 0
    array([[0.071, 0.143, 0.214, 0.   ],
           [0.143, 0.286, 0.429, 0.   ],
           [0.214, 0.429, 0.643, 0.   ],
           [0.   , 0.   , 0.   , 0.   ]])
    """
    X = check_points(X)
    lam, penalty = check_positive(lam, "lam"), check_positive(penalty, "penalty")
    growth, tol = check_positive(growth, "growth"), check_positive(tol, "tol")
    if growth < 1:
        raise ValueError(f"growth: must be >= 1, got {growth!r}")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    points = X.astype(np.float64)
    U, s, Rt = thin_svd(X)
    B = s[:, None] * Rt
    C, W = np.zeros((2, *U.shape))
    E, Y = np.zeros((2, *points.shape))
    p, n_iter, stopped, trace = penalty, 0, False, []
    while n_iter < max_iter and not stopped:
        J = shrink_spectrum(C + W / p, 1 / p) if len(s) else C
        C = (J - W / p + (points - E + Y / p) @ B.T) / (s**2 + 1)
        residual = points - C @ B
        E = shrink_rows(residual + Y / p, lam / p)
        Y, W, p = Y + p * (residual - E), W + p * (C - J), min(growth * p, _LARGEST_PENALTY)
        if history:
            trace.append(certify_robust(points, C, B, Y, lam)[:2])
        stopped = max(_largest_entry(residual - E), _largest_entry(C - J)) <= tol
        n_iter += 1
    recorded = None
    if history:
        recorded = dict(zip(("objective", "gap"), np.transpose(trace), strict=True))
    C[~X.any(axis=1)] = 0  # these rows are 0 up to rounding
    solution = certified(
        C @ U.T,
        lambda coef: certify_robust(points, coef, points, Y, lam),
        dtype=X.dtype,
        tol=tol,
        n_iter=n_iter,
        cure=cure("robust_low_rank_self_expression"),
        ended=how_admm_ended(n_iter, stopped),
        history=recorded,
    )
    warn_unless_converged(solution)
    return solution


def _largest_entry(Z: Array) -> float:
    return float(np.abs(Z).max(initial=0))
