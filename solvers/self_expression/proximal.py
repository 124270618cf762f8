"""Self-expression with penalties that are given as proximal maps."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..solution import Solution, aim, certified, warn_unless_converged
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.problem import check_points
from .robust_low_rank import shrink_spectrum

Prox = Callable[[Array, float], Array]
Measure = Callable[[Array, list[Array], list[Array]], tuple[float, float, Array]]

_CHECK_EVERY = 5
_RARER = 1.5


def proximal_self_expression(
    X: ArrayLike,
    prox: Prox | Sequence[Prox],
    *,
    lam: float,
    tol: float = 1e-6,
    max_iter: int = 5000,
) -> Solution:
    """Self-expression with any convex penalty, or sum of penalties, from their proximal maps.

    ::

        min_C  |X - C X|_F^2 + lam sum_k Theta_k(C),
        prox_k(Z, t) = argmin_C  1/2 |C - Z|_F^2 + t Theta_k(C)

    by ADMM with a copy C_k of C for each penalty Theta_k, where prox_k is an entry of `prox`.
    Constraints, such as a zero diagonal, are penalties. The returned C is the copy of the last
    penalty, rounded if X is float32. The certificate is a KKT residual. With subgradients ``G_k``
    of ``lam Theta_k`` at the copies, it is the larger of
    ``|2 (X - C X) X^T - sum_k G_k|_F / |2 X X^T|_F`` and ``max_k |C_k - C|_F / max(|C|_F, 1)``.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    prox : callable or sequence of callables
        ``prox(Z, t)`` for a matrix Z of shape (n_samples, n_samples) and t > 0.
    lam : float
        Penalty > 0.
    tol : float, default=1e-6
        Largest accepted residual.
    max_iter : int, default=5000

    Returns
    -------
    Solution
        `coef` is a dense array, `gap` the KKT residual and `dual` is ``2 (X - C X)``. `objective`
        is only the data term, as the value of the penalty is unknown. `gap` and `objective` are
        single numbers.

    Warns
    -----
    ConvergenceWarning
        If the residual ends above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, no
        `prox`, ``lam <= 0``, ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    EQUATIONS SE-13.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import proximal_self_expression
    >>> ridge = lambda Z, t: Z / (1 + 2 * t)
    >>> proximal_self_expression([[1.0], [2.0]], ridge, lam=5.0).coef.round(4)
    array([[0.1, 0.2],
           [0.2, 0.4]])
    """
    X = check_points(X)
    proxes = [prox] if callable(prox) else list(prox)
    if not proxes or not all(map(callable, proxes)):
        raise ValueError(
            f"prox: must be a callable prox(Z, t), or a sequence of them, got {prox!r}"
        )
    points, lam = X.astype(np.float64), check_positive(lam, "lam")
    gram = points @ points.T
    scale = 2 * np.linalg.norm(gram) or 1.0

    def residual(
        C: Array, copies: list[Array], subgradients: list[Array]
    ) -> tuple[float, float, Array]:
        errors = points - C @ points
        stationarity = float(np.linalg.norm(2 * errors @ points.T - sum(subgradients)) / scale)
        size = max(float(np.linalg.norm(C)), 1.0)
        disagreement = max(float(np.linalg.norm(copy - C)) / size for copy in copies)
        return float((errors**2).sum()), max(stationarity, disagreement), 2 * errors

    solution = _consensus(X, proxes, lam, residual, tol, max_iter)
    warn_unless_converged(solution)
    return solution


def low_rank_sparse_self_expression(
    X: ArrayLike, *, lam: float, beta: float, tol: float = 1e-6, max_iter: int = 5000
) -> Solution:
    """Low-rank sparse subspace clustering coefficients, certified.

    ::

        min_C  |X - C X|_F^2 + lam (|C|_* + beta |C|_1)   subject to   diag(C) = 0

    The certificate is ``gap = (P(C) - D(N)) / |X|_F^2`` with the dual objective
    ``D(N) = <N, X> - |N|_F^2 / 4``. N is a multiple of ``X - C X`` for which
    ``N X^T = lam (W + beta V)`` with ``|W|_2 <= 1`` and ``|V_ij| <= 1`` off the diagonal. W is the
    last subgradient of the nuclear norm in ADMM.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Penalty > 0.
    beta : float
        Weight of the l1 norm against the nuclear norm, > 0.
    tol : float, default=1e-6
        Largest accepted gap.
    max_iter : int, default=5000

    Returns
    -------
    Solution
        `coef` is a dense array whose diagonal is exactly zero. The rows are one problem, so
        `objective`, `gap`, `n_iter` and `converged` are single numbers.

    Warns
    -----
    ConvergenceWarning
        If the gap ends above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, fewer
        than two samples, `lam`, `beta` or ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Wang, Xu and Leng, "Provable subspace clustering: when LRR meets SSC" (2013); EQUATIONS CL-8.

    Examples
    --------
    >>> from twinsolve.solvers import low_rank_sparse_self_expression
    >>> X = [[1.0, 0.0], [2.0, 0.0], [0.0, 0.1]]
    >>> low_rank_sparse_self_expression(X, lam=0.25, beta=1.0).coef.round(2) + 0
    array([[0.  , 0.44, 0.  ],
           [1.75, 0.  , 0.  ],
           [0.  , 0.  , 0.  ]])
    """
    X = check_points(X, min_rows=2)
    points, lam = X.astype(np.float64), check_positive(lam, "lam")
    beta = check_positive(beta, "beta")
    square = (points**2).sum() or 1.0

    def gap(C: Array, copies: list[Array], subgradients: list[Array]) -> tuple[float, float, Array]:
        W = subgradients[0] / lam
        residual = points - C @ points
        V = (2 * residual @ points.T / lam - W) / beta
        np.fill_diagonal(V, 0)
        max_scale = 1 / max(np.linalg.norm(W, 2), np.abs(V).max(), 1e-300)
        energy, inner = (residual**2).sum(), (points * residual).sum()
        scale = np.clip(inner / (energy or 1), 0, max_scale)
        norms = np.linalg.norm(C, "nuc") + beta * np.abs(C).sum()
        objective = energy + lam * norms
        dual = 2 * scale * inner - scale**2 * energy
        return objective, max(objective - dual, 0) / square, 2 * scale * residual

    sparse = Penalty.checked(beta, len(X), zero_diagonal=True)
    proxes = [shrink_spectrum, lambda Z, t: sparse.prox(Z, 2 * t)]
    solution = _consensus(X, proxes, lam, gap, tol, max_iter, scale=np.asarray(square))
    warn_unless_converged(solution)
    return solution


def _consensus(
    X: Array,
    proxes: Sequence[Prox],
    lam: float,
    measure: Measure,
    tol: float,
    max_iter: int,
    scale: Array | None = None,
) -> Solution:
    """ADMM on ``C = C_k``; `measure` certifies C from the copies and their subgradients."""
    tol, max_iter = check_positive(tol, "tol"), check_integer(max_iter, "max_iter", minimum=1)
    points = X.astype(np.float64)
    values, Q = np.linalg.eigh(points @ points.T)
    data = 2 * (Q * values) @ Q.T
    rho = float(2 * values.mean()) or 1.0
    copies = [np.zeros_like(data) for _ in proxes]
    duals = [np.zeros_like(data) for _ in proxes]
    best, adapt_at, enough = (np.inf, copies, duals), 1.0, aim(tol, X.dtype)
    for iteration in range(1, max_iter + 1):
        right = data + sum(rho * copy - dual for copy, dual in zip(copies, duals, strict=True))
        C = (right @ Q / (2 * values + rho * len(proxes))) @ Q.T
        previous = copies
        copies = [prox(C + d / rho, lam / rho) for prox, d in zip(proxes, duals, strict=True)]
        duals = [d + rho * (C - copy) for d, copy in zip(duals, copies, strict=True)]
        if iteration % _CHECK_EVERY and iteration < max_iter:
            continue
        gap = measure(copies[-1], copies, duals)[1]
        if gap < best[0]:
            best = (gap, copies, duals)
        if gap <= enough:
            break
        # Adapt ever more rarely, so that ADMM converges as with a fixed penalty.
        if iteration >= adapt_at:
            rho *= _balance(C, copies, previous, duals, rho)
            adapt_at *= _RARER
    _, copies, duals = best
    return certified(
        copies[-1],
        lambda C: measure(C, copies, duals),
        dtype=X.dtype,
        tol=tol,
        n_iter=iteration,
        cure="increase max_iter or tol",
        scale=scale,
    )


def _balance(
    C: Array, copies: list[Array], previous: list[Array], duals: list[Array], rho: float
) -> float:
    """Return a factor for the penalty that makes primal and dual residuals more equal."""
    disagreement = np.linalg.norm([C - copy for copy in copies]) * np.linalg.norm(duals)
    change = rho * np.linalg.norm(np.subtract(copies, previous)) * np.linalg.norm(copies)
    # Both are zero at the optimum, and as long as C is zero.
    ratio = np.sqrt(disagreement / change) if change > 0 else np.inf if disagreement > 0 else 1.0
    return float(np.clip(ratio, 0.2, 5)) if not 0.5 < ratio < 2 else 1.0
