"""Sparse self-expression of data with corrupted entries."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, refuse_sparse
from ..scales import squared_norms
from ..solution import Solution, aim, certified, warn_unless_converged
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.problem import check_points
from .huber import certify_outlier, solve_huber


def outlier_self_expression(
    X: ArrayLike,
    *,
    lam: float,
    lam_outlier: float,
    tol: float = 1e-6,
    max_iter: int = 100,
    n_jobs: int | None = None,
) -> Solution:
    """Sparse self-expression of data with corrupted entries, certified.

    ::

        min_{C, E}  |X - C X - E|_F^2 + lam |C|_1 + lam_outlier |E|_1   subject to   diag(C) = 0

    This is `sparse_self_expression` with the dictionary ``[X; I lam / lam_outlier]``. At the
    optimum ``E = S_{lam_outlier / 2}(X - C X)`` with S_t the soft threshold, and the objective is
    computed at this E. The remaining problem in C is a Lasso with Huber's loss, solved by
    prox-Newton steps on growing working sets.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam, lam_outlier : float
        Penalties > 0; `outlier_lams_from_alpha` gives those of the literature.
    tol : float, default=1e-6
        Largest accepted duality gap of the Lasso on that dictionary, relative to ``|x_i|^2``.
    max_iter : int, default=100
        Largest number of working sets for a row.
    n_jobs : int, optional
        Number of threads that share the rows. None is 1, or what ``joblib.parallel_config`` says.

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
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, fewer
        than two samples, penalties or ``tol <= 0`` or ``max_iter < 1``.

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
    refuse_sparse(X, "outliers are single features")
    X = check_points(X, min_rows=2)
    solution = solve_outlier(
        X, X, lam, lam_outlier, tol=tol, max_iter=max_iter, zero_diagonal=True, n_jobs=n_jobs
    )
    warn_unless_converged(solution)
    return solution


def solve_outlier(
    Y: Array,
    X: Array,
    lam: float,
    lam_outlier: float,
    *,
    tol: float,
    max_iter: int,
    zero_diagonal: bool,
    n_jobs: int | None,
) -> Solution:
    """`outlier_self_expression` of the rows of Y by the rows of X, for checked points."""
    lam_outlier = check_positive(lam_outlier, "lam_outlier")
    penalty = Penalty.checked(check_positive(lam, "lam"), len(Y), zero_diagonal=zero_diagonal)
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    points, atoms = (np.ascontiguousarray(Z, dtype=np.float64) for Z in (Y, X))
    coef, n_iter = solve_huber(
        points,
        atoms,
        penalty,
        lam_outlier,
        tol=aim(tol, Y.dtype),
        max_rounds=max_iter,
        n_jobs=n_jobs,
    )
    return certified(
        coef,
        lambda codes: certify_outlier(points, atoms, codes, penalty, lam_outlier),
        dtype=Y.dtype,
        scale=squared_norms(points),
        tol=tol,
        n_iter=n_iter,
    )
