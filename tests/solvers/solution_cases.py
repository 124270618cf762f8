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


def _solving(run: Callable[..., Solution], **options: Any) -> Callable[..., Solution]:
    """An option that is a pair is a number and the power of the unit that it goes with."""

    def solve(X: Array, unit: float = 1.0, **more: Any) -> Solution:
        scaled = {k: v[0] * unit ** v[1] for k, v in options.items() if isinstance(v, tuple)}
        return run(X, **options | scaled | more)

    return solve


def _on_itself(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda X, **options: run(X, X, zero_diagonal=True, **options)


def _path(X: Array, lam: float, **options: Any) -> Solution:
    path = _on_itself(solvers.sparse_coding.sparse_code_path)
    return path(X, lams=[2 * lam, lam], **options)[1]


def _on_graph(
    run: Callable[..., Solution], matrix: Callable[..., Array], **options: Any
) -> Callable[..., Solution]:
    return lambda X, unit=1.0, **more: run(X, matrix(X, unit), lam=LAM, **options | more)


SQUARED, OUTLYING = {"lam": (LAM, 2)}, {"lam": (LAM, 2), "lam_outlier": (OUTLIER, 1)}
SHORT: Any = {"steps": "n_iter", "warns": False}
MOVING: Any = {"affine": True, "tokens": True}
IMAGES: Any = {"rotates": False, "ordered": True, "tokens": True}
ISTA, FISTA, DESCENT = map(
    _on_itself, (solvers.ista, solvers.fista, solvers.sparse_coding.coordinate_descent)
)

CASES = [
    Case("sparse", _solving(solvers.sparse_self_expression, **SQUARED), _lasso()),
    Case("elastic net", _solving(solvers.sparse_self_expression, l1_ratio=0.6, **SQUARED),
         _lasso(0.6), above=True),
    Case("nonnegative", _solving(solvers.sparse_self_expression, nonnegative=True, **SQUARED),
         _lasso(nonnegative=True)),
    Case("affine", _solving(solvers.sparse_self_expression, affine=True, **SQUARED),
         _affine_lasso(), affine=True),
    Case("affine elastic net",
         _solving(solvers.sparse_self_expression, affine=True, l1_ratio=0.6, nonnegative=True,
                  **SQUARED),
         _affine_lasso(0.6, nonnegative=True), above=True, affine=True),
    Case("sparse code", _solving(_on_itself(solvers.sparse_code), **SQUARED), _lasso()),
    Case("path", _solving(_path, **SQUARED), _lasso()),
    Case("noiseless", _solving(solvers.basis_pursuit_self_expression), _exact),
    Case("noiseless affine", _solving(solvers.basis_pursuit_self_expression, affine=True), _exact,
         affine=True),
    Case("outlier", _solving(solvers.outlier_self_expression, **OUTLYING), _outlier, rotates=False),
    Case("robust low rank", _solving(solvers.robust_low_rank_self_expression, lam=(ROBUST, -1)),
         _robust),
    Case("low rank sparse",
         _solving(solvers.low_rank_sparse_self_expression, beta=BETA, **SQUARED), _low_rank_sparse),
    Case("proximal",
         _solving(self_expression.proximal_self_expression, prox=_ridge_prox, **SQUARED), _ridge,
         above=True),
    Case("ista", _solving(ISTA, n_iter=300, **SQUARED), _lasso(), **SHORT),
    Case("fista", _solving(FISTA, n_iter=300, **SQUARED), _lasso(), **SHORT),
    Case("coordinate descent", _solving(DESCENT, n_iter=300, **SQUARED), _lasso(), ordered=True,
         **SHORT),
    Case("ADMM", _solving(self_expression.admm_self_expression, penalty=8.0, **SQUARED), _lasso()),
    Case("ADMM circulated",
         _solving(self_expression.admm_self_expression, penalty=8.0, circulated=True, **SQUARED),
         _lasso()),
    Case("ADMM affine",
         _solving(self_expression.admm_self_expression, penalty=8.0, affine=True, **SQUARED),
         _affine_lasso(), affine=True, translates=False),
    Case("ADMM outlier",
         _solving(self_expression.admm_outlier_self_expression, penalty=8.0, **OUTLYING), _outlier,
         rotates=False),
    Case("ADMM low rank",
         _solving(self_expression.admm_low_rank_self_expression, lam=(ROBUST, -1), penalty=1e-2),
         _robust),
    Case("energy", _on_graph(solvers.minimize_energy, _weights), _energy, **MOVING),
    Case("flow", _on_graph(nonlocal_energy.gradient_flow, _weights, n_iter=50), _energy,
         **MOVING, **SHORT),
    Case("NeuTRENO",
         _on_graph(nonlocal_energy.neutreno_iteration, _transitions, n_iter=50, relaxed=True),
         _neutreno, **MOVING, **SHORT),
    Case("NeuTRENO limit", _on_graph(nonlocal_energy.neutreno_fixed_point, _transitions), _neutreno,
         **MOVING),
    Case("l1 analysis", _solving(nonlocal_energy.l1_analysis, bank=BANK, lam=(LAM, 1)),
         _analysis(_responses), **IMAGES),
    Case("total variation",
         _solving(nonlocal_energy.total_variation, lam=(LAM, 1), isotropic=False),
         _analysis(_differences), **IMAGES),
]  # fmt: skip
