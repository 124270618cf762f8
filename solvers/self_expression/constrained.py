"""Sparse self-expression with hard constraints: noiseless, or affine.

Hard constraints are met by Bregman iterations (the method of multipliers): each is a sparse coding
problem for the fast solver, whose signals are shifted by what the last codes missed.
"""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, vstack

from ..solution import (
    Array,
    Solution,
    check_integer,
    check_matrix,
    check_positive,
    warn_unless_converged,
)
from ..sparse_coding import lam_max
from ..sparse_coding.row_blocks import Atoms, Progress, solve_rows
from .low_rank import rank_cutoff

# Smallest distance of a row to the others' span, as 1 - leverage, and largest relative residual of
# a representation that counts as exact.
_IN_SPAN = 1e-9
_EXACT = 1e-9
_BLOCK_ROWS = 256
_INNER_TOL = 1e-12
_INNER_ROUNDS = 200
# Penalty of the problems of basis pursuit as a fraction of lam_max: first, smallest, and its fall.
_FIRST, _LEAST, _FALL = 0.1, 1e-7, 0.3


def basis_pursuit_self_expression(
    X: ArrayLike,
    *,
    affine: bool = False,
    tol: float = 1e-6,
    max_iter: int = 100,
    n_jobs: int | None = None,
) -> Solution:
    """Noiseless sparse subspace clustering: each row of X exactly, with the smallest l1 norm.

    ::

        min_C  |C|_1   subject to   X = C X,   diag(C) = 0,   and C 1 = 1 if affine

    The affine problem is the other one on X with a constant feature of 1 appended.

    The certificate is ``gap = (|c_i|_1 - nu_i . x_i) / |c_i|_1`` at a dual point with
    ``max_{j != i} |x_j . nu_i| <= 1``; c_i reconstructs x_i to 1e-9 of its norm, float32 data to
    their rounding. A row that the others do not span has no solution: its coefficients are zero and
    its gap is infinite.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    affine : bool, default=False
        Coefficients of each row sum to one.
    tol : float, default=1e-6
        Largest accepted gap.
    max_iter : int, default=100
        Most Bregman iterations.
    n_jobs : int, optional
        Threads that share the rows. None is 1 unless in a ``joblib.parallel_config`` context.

    Returns
    -------
    Solution
        `coef` is a csr_array of shape (n_samples, n_samples) whose diagonal is exactly zero. `dual`
        has a column for each feature, the constant one last where `affine`.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); Yin et al., "Bregman iterative
    algorithms for l1-minimization" (2008); EQUATIONS SE-11, SE-11a, CL-4. The affine constraint is
    a sum of one, not an l1 norm of one (erratum E3-m).

    Examples
    --------
    >>> from twinsolve.solvers import basis_pursuit_self_expression
    >>> X = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 4.0]]
    >>> basis_pursuit_self_expression(X).coef.toarray().round(4)
    array([[0.  , 0.5 , 0.  , 0.  ],
           [2.  , 0.  , 0.  , 0.  ],
           [0.  , 0.  , 0.  , 0.25],
           [0.  , 0.  , 4.  , 0.  ]])
    """
    X = check_matrix(X, "X", min_rows=2)
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    points = X.astype(np.float64)
    if affine:
        points = np.hstack([points, np.ones((len(X), 1))])
    points, solvable = _on_their_span(points, X.dtype)
    exact = max(_EXACT, 16 * float(np.finfo(X.dtype).eps))
    largest = lam_max(points, points, zero_diagonal=True)
    largest[largest == 0] = 1.0
    atoms, rows = Atoms(points), [csr_array((1, len(X)))] * len(X)
    dual, gap = np.zeros_like(points), np.full(len(X), np.inf)
    n_iter = np.zeros(len(X), dtype=int)
    open_rows = np.flatnonzero(solvable)
    nu, C = np.zeros((len(open_rows), points.shape[1])), csr_array((len(open_rows), len(X)))
    for iteration in range(max_iter):
        if len(open_rows) == 0:
            break
        lam = largest[open_rows] * max(_FIRST * _FALL**iteration, _LEAST)
        target = points[open_rows] + lam[:, None] / 2 * nu
        C = solve_rows(
            target,
            atoms,
            lam,
            own=open_rows,
            tol=_INNER_TOL,
            max_rounds=_INNER_ROUNDS,
            start=C,
            n_jobs=n_jobs,
        ).coef
        nu = 2 * (target - C @ points) / lam[:, None]
        feasible = _scale_into(nu, points, open_rows)
        for at, i in enumerate(open_rows.tolist()):
            row, found = _polish(points, i, C[[at]], feasible[at], exact)
            if found < gap[i]:
                rows[i], dual[i], gap[i] = row, feasible[at], found
        n_iter[open_rows] += 1
        left = np.flatnonzero(gap[open_rows] > tol)
        open_rows, nu, C = open_rows[left], nu[left], C[left]
    coef = csr_array(vstack(rows, format="csr"), dtype=X.dtype)
    coef.sort_indices()
    warn_unless_converged(gap, tol, "the row may not be in the span of the others")
    return Solution(coef, abs(coef).sum(axis=1), gap, dual, n_iter, gap <= tol)


def affine_sparse_code(
    Y: Array,
    D: Array,
    lam: Array,
    *,
    tol: float,
    max_iter: int,
    own: Array | None = None,
    l1_ratio: float = 1.0,
    nonnegative: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    directory: str | Path | None = None,
) -> Solution:
    """`sparse_code` with ``C 1 = 1`` and ``c_ij = 0`` for ``j = own[i]``, for checked arguments.

    The constraint is a feature of weight w, whose target the Bregman iterations shift.
    """
    dtype, n, m = np.result_type(Y, D), len(Y), len(D)
    Y, D = Y.astype(np.float64), D.astype(np.float64)
    own = np.full(n, -1) if own is None else own
    weight = np.sqrt(max((Y**2).sum(axis=1).max(), (D**2).sum(axis=1).max(), lam.max()))
    atoms = Atoms(np.hstack([D, np.full((m, 1), weight)]))
    coef = csr_array((n, m))
    objective, gap = np.full((2, n), np.inf)
    dual, n_iter = np.zeros_like(Y), np.zeros(n, dtype=int)
    open_rows, C = np.arange(n), csr_array((n, m))
    target = np.hstack([Y, np.full((n, 1), weight)])
    for _ in range(max_iter):
        if len(open_rows) == 0:
            break
        C, pivots, *_ = solve_rows(
            target,
            atoms,
            lam[open_rows],
            own=own[open_rows],
            l1_ratio=l1_ratio,
            nonneg=nonnegative,
            tol=min(_INNER_TOL, 0.01 * tol),
            max_rounds=_INNER_ROUNDS,
            start=C,
            n_jobs=n_jobs,
            progress=progress,
            directory=directory,
        )
        n_iter[open_rows] += pivots
        sums = C.sum(axis=1)
        feasible = csr_array(C / np.where(sums > 0.5, sums, 1)[:, None])
        rows = (Y[open_rows], D, feasible, lam[open_rows], own[open_rows])
        found = certify_affine(*rows, nonnegative, l1_ratio)
        better = np.flatnonzero((sums > 0.5) & (found[1] < gap[open_rows]))
        take = np.arange(n)
        take[open_rows[better]] = n + better
        coef = vstack([coef, feasible], format="csr")[take]
        for kept, new in zip((objective, gap, dual), found, strict=True):
            kept[open_rows[better]] = new[better]
        target[:, -1] += weight * (1 - sums)
        left = np.flatnonzero(gap[open_rows] > tol)
        open_rows, target, C = open_rows[left], target[left], C[left]
    if dtype != np.float64:
        coef = coef.astype(dtype)
        rounded = coef.astype(np.float64)
        sums = np.where(np.isfinite(gap), rounded.sum(axis=1), 1)
        rounded = csr_array(rounded / sums[:, None])
        objective, found_gap, dual = certify_affine(Y, D, rounded, lam, own, nonnegative, l1_ratio)
        gap = np.where(np.isfinite(gap), found_gap, np.inf)
    warn_unless_converged(gap, tol)
    return Solution(coef, objective, gap, dual, n_iter, gap <= tol)


def certify_affine(
    Y: Array,
    D: Array,
    C: csr_array,
    lam: Array,
    own: Array,
    nonnegative: bool = False,
    l1_ratio: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of rows that sum to one, from the definition.

    The dual of a row is ``max nu . y - |nu|^2 / 4 - ridge |z|^2 + mu`` over ``(nu, mu)`` with
    ``|d_j . nu - 2 ridge z_j + mu| <= lam r`` for ``j != own[i]`` (one-sided if nonnegative). Along
    ``nu = 2 a (y - c D)``, ``z = a c`` the best `mu` and `a` have a closed form.
    """
    h, ridge = lam * l1_ratio, lam * (1 - l1_ratio) / 2
    residual = Y - C @ D
    energy = (residual**2).sum(axis=1) + ridge * (C**2).sum(axis=1)
    objective = energy + h * abs(C).sum(axis=1)
    lowest, highest = np.empty((2, len(Y)))
    for start in range(0, len(Y), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(Y)))
        correlation = residual[rows] @ D.T - ridge[rows, None] * C[rows].toarray()
        excluded = np.flatnonzero(own[rows] >= 0)
        at = (excluded, own[rows][excluded])
        correlation[at] = np.inf
        lowest[rows] = correlation.min(axis=1)
        correlation[at] = -np.inf
        highest[rows] = correlation.max(axis=1)
    bound = np.full(len(Y), np.inf)
    if not nonnegative:
        np.divide(h, highest - lowest, out=bound, where=highest > lowest)
    slope = (Y * residual).sum(axis=1) - highest
    scale = np.clip(slope / np.where(energy > 0, energy, np.inf), 0, bound)
    dual_objective = h + 2 * scale * slope - scale**2 * energy
    norm = (Y**2).sum(axis=1)
    gap = (objective - dual_objective).clip(min=0) / np.where(norm > 0, norm, 1)
    return objective, gap, 2 * scale[:, None] * residual


def _on_their_span(points: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """Points without what is rounding in the precision of `dtype`; which others span."""
    U, s, Rt = np.linalg.svd(points, full_matrices=False)
    kept = s > rank_cutoff(points.astype(dtype), s)
    solvable = 1 - (U[:, kept] ** 2).sum(axis=1) > _IN_SPAN
    return (points if kept.all() else points @ Rt[kept].T @ Rt[kept]), solvable


def _scale_into(nu: Array, X: Array, own: Array) -> Array:
    """Multiples of the rows of `nu` with ``|x_j . nu_i| <= 1`` for all ``j != own[i]``."""
    largest = np.empty(len(nu))
    for start in range(0, len(nu), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        correlation = np.abs(nu[rows] @ X.T)
        correlation[np.arange(len(correlation)), own[rows]] = 0
        largest[rows] = correlation.max(axis=1)
    return nu / np.maximum(largest, 1)[:, None]


def _polish(X: Array, i: int, row: csr_array, nu: Array, exact: float) -> tuple[csr_array, float]:
    """The exact representation of row i on a support, with its gap at the dual point `nu`."""
    x, support = X[i], row.indices
    values = np.linalg.lstsq(X[support].T, x, rcond=None)[0]
    missed, l1 = np.linalg.norm(x - values @ X[support]), np.abs(values).sum()
    if missed > exact * np.linalg.norm(x):
        return row, np.inf
    found = csr_array((values, support, [0, len(support)]), shape=row.shape)
    return found, max(l1 - float(nu @ x), 0) / (l1 or 1)
