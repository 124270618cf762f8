"""Certified sparse codes by working sets on many rows at once."""

import warnings

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array, Solution, check_integer, check_lam, check_positive
from .problem import TOL, certify, check_l1_ratio, check_problem
from .row_pool import solve_rows


def sparse_code(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    tol: float = TOL,
    l1_ratio: float = 1.0,
    max_iter: int = 100,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    n_jobs: int | None = None,
) -> Solution:
    """Sparse codes of the rows of Y in a dictionary, certified.

    ::

        min_C  |Y - C D|_F^2 + lam (r |C|_1 + (1 - r) / 2 |C|_F^2),     r = l1_ratio

    Rows decouple; with a per-row `lam` the penalty is ``sum_i lam_i |c_i|_1``. Note the scale: the
    Lasso (r = 1) with data term 1/2 is at ``lam / 2``, and scikit-learn's ``alpha = lam / (2 n)``
    with n the number of features.

    Solved on growing working sets by an active-set method with an up- and down-dated Cholesky
    factor; the correlations of many rows at once are one matrix product. The Gram matrix of the
    dictionary is stored where it pays (at most 15,000 atoms); otherwise memory is O(n_atoms * 256
    + non-zeros).

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0. Row i is zero iff ``lam_i >= lam_max(Y, dictionary)[i]``; the papers give no
        default.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|y_i|^2``.
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is the Lasso, smaller values the elastic net.
    max_iter : int, default=100
        Most working sets tried for a row.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i, where the dictionary contains the signals; needs
        as many signals as atoms.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    n_jobs : int, optional
        Threads that share the rows. None is 1 unless in a ``joblib.parallel_config`` context.

    Returns
    -------
    Solution
        `coef` is a csr_array of shape (n_signals, n_atoms).

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``tol <= 0``, ``max_iter < 1`` or `l1_ratio`
        outside (0, 1].

    References
    ----------
    EQUATIONS SE-16, SE-17 (Frobenius norm: erratum E3-i), SE-15n for `nonnegative`, CL-2 for
    `l1_ratio`.

    Examples
    --------
    >>> from twinsolve.solvers import sparse_code
    >>> solution = sparse_code([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0)
    >>> solution.coef.toarray()
    array([[2., 0.]])
    """
    Y, D = check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    lams, ratio = check_lam(lam, len(Y)), check_l1_ratio(l1_ratio)
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    coef, n_iter = solve_rows(
        Y,
        D,
        lams,
        l1_ratio=ratio,
        exclude_self=zero_diagonal,
        nonneg=nonnegative,
        tol=tol,
        max_rounds=max_iter,
        n_jobs=n_jobs,
    )
    coef = coef.astype(np.result_type(Y, D), copy=False)
    objective, gap, dual = certify(Y, D, coef, lams, zero_diagonal, nonnegative, ratio)
    _warn_unless_converged(gap, tol)
    return Solution(coef, objective, gap, dual, n_iter, gap <= tol)


def _warn_unless_converged(gap: Array, tol: float) -> None:
    if (missed := int((gap > tol).sum())) > 0:
        warnings.warn(
            f"{missed} of {len(gap)} rows did not reach the relative duality gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); increase max_iter, lam or tol",
            ConvergenceWarning,
            stacklevel=3,
        )
