"""Every solver that returns a `Solution`: how to call it, and its certificate written anew.

A case solves for points X in a unit of length: penalties carry the power of the unit that their
objective demands, so that the problem at ``(unit X, unit)`` is that at ``(X, 1)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from twinsolve import solvers
from twinsolve.solvers import Solution, nonlocal_energy, self_expression

Array = np.ndarray
LAM, OUTLIER, ROBUST, BETA = 0.3, 0.5, 0.6, 0.5


@dataclass(frozen=True)
class Case:
    """`gap` computes the gap from the definition, of coefficients and dual point alone.

    It is what the solution says, or less where `above`: a dual point can be worth more than said.
    """

    name: str
    solve: Callable[..., Solution]
    gap: Callable[[Array, float, Solution], Array]
    above: bool = False
    steps: str = "max_iter"  # the argument that limits the iterations
    warns: bool = True  # if `tol` is missed; those that run a given number of iterations do not
    affine: bool = False  # a translation of X changes nothing
    translates: bool = True  # ... and is solved so; the literature's iterations are not
    rotates: bool = True
    ordered: bool = False  # the answer depends on the order of the samples
    tokens: bool = False  # the answer is tokens, which move with X


def dense(coef: Any) -> Array:
    return (coef.toarray() if issparse(coef) else np.asarray(coef)).astype(np.float64)


def _rowwise(A: Array, B: Array) -> Array:
    return (A * B).sum(axis=1)


def _off_diagonal(M: Array) -> Array:
    return M - np.diag(np.diag(M))


def _feasible(sizes: Any, limit: float) -> None:
    assert np.max(sizes) <= limit * (1 + 1e-9)


def _relative(excess: Array, norm: Array) -> Array:
    return np.where(norm > 0, excess / np.where(norm > 0, norm, 1), np.where(excess > 0, np.inf, 0))


def _lasso(ratio: float = 1.0, nonnegative: bool = False) -> Callable[..., Array]:
    """With a ridge, the conjugate of ``h |c| + ridge c^2`` takes the place of the bound."""

    def gap(X: Array, unit: float, found: Solution) -> Array:
        lam, C, nu = LAM * unit**2, dense(found.coef), found.dual
        h, ridge = lam * ratio, lam * (1 - ratio) / 2
        values = _off_diagonal(nu @ X.T)
        over = np.maximum((values if nonnegative else np.abs(values)) - h, 0)
        if ridge == 0:
            _feasible(over, 1e-9 * h)
        conjugate = (over**2).sum(axis=1) / (4 * ridge) if ridge else 0
        dual = _rowwise(nu, X) - _rowwise(nu, nu) / 4 - conjugate
        objective = _rowwise(X - C @ X, X - C @ X) + h * np.abs(C).sum(1) + ridge * _rowwise(C, C)
        return _relative(objective - dual, _rowwise(X, X))

    return gap


def _affine_lasso(ratio: float = 1.0, nonnegative: bool = False) -> Callable[..., Array]:
    """With the best multiplier mu of the sum: tight at the largest correlation, without a ridge."""

    def gap(X: Array, unit: float, found: Solution) -> Array:
        lam, C, nu = LAM * unit**2, dense(found.coef), found.dual
        h, ridge = lam * ratio, lam * (1 - ratio) / 2
        own = np.eye(len(X), dtype=bool)
        centred = X - X.mean(axis=0)
        values = nu @ centred.T
        duals = []
        for i in range(len(X)):
            v = values[i][~own[i]]
            mu = h - v.max() if ridge == 0 else _best_multiplier(v, h, ridge, nonnegative)
            over = np.maximum((v + mu if nonnegative else np.abs(v + mu)) - h, 0)
            if ridge == 0:
                _feasible(over, 1e-9 * h)
            duals.append(mu - ((over**2).sum() / (4 * ridge) if ridge else 0))
        dual = _rowwise(nu, centred) - _rowwise(nu, nu) / 4 + np.array(duals)
        objective = _rowwise(X - C @ X, X - C @ X) + h * np.abs(C).sum(1) + ridge * _rowwise(C, C)
        excess = np.abs(objective - dual) / (_rowwise(centred, centred) + h)
        return np.maximum(excess, np.abs(C.sum(axis=1) - 1))

    return gap


def _best_multiplier(v: Array, h: float, ridge: float, nonnegative: bool) -> float:
    """Zero of the slope ``1 - sum_j c_j``, with ``c_j`` the coefficients that mu asks for."""
    low, high = -h - v.max(), h - v.min() + 2 * ridge
    for _ in range(200):
        mu = (low + high) / 2
        asked = np.maximum(v + mu - h, 0)
        if not nonnegative:
            asked = asked - np.maximum(-v - mu - h, 0)
        low, high = (mu, high) if asked.sum() < 2 * ridge else (low, mu)
    return mu


def _exact(X: Array, unit: float, found: Solution) -> Array:
    C, nu = dense(found.coef), found.dual
    l1, size, missed = np.abs(C).sum(axis=1), np.linalg.norm(X, axis=1), X - C @ X
    points = X
    if nu.shape[1] > X.shape[1]:
        centred = X - X.mean(axis=0)
        weight = np.sqrt((centred**2).sum() / len(X)) or 1.0
        size = np.sqrt(_rowwise(centred, centred) + weight**2)
        missed = np.column_stack([missed, weight * (1 - C.sum(axis=1))])
        points = np.column_stack([X, np.ones(len(X))])
    _feasible(np.abs(_off_diagonal(nu @ points.T)), 1)
    excess = np.abs(l1 - _rowwise(nu, points)) / np.where(l1 > 0, l1, 1)
    gap = np.maximum(excess, np.linalg.norm(missed, axis=1) / np.where(size > 0, size, 1))
    # Only the solver can say that no representation exists.
    return np.where(np.isinf(found.gap) & (l1 == 0), np.inf, gap)


def _outlier(X: Array, unit: float, found: Solution) -> Array:
    lam, lam_outlier, nu = LAM * unit**2, OUTLIER * unit, found.dual
    _feasible(np.abs(_off_diagonal(nu @ X.T)), lam)
    _feasible(np.abs(nu), lam_outlier)
    C = dense(found.coef)
    missed = X - C @ X
    E = np.sign(missed) * np.maximum(np.abs(missed) - lam_outlier / 2, 0)
    penalty = lam * np.abs(C).sum(axis=1) + lam_outlier * np.abs(E).sum(axis=1)
    objective = _rowwise(missed - E, missed - E) + penalty
    dual = _rowwise(nu, X) - _rowwise(nu, nu) / 4
    return _relative(objective - dual, _rowwise(X, X))


def _robust(X: Array, unit: float, found: Solution) -> Array:
    C, Y, lam = dense(found.coef), found.dual, ROBUST / unit
    _feasible(np.linalg.norm(Y, axis=1), lam)
    _feasible(np.linalg.norm(Y @ X.T, 2), 1)
    objective = np.linalg.norm(C, "nuc") + lam * np.linalg.norm(X - C @ X, axis=1).sum()
    return np.asarray((objective - (X * Y).sum()) / (objective or 1))


def _low_rank_sparse(X: Array, unit: float, found: Solution) -> Array:
    """That N is feasible needs a subgradient that the solution does not hold: oracles see to it."""
    C, N, lam = dense(found.coef), found.dual, LAM * unit**2
    norms = np.linalg.norm(C, "nuc") + BETA * np.abs(C).sum()
    objective = ((X - C @ X) ** 2).sum() + lam * norms
    return np.asarray((objective - (N * X).sum() + (N**2).sum() / 4) / ((X**2).sum() or 1))


def _ridge(X: Array, unit: float, found: Solution) -> Array:
    """The gradient at the coefficients; the residual may split it between the copies."""
    C, lam = dense(found.coef), LAM * unit**2
    scale = 2 * np.linalg.norm(X @ X.T) or 1.0
    gradient = np.linalg.norm(2 * (X - C @ X) @ X.T - 2 * lam * C) / scale
    return np.asarray(gradient / (1 + 2 * lam / scale * max(float(np.linalg.norm(C)), 1.0)))


def _weights(X: Array, unit: float) -> Array:
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=2) / unit**2
    return np.exp(-squares / 4).astype(X.dtype)


def _transitions(X: Array, unit: float) -> Array:
    K = _weights(X, unit).astype(np.float64)
    return (K / K.sum(axis=1, keepdims=True)).astype(X.dtype)


def _sizes(f: Array) -> Array:
    half, largest = np.ptp(f, axis=0) / 2, np.abs(f).max(axis=0)
    return np.where(half > 1e-12 * largest, half, np.where(largest > 0, largest, 1))


def _energy(X: Array, unit: float, found: Solution) -> Array:
    K = _weights(X.astype(found.coef.dtype), unit).astype(np.float64)
    u, laplacian = dense(found.coef), np.diag(K.sum(axis=1)) - K
    gradient = laplacian @ (u - u.mean(axis=0)) + LAM * (u - X)
    return np.abs(gradient / LAM).max(axis=0) / _sizes(X)


def _neutreno(X: Array, unit: float, found: Solution) -> Array:
    A = _transitions(X.astype(found.coef.dtype), unit).astype(np.float64)
    A /= A.sum(axis=1, keepdims=True)
    u = dense(found.coef)
    residual = A @ (u - u[0]) + u[0] + LAM * (X - u) - u
    return np.abs(residual / LAM).max(axis=0) / _sizes(X)


def _analysis(analyze: Callable[[Array], Array]) -> Callable[..., Array]:
    """With K as a matrix, of which a row is the responses to one pixel."""

    def gap(X: Array, unit: float, found: Solution) -> Array:
        X, u = X - X[0, 0], dense(found.coef) - X[0, 0]  # K does not see it
        p, lam = found.dual, LAM * unit
        K = np.array([analyze(pixel.reshape(X.shape)).ravel() for pixel in np.eye(X.size)])
        missed, returned = u - X, (K @ p.ravel()).reshape(X.shape)
        _feasible(np.abs(p), lam)
        primal = (missed**2).sum() / 2 + lam * np.abs(u.ravel() @ K).sum()
        dual = (returned * (X - X.mean())).sum() - (returned**2).sum() / 2
        return _relative(np.asarray(primal - dual), ((X - X.mean()) ** 2).sum())

    return gap


def _differences(u: Array) -> Array:
    return np.stack([np.diff(u, axis=a, append=u.take([-1], axis=a)) for a in (0, 1)])


BANK = nonlocal_energy.FilterBank(nonlocal_energy.dct_filters(2), borders="circular")


def _responses(u: Array) -> Array:
    windows = [np.roll(u, (-y, -x), axis=(0, 1)) for y in range(2) for x in range(2)]
    return np.tensordot(BANK.filters.reshape(-1, 4), np.stack(windows), axes=1)


def _ridge_prox(Z: Array, t: float) -> Array:
    return Z / (1 + 2 * t)


def _sparse(**options: Any) -> Callable[..., Solution]:
    def solve(X: Array, unit: float = 1.0, **more: Any) -> Solution:
        return solvers.sparse_self_expression(X, lam=LAM * unit**2, **options | more)

    return solve


def _code(X: Array, unit: float = 1.0, **more: Any) -> Solution:
    return solvers.sparse_code(X, X, lam=LAM * unit**2, zero_diagonal=True, **more)


def _path(X: Array, unit: float = 1.0, **more: Any) -> Solution:
    lams = [2 * LAM * unit**2, LAM * unit**2]
    return solvers.sparse_coding.sparse_code_path(X, X, lams=lams, zero_diagonal=True, **more)[1]


def _basis_pursuit(affine: bool) -> Callable[..., Solution]:
    def solve(X: Array, unit: float = 1.0, **more: Any) -> Solution:
        return solvers.basis_pursuit_self_expression(X, affine=affine, **more)

    return solve


def _iterated(run: Callable[..., Solution]) -> Callable[..., Solution]:
    def solve(X: Array, unit: float = 1.0, *, n_iter: int = 300, **more: Any) -> Solution:
        return run(X, X, lam=LAM * unit**2, zero_diagonal=True, n_iter=n_iter, **more)

    return solve


def _admm(**options: Any) -> Callable[..., Solution]:
    def solve(X: Array, unit: float = 1.0, **more: Any) -> Solution:
        return self_expression.admm_self_expression(
            X, lam=LAM * unit**2, penalty=8.0, **options | more
        )

    return solve


def _outlying(run: Callable[..., Solution], **options: Any) -> Callable[..., Solution]:
    def solve(X: Array, unit: float = 1.0, **more: Any) -> Solution:
        penalties = {"lam": LAM * unit**2, "lam_outlier": OUTLIER * unit}
        return run(X, **penalties, **options, **more)

    return solve


def _robust_by_admm(X: Array, unit: float = 1.0, **more: Any) -> Solution:
    return self_expression.admm_low_rank_self_expression(X, lam=ROBUST / unit, penalty=1e-2, **more)


CASES = [
    Case("sparse", _sparse(), _lasso()),
    Case("elastic net", _sparse(l1_ratio=0.6), _lasso(0.6), above=True),
    Case("nonnegative", _sparse(nonnegative=True), _lasso(nonnegative=True)),
    Case("affine", _sparse(affine=True), _affine_lasso(), affine=True),
    Case(
        "affine elastic net",
        _sparse(affine=True, l1_ratio=0.6, nonnegative=True),
        _affine_lasso(0.6, nonnegative=True),
        above=True,
        affine=True,
    ),
    Case("sparse code", _code, _lasso()),
    Case("path", _path, _lasso()),
    Case("noiseless", _basis_pursuit(False), _exact),
    Case("noiseless affine", _basis_pursuit(True), _exact, affine=True),
    Case("outlier", _outlying(solvers.outlier_self_expression), _outlier, rotates=False),
    Case(
        "robust low rank",
        lambda X, unit=1.0, **more: solvers.robust_low_rank_self_expression(
            X, lam=ROBUST / unit, **more
        ),
        _robust,
    ),
    Case(
        "low rank sparse",
        lambda X, unit=1.0, **more: solvers.low_rank_sparse_self_expression(
            X, lam=LAM * unit**2, beta=BETA, **more
        ),
        _low_rank_sparse,
    ),
    Case(
        "proximal",
        lambda X, unit=1.0, **more: self_expression.proximal_self_expression(
            X, _ridge_prox, lam=LAM * unit**2, **more
        ),
        _ridge,
        above=True,
    ),
    Case("ista", _iterated(solvers.ista), _lasso(), steps="n_iter", warns=False),
    Case("fista", _iterated(solvers.fista), _lasso(), steps="n_iter", warns=False),
    Case(
        "coordinate descent",
        _iterated(solvers.sparse_coding.coordinate_descent),
        _lasso(),
        steps="n_iter",
        warns=False,
        ordered=True,
    ),
    Case("ADMM", _admm(), _lasso()),
    Case("ADMM circulated", _admm(circulated=True), _lasso()),
    Case("ADMM affine", _admm(affine=True), _affine_lasso(), affine=True, translates=False),
    Case(
        "ADMM outlier",
        _outlying(self_expression.admm_outlier_self_expression, penalty=8.0),
        _outlier,
        rotates=False,
    ),
    Case("ADMM low rank", _robust_by_admm, _robust),
    Case(
        "energy",
        lambda X, unit=1.0, **more: solvers.minimize_energy(X, _weights(X, unit), lam=LAM, **more),
        _energy,
        affine=True,
        tokens=True,
    ),
    Case(
        "flow",
        lambda X, unit=1.0, n_iter=50, **more: solvers.nonlocal_energy.gradient_flow(
            X, _weights(X, unit), lam=LAM, n_iter=n_iter, **more
        ),
        _energy,
        steps="n_iter",
        warns=False,
        affine=True,
        tokens=True,
    ),
    Case(
        "NeuTRENO",
        lambda X, unit=1.0, n_iter=50, **more: solvers.nonlocal_energy.neutreno_iteration(
            X, _transitions(X, unit), lam=LAM, n_iter=n_iter, relaxed=True, **more
        ),
        _neutreno,
        steps="n_iter",
        warns=False,
        affine=True,
        tokens=True,
    ),
    Case(
        "NeuTRENO limit",
        lambda X, unit=1.0, **more: solvers.nonlocal_energy.neutreno_fixed_point(
            X, _transitions(X, unit), lam=LAM, **more
        ),
        _neutreno,
        affine=True,
        tokens=True,
    ),
    Case(
        "l1 analysis",
        lambda X, unit=1.0, **more: nonlocal_energy.l1_analysis(X, BANK, lam=LAM * unit, **more),
        _analysis(_responses),
        rotates=False,
        ordered=True,
        tokens=True,
    ),
    Case(
        "total variation",
        lambda X, unit=1.0, **more: nonlocal_energy.total_variation(
            X, lam=LAM * unit, isotropic=False, **more
        ),
        _analysis(_differences),
        rotates=False,
        ordered=True,
        tokens=True,
    ),
]
