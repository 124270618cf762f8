"""Sparse self-expression with hard constraints, or with sparse outliers; and its scales.

Hard constraints are met by Bregman iterations (the method of multipliers): each is a sparse coding
problem for the fast solver, whose signals are shifted by what the last codes missed.
"""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, hstack, vstack
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array, Solution, check_integer, check_matrix, check_positive
from ..sparse_coding import lam_max
from ..sparse_coding.problem import certify
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
    ``max_{j != i} |x_j . nu_i| <= 1``; c_i reconstructs x_i to 1e-9 of its norm. A row that the
    others do not span has no solution: its coefficients are zero and its gap is infinite.

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
    solvable = _spanned_by_others(points)
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
            row, found = _polish(points, i, C[[at]], feasible[at])
            if found < gap[i]:
                rows[i], dual[i], gap[i] = row, feasible[at], found
        n_iter[open_rows] += 1
        left = np.flatnonzero(gap[open_rows] > tol)
        open_rows, nu, C = open_rows[left], nu[left], C[left]
    coef = csr_array(vstack(rows, format="csr"), dtype=X.dtype)
    coef.sort_indices()
    _warn_unless_converged(gap, tol, "the row may not be in the span of the others")
    return Solution(coef, abs(coef).sum(axis=1), gap, dual, n_iter, gap <= tol)


def affine_self_expression(
    X: Array,
    lam: Array,
    *,
    tol: float,
    l1_ratio: float,
    max_iter: int,
    nonnegative: bool,
    n_jobs: int | None,
    progress: Progress | None,
    directory: str | Path | None,
) -> Solution:
    """`sparse_self_expression` with ``C 1 = 1``, for checked arguments.

    The constraint is a feature of weight w, whose target the Bregman iterations shift.
    """
    points = X.astype(np.float64)
    weight = np.sqrt(max((points**2).sum(axis=1).max(), lam.max()))
    atoms = Atoms(np.hstack([points, np.full((len(X), 1), weight)]))
    coef = csr_array((len(X), len(X)))
    objective, gap = np.full((2, len(X)), np.inf)
    dual = np.zeros_like(points)
    n_iter = np.zeros(len(X), dtype=int)
    open_rows, target, C = np.arange(len(X)), atoms.rows, csr_array((len(X), len(X)))
    for _ in range(max_iter):
        if len(open_rows) == 0:
            break
        C, pivots, *_ = solve_rows(
            target,
            atoms,
            lam[open_rows],
            own=open_rows,
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
        found = certify_affine(points, feasible, lam, nonnegative, l1_ratio, open_rows)
        better = np.flatnonzero((sums > 0.5) & (found[1] < gap[open_rows]))
        take = np.arange(len(X))
        take[open_rows[better]] = len(X) + better
        coef = vstack([coef, feasible], format="csr")[take]
        for kept, new in zip((objective, gap, dual), found, strict=True):
            kept[open_rows[better]] = new[better]
        target = target.copy()
        target[:, -1] += weight * (1 - sums)
        left = np.flatnonzero(gap[open_rows] > tol)
        open_rows, target, C = open_rows[left], target[left], C[left]
    _warn_unless_converged(gap, tol, "increase max_iter, lam or tol")
    coef = csr_array(coef, dtype=X.dtype)
    return Solution(coef, objective, gap, dual, n_iter, gap <= tol)


def certify_affine(
    X: Array,
    C: csr_array,
    lam: Array,
    nonnegative: bool,
    l1_ratio: float,
    own: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of rows that sum to one, from the definition.

    C holds the coefficients of the rows `own` of X, of all by default. The dual of a row is
    ``max nu . x - |nu|^2 / 4 - ridge |z|^2 + mu`` over ``(nu, mu)`` with
    ``|x_j . nu - 2 ridge z_j + mu| <= lam r`` for ``j != i`` (one-sided if nonnegative). Along
    ``nu = 2 a (x - c X)``, ``z = a c`` the best `mu` and `a` have a closed form.
    """
    own = np.arange(len(X)) if own is None else own
    h, ridge = lam[own] * l1_ratio, lam[own] * (1 - l1_ratio) / 2
    Y = X[own]
    residual = Y - C @ X
    energy = (residual**2).sum(axis=1) + ridge * (C**2).sum(axis=1)
    objective = energy + h * abs(C).sum(axis=1)
    lowest, highest = np.empty((2, len(Y)))
    for start in range(0, len(Y), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(Y)))
        correlation = residual[rows] @ X.T - ridge[rows, None] * C[rows].toarray()
        at = (np.arange(rows.stop - start), own[rows])
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


def outlier_self_expression(
    X: ArrayLike,
    *,
    lam: float,
    lam_outlier: float,
    tol: float = 1e-6,
    max_iter: int = 100,
    n_jobs: int | None = None,
) -> Solution:
    """Sparse self-expression of data in which single entries are corrupted, certified.

    ::

        min_{C, E}  |X - C X - E|_F^2 + lam |C|_1 + lam_outlier |E|_1   subject to   diag(C) = 0

    It is `sparse_self_expression` on the dictionary ``[X; I lam / lam_outlier]``. At the optimum
    ``E = S_{lam_outlier / 2}(X - C X)``, and the objective is at that E.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, lam_outlier : float
        Penalties > 0; `outlier_lams_from_alpha` gives those of the literature.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|x_i|^2``: that of the Lasso on the dictionary.
    max_iter : int, default=100
        Most working sets tried for a row.
    n_jobs : int, optional
        Threads that share the rows. None is 1 unless in a ``joblib.parallel_config`` context.

    Returns
    -------
    Solution
        `coef` is C, a csr_array of shape (n_samples, n_samples) whose diagonal is exactly zero.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, penalties or ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013), for faces; EQUATIONS CL-3.

    Examples
    --------
    >>> from twinsolve.solvers import outlier_self_expression
    >>> X = [[2.0, 2.0, 0.0], [2.0, 2.0, 5.0]]
    >>> outlier_self_expression(X, lam=0.8, lam_outlier=1.0).coef.toarray().round(4)
    array([[0.   , 0.064],
           [0.95 , 0.   ]])
    """
    X = check_matrix(X, "X", min_rows=2)
    lam, lam_outlier = check_positive(lam, "lam"), check_positive(lam_outlier, "lam_outlier")
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    points, n = X.astype(np.float64), len(X)
    unit = lam / lam_outlier
    dictionary = np.vstack([points, unit * np.eye(X.shape[1])])
    lams = np.full(n, lam)
    codes = solve_rows(
        points,
        Atoms(dictionary),
        lams,
        own=np.arange(n),
        tol=tol,
        max_rounds=max_iter,
        n_jobs=n_jobs,
    )
    C = codes.coef[:, :n].astype(X.dtype)
    missed = points - C.astype(np.float64) @ points
    E = np.sign(missed) * np.maximum(np.abs(missed) - lam_outlier / 2, 0)
    whole = hstack([C.astype(np.float64), csr_array(E / unit)], format="csr")
    objective, gap, dual = certify(points, dictionary, whole, lams, True, False)
    _warn_unless_converged(gap, tol, "increase max_iter, lam or tol")
    return Solution(C, objective, gap, dual, codes.n_iter, gap <= tol)


def lam_from_alpha(X: ArrayLike, alpha: float) -> float:
    """Penalty of sparse self-expression from the alpha of the SSC paper.

    ``lam = 2 / mu`` with ``mu = alpha / m`` and ``m = min_i max_{j != i} |x_i . x_j|``: at
    ``alpha <= 1`` some row is zero.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    alpha : float
        > 0; larger values penalise less.

    Returns
    -------
    float
        ``2 m / alpha``, for all rows.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, ``alpha <= 0`` or a row orthogonal to all others,
        for which m is zero.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS CL-1.

    Examples
    --------
    >>> from twinsolve.solvers import lam_from_alpha
    >>> lam_from_alpha([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], alpha=6.0)
    1.0
    """
    X = check_matrix(X, "X", min_rows=2)
    alpha = check_positive(alpha, "alpha")
    smallest = float(lam_max(X, X, zero_diagonal=True).min())
    if smallest == 0:
        raise ValueError(
            "X: has a row that is orthogonal to all others, so that alpha gives lam = 0"
        )
    return smallest / alpha


def lam_from_gamma(X: ArrayLike, gamma: float) -> Array:
    """Penalty of each row from the gamma of elastic net subspace clustering.

    ``lam_i = 2 max_{j != i} |x_i . x_j| / gamma``: all rows are zero at ``gamma <= 1``. A row
    orthogonal to all others is zero at any penalty, and gets 1.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    gamma : float
        > 0; larger values penalise less.

    Returns
    -------
    ndarray of shape (n_samples,)

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples or ``gamma <= 0``.

    References
    ----------
    You, Li, Robinson and Vidal, "Oracle based active set algorithm for scalable elastic net
    subspace clustering" (2016); EQUATIONS CL-1.

    Examples
    --------
    >>> from twinsolve.solvers import lam_from_gamma
    >>> lam_from_gamma([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], gamma=4.0)
    array([1., 1., 1.])
    """
    X = check_matrix(X, "X", min_rows=2)
    lam = lam_max(X, X, zero_diagonal=True) / check_positive(gamma, "gamma")
    lam[lam == 0] = 1.0
    return lam


def outlier_lams_from_alpha(X: ArrayLike, alpha: float) -> tuple[float, float]:
    """Penalties of `outlier_self_expression` from the alpha of the SSC paper's face experiments.

    ``lam = 2 m / alpha`` and ``lam_outlier = g lam`` with ``g = alpha / max_i |x_i|_1`` and
    ``m = min_i max_j |x_i . d_j|`` over the dictionary ``[X; I / g]`` without x_i.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Raw pixels in the literature.
    alpha : float
        > 0; 20 in the circulated code.

    Returns
    -------
    lam, lam_outlier : float

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, ``alpha <= 0`` or a zero row.

    References
    ----------
    EQUATIONS CL-1, CL-3.

    Examples
    --------
    >>> from twinsolve.solvers import outlier_lams_from_alpha
    >>> outlier_lams_from_alpha([[1.0, 0.0], [2.0, 0.0], [0.0, 4.0]], alpha=2.0)
    (2.0, 1.0)
    """
    X = check_matrix(X, "X", min_rows=2).astype(np.float64)
    alpha = check_positive(alpha, "alpha")
    if not X.any(axis=1).all():
        raise ValueError("X: has a zero row, for which alpha gives no penalty")
    g = alpha / np.abs(X).sum(axis=1).max()
    largest = np.maximum(lam_max(X, X, zero_diagonal=True) / 2, np.abs(X).max(axis=1) / g)
    lam = 2 * float(largest.min()) / alpha
    return lam, float(g * lam)


def _spanned_by_others(X: Array) -> Array:
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    U = U[:, s > rank_cutoff(X, s)]
    return 1 - (U**2).sum(axis=1) > _IN_SPAN


def _scale_into(nu: Array, X: Array, own: Array) -> Array:
    """Multiples of the rows of `nu` with ``|x_j . nu_i| <= 1`` for all ``j != own[i]``."""
    largest = np.empty(len(nu))
    for start in range(0, len(nu), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        correlation = np.abs(nu[rows] @ X.T)
        correlation[np.arange(len(correlation)), own[rows]] = 0
        largest[rows] = correlation.max(axis=1)
    return nu / np.maximum(largest, 1)[:, None]


def _polish(X: Array, i: int, row: csr_array, nu: Array) -> tuple[csr_array, float]:
    """The exact representation of row i on a support, with its gap at the dual point `nu`."""
    x, support = X[i], row.indices
    values = np.linalg.lstsq(X[support].T, x, rcond=None)[0]
    missed, l1 = np.linalg.norm(x - values @ X[support]), np.abs(values).sum()
    if missed > _EXACT * np.linalg.norm(x):
        return row, np.inf
    exact = csr_array((values, support, [0, len(support)]), shape=row.shape)
    return exact, max(l1 - float(nu @ x), 0) / (l1 or 1)


def _warn_unless_converged(gap: Array, tol: float, cure: str) -> None:
    if (missed := int((gap > tol).sum())) > 0:
        warnings.warn(
            f"{missed} of {len(gap)} rows did not reach the relative duality gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); {cure}",
            ConvergenceWarning,
            stacklevel=3,
        )
