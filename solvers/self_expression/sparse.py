"""Sparse self-expression: each sample as a combination of few others."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ..solution import (
    Solution,
    check_integer,
    check_positive,
    warn_unless_converged,
)
from ..sparse_coding import sparse_code
from ..sparse_coding.matching_pursuit import pursue_rows
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.problem import check_points
from ..sparse_coding.row_blocks import Progress
from .constrained import affine_sparse_code


def sparse_self_expression(
    X: ArrayLike,
    *,
    lam: float | ArrayLike,
    tol: float = 1e-6,
    affine: bool = False,
    l1_ratio: float = 1.0,
    max_iter: int = 100,
    nonnegative: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    directory: str | Path | None = None,
) -> Solution:
    """Sparse subspace clustering coefficients: each row of X from few other rows, certified.

    ::

        min_C  |X - C X|_F^2 + lam (r |C|_1 + (1 - r) / 2 |C|_F^2)   subject to   diag(C) = 0

    with ``r = l1_ratio``, and with ``C 1 = 1`` if `affine`. Rows decouple; with a per-row `lam` the
    penalty of row i is weighted by ``lam_i``. The scale: the Lasso with data term 1/2 is at
    ``lam / 2``, and ``lam = 2 / mu`` for the mu of the SSC paper.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float or array-like of shape (n_samples,)
        Penalty > 0. Row i is zero iff ``lam_i >= lam_max(X, X, zero_diagonal=True)[i]``: choose a
        fraction of that. The papers give no default.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|x_i|^2``; if `affine`, relative to
        ``|x_i - mean(X)|^2 + lam_i r``, and no smaller than ``|sum_j c_ij - 1|``.
    affine : bool, default=False
        Coefficients of each row sum to one, for affine subspaces: the answer does not depend on the
        origin. Solved by Bregman iterations on centred data.
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is sparse subspace clustering, smaller values its elastic net.
    max_iter : int, default=100
        Most working sets tried for a row; most Bregman iterations if `affine`.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    n_jobs : int, optional
        Workers that share the rows: threads, unless ``joblib.parallel_config`` names another
        backend (loky, Dask). None is 1 unless in such a context. The answer is the same for all.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the blocks of rows, as ``tqdm`` or
        ``rich.progress.track`` do; that of each Bregman iteration if `affine`.
    directory : str or Path, optional
        Folder that keeps the codes of finished blocks; the same solve, interrupted and called
        again, goes on from there.

    Returns
    -------
    Solution
        `coef` is a csr_array of shape (n_samples, n_samples) whose diagonal is exactly zero.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, a row whose largest entry is not within 1e-140 to
        1e140 in size, ``lam <= 0``, ``tol <= 0``, ``max_iter < 1`` or `l1_ratio` outside (0, 1].

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS SE-12, SE-12a,
    SE-15n, CL-1, CL-2, CL-4.

    Examples
    --------
    >>> from twinsolve.solvers import sparse_self_expression
    >>> X = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    >>> sparse_self_expression(X, lam=0.5).coef.toarray().round(4)
    array([[ 0.    ,  0.4375,  0.    ,  0.    ],
           [ 1.75  ,  0.    ,  0.    ,  0.    ],
           [ 0.    ,  0.    ,  0.    , -0.75  ],
           [ 0.    ,  0.    , -0.75  ,  0.    ]])
    """
    X = check_points(X, min_rows=2)
    if affine:
        solution = affine_sparse_code(
            X,
            X,
            Penalty.checked(lam, len(X), l1_ratio, nonnegative, zero_diagonal=True),
            tol=check_positive(tol, "tol"),
            max_iter=check_integer(max_iter, "max_iter", minimum=1),
            n_jobs=n_jobs,
            progress=progress,
            directory=directory,
        )
        warn_unless_converged(solution)
        return solution
    return sparse_code(
        X,
        X,
        lam=lam,
        tol=tol,
        l1_ratio=l1_ratio,
        max_iter=max_iter,
        zero_diagonal=True,
        nonnegative=nonnegative,
        n_jobs=n_jobs,
        progress=progress,
        directory=directory,
    )


def omp_self_expression(
    X: ArrayLike, *, n_nonzero: int, tol: float = 0.0, n_jobs: int | None = None
) -> csr_array:
    """Orthogonal matching pursuit coefficients: each row of X from a few greedily chosen others.

    Row i starts from ``r = x_i`` and repeats: add the unused row ``j != i`` with the largest
    ``|x_j . r|`` to the support S, then ``c = argmin |x_i - sum_{j in S} c_j x_j|^2`` and
    ``r = x_i - c X``, until S has `n_nonzero` entries or ``|r| <= tol``, or until no row left is
    correlated with r beyond rounding.

    The rows are not normalised: scale them to unit norm for the usual method. The correlations of a
    block of rows are one matrix product, the supports are kept orthogonalised, and memory is
    O(n_jobs * block * (n_samples + n_nonzero * n_features) + non-zeros).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    n_nonzero : int
        Most non-zeros in a row, from 1 to ``n_samples - 1``.
    tol : float, default=0.0
        Norm of the residual at which a row stops, >= 0.
    n_jobs : int, optional
        Threads that share the rows. None is 1 unless in a ``joblib.parallel_config`` context.

    Returns
    -------
    csr_array of shape (n_samples, n_samples)
        Its diagonal is zero and its indices are sorted. Zero rows stay empty.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, fewer
        than two samples, `n_nonzero` out of range or ``tol < 0``.

    References
    ----------
    Dyer, Sankaranarayanan and Baraniuk (2013); You, Robinson and Vidal (2016); EQUATIONS CL-9.

    Examples
    --------
    >>> from twinsolve.solvers import omp_self_expression
    >>> omp_self_expression([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], n_nonzero=2).toarray()
    array([[0. , 0.5, 0. ],
           [2. , 0. , 0. ],
           [0. , 0. , 0. ]])
    """
    X = check_points(X, min_rows=2)
    n_nonzero = check_integer(n_nonzero, "n_nonzero", minimum=1, maximum=len(X) - 1)
    tol = check_positive(tol, "tol", allow_zero=True)
    points = np.ascontiguousarray(X, dtype=np.float64)
    coef = pursue_rows(points, points, n_nonzero, tol, exclude_self=True, n_jobs=n_jobs)
    return coef.astype(X.dtype)
