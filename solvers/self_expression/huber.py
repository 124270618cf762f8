"""Lasso with Huber's loss, by prox-Newton steps on working sets, for sparse outliers.

For given codes the best outliers are ``e = r - clip(r, -t, t)``. With these, a row is ::

    min over c    sum_j H(r_j) + 2 h |c|_1,     r = x - c X,     h = lam / 2,   t = lam_outlier / 2

with ``H(r) = r^2`` where ``|r| <= t`` and ``2 t |r| - t^2`` elsewhere. The gradient of the loss is
``-2 clip(r, -t, t) X^T``; only features with ``|r| <= t`` enter its Hessian. Each Newton step is a
Lasso, which the active-set method solves.
"""

import numpy as np
from scipy.sparse import csr_array, vstack

from ..inputs import Array
from ..kernels.active_set import ZERO, Work, active_set, new_work
from ..kernels.compiled import jit_reordered
from ..kernels.workers import one_blas_thread, spread
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.problem import certificate

_BLOCK_ROWS = 64
_ADD = 40  # atoms that join a working set at once
_STEPS = 100  # largest number of Newton steps on one working set
_BISECTIONS = 50
# Damping, as a share of the largest Gram entry: smallest value, and factor of its changes.
_DAMPING, _FACTOR = 1e-10, 10.0


def solve_huber(
    Y: Array,
    X: Array,
    penalty: Penalty,
    lam_outlier: float,
    *,
    tol: float,
    max_rounds: int,
    n_jobs: int | None,
) -> tuple[csr_array, Array]:
    """Return codes of the rows of Y in the rows of X, and the number of Newton steps of each."""
    tasks = [(Y[rows], X, penalty[rows], lam_outlier, tol, max_rounds) for rows in _blocks(len(Y))]
    with one_blas_thread:
        blocks = list(spread(_solve_block, tasks, n_jobs))
    coef, n_iter = zip(*blocks, strict=True)
    return csr_array(vstack(coef, format="csr")), np.concatenate(n_iter)


def certify_outlier(
    Y: Array, X: Array, C: Array | csr_array, penalty: Penalty, lam_outlier: float
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of each row of Y, at the best outliers for its code.

    They are those of the Lasso on the dictionary ``[X; I lam / lam_outlier]``.
    """
    C = csr_array(C, dtype=np.float64)
    parts = [
        _certify(Y[at], X, C[at].toarray(), penalty[at], lam_outlier)[0] for at in _blocks(len(Y))
    ]
    objective, gap, dual = (np.concatenate(part) for part in zip(*parts, strict=True))
    return objective, gap, dual


def _blocks(n: int) -> list[Array]:
    return [np.arange(i, min(i + _BLOCK_ROWS, n)) for i in range(0, n, _BLOCK_ROWS)]


def _certify(
    Y: Array, X: Array, C: Array, penalty: Penalty, lam_outlier: float
) -> tuple[tuple[Array, Array, Array], Array, Array]:
    """Certificate of the codes of Y, with residuals and correlations."""
    unit = penalty.lam / lam_outlier
    R = Y - C @ X
    W = np.clip(R, -lam_outlier / 2, lam_outlier / 2)
    correlation = W @ X.T
    correlation[penalty.excluded] = 0
    largest = np.maximum(penalty.largest(correlation), unit * np.abs(W).max(axis=1))
    codes = np.hstack([C, (R - W) / unit[:, None]])
    return certificate(Y, codes, W, largest, penalty), R, correlation


def _solve_block(
    Y: Array, X: Array, penalty: Penalty, lam_outlier: float, tol: float, max_rounds: int
) -> tuple[csr_array, Array]:
    """Solve a block of rows: Newton steps on working sets, until each row is certified."""
    C, n_iter = np.zeros((len(Y), len(X))), np.zeros(len(Y), dtype=int)
    open_rows, work = np.arange(len(Y)), new_work(2 * _ADD, 0, 0)
    for _ in range(max_rounds):
        certified, R, correlation = _certify(
            Y[open_rows], X, C[open_rows], penalty[open_rows], lam_outlier
        )
        gap = certified[1]
        for at in np.flatnonzero(gap > tol).tolist():
            code, h = C[open_rows[at]], penalty.half[open_rows[at]]
            working = _working_set(code, correlation[at], h)
            if len(working) > len(work.x):
                work = new_work(2 * len(working), 0, 0)
            atoms = np.ascontiguousarray(X[working].T)
            x, steps = _newton(atoms, code[working], R[at], h, lam_outlier / 2, 0.1 * tol, work)
            code[working] = x
            n_iter[open_rows[at]] += steps
        open_rows = open_rows[gap > tol]
        if len(open_rows) == 0:
            break
    return csr_array(C), n_iter


def _working_set(code: Array, correlation: Array, h: float) -> Array:
    """Return the support, then the atoms that violate optimality most."""
    support = np.flatnonzero(code)
    size = np.abs(correlation)
    size[support] = 0
    worst = np.argsort(-size)[:_ADD]
    return np.concatenate([support, worst[size[worst] > h]])


@jit_reordered
def _newton(
    A: Array, x: Array, r: Array, h: float, t: float, tol: float, work: Work
) -> tuple[Array, int]:
    """Minimise over the columns of A (features, atoms), from x with residual r.

    Each step minimises the damped quadratic model with the l1 norm, then the objective on the line
    to that point. If the step is short, damping increases: with few features within t, the model is
    unbounded. Returns (x, steps).
    """
    p, w = A.shape
    x, r = x.copy(), r.copy()
    inside = np.abs(r) <= t
    gram = work.gram
    gram[:w, :w] = 0.0
    for j in range(p):
        if inside[j]:
            _count(gram, A[j], 1.0)
    yy, steps = np.sum(r * r), 0
    scale = max(np.sum(A * A, axis=0).max(), 1e-300)
    damping = _DAMPING
    while steps < _STEPS:
        steps += 1
        k = ZERO
        for a in range(w):
            work.atoms[a] = a
            work.known[a] = True
            work.x[a] = x[a]
            work.sign[a] = np.sign(x[a])
            if x[a] != 0.0:
                work.support[k] = a
                k += 1
        work.q[:w] = np.dot(np.minimum(np.maximum(r, -t), t), A)
        for a in range(w):
            gram[a, a] += damping * scale
        active_set(work, gram, k, False, w, h, 0.0, yy, tol, False)
        for a in range(w):
            gram[a, a] -= damping * scale
        move = work.x[:w] - x
        change = np.dot(A, move)
        length = _line_search(r, change, x, move, h, t)
        x += length * move
        r -= length * change
        flips = 0
        for j in range(p):
            now = abs(r[j]) <= t
            if now != inside[j]:
                inside[j] = now
                flips += 1
                _count(gram, A[j], 1.0 if now else -1.0)
        if length == 1.0 and flips == 0 and damping <= _DAMPING:
            break
        damping = max(damping / _FACTOR, _DAMPING) if length > 0.5 else damping * _FACTOR
    return x, steps


@jit_reordered
def _count(gram: Array, a: Array, sign: float) -> None:
    for i in range(a.size):
        for j in range(a.size):
            gram[i, j] += sign * a[i] * a[j]


@jit_reordered
def _line_search(r: Array, change: Array, x: Array, move: Array, h: float, t: float) -> float:
    """Return the length in [0, 1] that minimises the convex objective at x + length * move."""
    if _slope(1.0, r, change, x, move, h, t) <= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _slope(middle, r, change, x, move, h, t) <= 0.0:
            low = middle
        else:
            high = middle
    return low


@jit_reordered
def _slope(
    length: float, r: Array, change: Array, x: Array, move: Array, h: float, t: float
) -> float:
    """Return half the left derivative of the objective with respect to the length."""
    slope = 0.0
    for j in range(r.size):
        slope -= min(max(r[j] - length * change[j], -t), t) * change[j]
    for a in range(x.size):
        at = x[a] + length * move[a]
        slope += h * (np.sign(at) * move[a] if at != 0.0 else -abs(move[a]))
    return slope
