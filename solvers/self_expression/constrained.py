"""Sparse self-expression with hard constraints: noiseless, or affine.

Bregman iterations (the method of multipliers) enforce hard constraints. Each is a sparse coding
problem for the fast solver, whose signals are shifted by the constraint violation of the last
codes.
"""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, vstack

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..scales import squared_norms
from ..solution import Solution, aim, certified, warn_unless_converged
from ..sparse_coding import lam_max
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.problem import check_points
from ..sparse_coding.row_blocks import Atoms, Progress, solve_rows

# A row whose leverage is 1 less than this is not in the span of the others.
_IN_SPAN = 1e-9
_BLOCK_ROWS = 256
_INNER_TOL = 1e-12
_INNER_ROUNDS = 200
# Penalty of the problems of basis pursuit as a share of lam_max: first, smallest, and decay factor.
_FIRST, _LEAST, _FALL = 0.1, 1e-7, 0.3


def basis_pursuit_self_expression(
    X: ArrayLike,
    *,
    affine: bool = False,
    tol: float = 1e-6,
    max_iter: int = 100,
    n_jobs: int | None = None,
) -> Solution:
    """Noiseless sparse subspace clustering: represent each row of X exactly, with least l1 norm.

    ::

        min_C  |C|_1   subject to   X = C X,   diag(C) = 0,   and C 1 = 1 if affine

    The affine problem is the problem without this constraint on X with a constant feature of 1. It
    does not depend on origin and scale of X. So it is solved on centred data with a constant
    feature w, the root mean squared norm of the centred rows (their largest entry if all rows are
    equal).

    The certificate is ``gap = max(| |c_i|_1 - nu_i . x_i | / |c_i|_1, |x_i - c_i X| / |x_i|)`` at a
    dual point with ``max_{j != i} |x_j . nu_i| <= 1``. If affine, the second ratio is the norm of
    ``[x_i - c_i X, w (1 - sum_j c_ij)]`` over the norm of ``[x_i - mean, w]``. A row that is not in
    the span of the others has no solution: its coefficients are zero and its gap is infinite.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    affine : bool, default=False
        Whether the coefficients of each row must sum to one.
    tol : float, default=1e-6
        Largest accepted gap.
    max_iter : int, default=100
        Largest number of Bregman iterations.
    n_jobs : int, optional
        Number of threads that share the rows. None is 1, or what ``joblib.parallel_config`` says.

    Returns
    -------
    Solution
        `coef` is a csr_array of shape (n_samples, n_samples) whose diagonal is exactly zero. `dual`
        has a column for each feature; if `affine`, the last column is for the constant feature.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, a row whose largest entry is not within 1e-140 to
        1e140 in size, ``tol <= 0`` or ``max_iter < 1``.

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
    X = check_points(X, min_rows=2)
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    uncentred, centred = _lift(X.astype(np.float64), affine)
    points, solvable = _project_on_span(centred, uncentred, X.dtype)
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
            Penalty(lam, own=open_rows),
            tol=_INNER_TOL,
            max_rounds=_INNER_ROUNDS,
            start=C,
            n_jobs=n_jobs,
        ).coef
        nu = 2 * (target - C @ points) / lam[:, None]
        for at, i in enumerate(open_rows.tolist()):
            row, feasible, row_gap = _polish(points, i, C[[at]], nu[at])
            if row_gap < gap[i]:
                rows[i], dual[i], gap[i] = row, feasible, row_gap
        n_iter[open_rows] += 1
        unfinished = np.flatnonzero(gap[open_rows] > aim(tol, X.dtype))
        open_rows, nu, C = open_rows[unfinished], nu[unfinished], C[unfinished]
    coef = csr_array(vstack(rows, format="csr"))
    coef = _scale_to_sum_one(coef) if affine else coef
    coef.sort_indices()

    def certify(codes: csr_array) -> tuple[Array, Array, Array]:
        objective = abs(codes).sum(axis=1)
        residual_norm = np.linalg.norm(uncentred - codes @ uncentred, axis=1)
        violation = _take_larger_violation(
            objective, (dual * centred).sum(axis=1), residual_norm, centred
        )
        violation[~solvable] = np.inf
        return objective, violation, _restore_dual(dual, uncentred, centred)

    solution = certified(
        coef,
        certify,
        dtype=X.dtype,
        tol=tol,
        n_iter=n_iter,
        cure="the row may not be in the span of the others; increase max_iter or tol",
    )
    warn_unless_converged(solution)
    return solution


def affine_sparse_code(
    Y: Array,
    D: Array,
    penalty: Penalty,
    *,
    tol: float,
    max_iter: int,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    directory: str | Path | None = None,
) -> Solution:
    """`sparse_code` with ``C 1 = 1``, for checked arguments.

    Data are centred, which does not change the codes. The constraint is a constant feature of
    weight w, whose target the Bregman iterations shift.
    """
    dtype, n, m = np.result_type(Y, D), len(Y), len(D)
    Y, D = Y.astype(np.float64), D.astype(np.float64)
    signals, dictionary = Y - D.mean(axis=0), D - D.mean(axis=0)
    squares = [(Z**2).sum(axis=1).max() for Z in (signals, dictionary)]
    weight = np.sqrt(max(*squares, penalty.lam.max()))
    atoms = Atoms(np.hstack([dictionary, np.full((m, 1), weight)]))
    coef, gap = csr_array((n, m)), np.full(n, np.inf)
    n_iter = np.zeros(n, dtype=int)
    open_rows, C = np.arange(n), csr_array((n, m))
    target = np.hstack([signals, np.full((n, 1), weight)])
    enough = aim(tol, dtype)
    for _ in range(max_iter):
        if len(open_rows) == 0:
            break
        C, pivots, *_ = solve_rows(
            target,
            atoms,
            penalty[open_rows],
            tol=min(_INNER_TOL, 0.01 * tol),
            max_rounds=_INNER_ROUNDS,
            start=C,
            n_jobs=n_jobs,
            progress=progress,
            directory=directory,
        )
        n_iter[open_rows] += pivots
        sums, feasible = C.sum(axis=1), _scale_to_sum_one(C)
        proof = certify_affine(signals[open_rows], dictionary, feasible, penalty[open_rows])
        feasible_gap = proof[1]
        better = np.flatnonzero((sums > 0.5) & (feasible_gap < gap[open_rows]))
        take = np.arange(n)
        take[open_rows[better]] = n + better
        coef = vstack([coef, feasible], format="csr")[take]
        gap[open_rows[better]] = feasible_gap[better]
        target[:, -1] += weight * (1 - sums)
        still_open = np.flatnonzero(gap[open_rows] > enough)
        open_rows, target, C = open_rows[still_open], target[still_open], C[still_open]
    return certified(
        csr_array(coef),
        lambda codes: certify_affine(Y, D, codes, penalty),
        dtype=dtype,
        scale=affine_scale(Y, D, penalty),
        tol=tol,
        n_iter=n_iter,
    )


def certify_affine(
    Y: Array, D: Array, C: csr_array, penalty: Penalty
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of rows that sum to one, from the definition.

    The dual of a row is ``max nu . y - |nu|^2 / 4 - ridge |z|^2 + mu`` over ``(nu, mu)`` with
    ``|d_j . nu - 2 ridge z_j + mu| <= lam r`` for ``j != own[i]`` (one-sided if nonnegative). Along
    ``nu = 2 a (y - c D)``, ``z = a c`` the best `mu` and `a` have a closed form. The gap is
    relative to ``|y - mean(D)|^2 + lam r``, which no translation changes, and is at least
    ``|sum_j c_j - 1|``.
    """
    centre = D.mean(axis=0)
    h, ridge = 2 * penalty.half, penalty.ridge
    residual = Y - C @ D
    square = (residual**2).sum(axis=1)
    objective, energy = square + penalty.value(C), square + penalty.squares(C)
    lowest, highest = np.empty((2, len(Y)))
    for start in range(0, len(Y), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(Y)))
        correlation = residual[rows] @ (D - centre).T - ridge[rows, None] * C[rows].toarray()
        at = penalty[rows].excluded
        correlation[at] = np.inf
        lowest[rows] = correlation.min(axis=1)
        correlation[at] = -np.inf
        highest[rows] = correlation.max(axis=1)
    bound = np.full(len(Y), np.inf)
    if not penalty.nonnegative:
        np.divide(h, highest - lowest, out=bound, where=highest > lowest)
    slope = ((Y - centre) * residual).sum(axis=1) - highest
    scale = np.clip(slope / np.where(energy > 0, energy, np.inf), 0, bound)
    dual_objective = h + 2 * scale * slope - scale**2 * energy
    excess = np.abs(objective - dual_objective) / affine_scale(Y, D, penalty)
    gap = np.maximum(excess, np.abs(C.sum(axis=1) - 1))
    return objective, gap, 2 * scale[:, None] * residual


def affine_scale(Y: Array, D: Array, penalty: Penalty) -> Array:
    """Return ``|y - mean(D)|^2 + lam r``, to which the gap of each row is relative."""
    return squared_norms(Y - D.mean(axis=0)) + 2 * penalty.half


def _scale_to_sum_one(C: csr_array) -> csr_array:
    """Divide rows by their sums; rows whose sums are far from one stay as they are."""
    sums = C.sum(axis=1)
    return csr_array(C / np.where(sums > 0.5, sums, 1)[:, None])


def _lift(X: Array, affine: bool) -> tuple[Array, Array]:
    """Return X and centred X, both with a constant feature of their size; X twice if not affine.

    If all points are equal, the centred rows are zero up to rounding. The constant is then the
    largest entry of X.
    """
    if not affine:
        return X, X
    centred, largest = X - X.mean(axis=0), np.abs(X).max()
    weight = np.sqrt((centred**2).sum(axis=1).mean())
    if weight <= len(X) * np.sqrt(X.shape[1]) * np.finfo(np.float64).eps * largest:
        weight = largest or 1.0
    constant = np.full((len(X), 1), weight)
    return np.hstack([X, constant]), np.hstack([centred, constant])


def _restore_dual(dual: Array, uncentred: Array, centred: Array) -> Array:
    """Turn dual points for centred data into dual points for X with a constant feature of 1."""
    if uncentred is centred:
        return dual
    centre, weight = (uncentred - centred)[0, :-1], uncentred[0, -1]
    constant = weight * dual[:, -1] - dual[:, :-1] @ centre
    return np.column_stack([dual[:, :-1], constant])


def _project_on_span(points: Array, uncentred: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """Project points on their span; say which rows lie in the span of the others.

    Directions count as rounding errors if `uncentred`, rounded to `dtype`, may have such parts.
    """
    U, s, Rt = np.linalg.svd(points, full_matrices=False)
    eps, longest = float(np.finfo(dtype).eps), max(points.shape)
    significant = s > eps * (longest * s[0] + 2 * np.sqrt(longest) * np.abs(uncentred).max())
    solvable = 1 - (U[:, significant] ** 2).sum(axis=1) > _IN_SPAN
    return (points if significant.all() else points @ Rt[significant].T @ Rt[significant]), solvable


def _polish(X: Array, i: int, row: csr_array, nu: Array) -> tuple[csr_array, Array, float]:
    """Return row i's least-squares codes on its support, a feasible dual point, and their gap.

    The dual point is the better of `nu` and the point nearest to it at which the atoms of the
    support are tight. The latter is optimal if the support is.
    """
    x, atoms = X[[i]], X[row.indices]
    values = np.linalg.lstsq(atoms.T, x[0], rcond=None)[0]
    tight = nu + np.linalg.lstsq(atoms, np.sign(values) - atoms @ nu, rcond=None)[0]
    correlation = np.abs(X @ np.column_stack([nu, tight]))
    correlation[i] = 0
    duals = np.stack([nu, tight]) / np.maximum(correlation.max(axis=0), 1)[:, None]
    best = duals[(duals @ x[0]).argmax()]
    residual_norm = np.linalg.norm(x - values @ atoms, axis=1)
    polished = csr_array((values, row.indices, [0, len(values)]), shape=row.shape)
    return (
        polished,
        best,
        float(_take_larger_violation(np.abs(values).sum(), x @ best, residual_norm, x)[0]),
    )


def _take_larger_violation(l1: Array, dual: Array, missed: Array, X: Array) -> Array:
    """For each row, the larger of the relative excess of the l1 norm and the relative residual.

    The absolute value of the excess counts: an l1 norm below the dual objective shows that the row
    is not feasible.
    """
    size = np.linalg.norm(X, axis=1)
    excess = np.abs(l1 - dual) / np.where(l1 > 0, l1, 1)
    return np.maximum(excess, missed / np.where(size > 0, size, 1))
