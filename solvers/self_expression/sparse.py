"""Sparse self-expression: each sample as a combination of a few others."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from ...validation import check_integer, check_positive
from ..inputs import check_dense_or_sparse
from ..solution import Solution, warn_unless_converged
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
    """Sparse subspace clustering coefficients: represent each row of X by few others, certified.

    ::

        min_C  |X - C X|_F^2 + lam (r |C|_1 + (1 - r) / 2 |C|_F^2)   subject to   diag(C) = 0

    with ``r = l1_ratio``, and with ``C 1 = 1`` if `affine`. The rows are independent problems; with
    a `lam` for each row, the penalty of row i has the weight ``lam_i``. Note the scale: the Lasso
    with the factor 1/2 at the data term has the penalty ``lam / 2``, and the mu of the SSC paper is
    ``2 / lam``.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
        Sparse points are solved in min(n_samples, n_features) dense coordinates with the same
        inner products, and certified themselves unless `affine`: then `dual` is sparse too.
    lam : float or array-like of shape (n_samples,)
        Penalty > 0. The coefficients of row i are zero iff
        ``lam_i >= lam_max(X, X, zero_diagonal=True)[i]``: choose a fraction of this limit. The
        papers give no default.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|x_i|^2``. If `affine`, the gap is relative to
        ``|x_i - mean(X)|^2 + lam_i r``, and at least ``|sum_j c_ij - 1|``.
    affine : bool, default=False
        Whether the coefficients of each row must sum to one, for affine subspaces. The answer then
        does not depend on the origin. It is solved by Bregman iterations on centred data.
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is sparse subspace clustering, smaller values its elastic net.
    max_iter : int, default=100
        Largest number of working sets for a row, or of Bregman iterations if `affine`.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    n_jobs : int, optional
        Number of workers that share the rows: threads, unless ``joblib.parallel_config`` names
        another backend (loky, Dask). None is 1, or what that context says. The answer does not
        depend on it.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the blocks of rows, as ``tqdm`` or
        ``rich.progress.track`` do; if `affine`, once for each Bregman iteration.
    directory : str or Path, optional
        Folder for the codes of finished blocks of rows. If the solve is interrupted and called
        again, it continues from them.

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
    if affine:
        X = check_points(X, min_rows=2)
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
    points = _check_sparse(X) if issparse(X) else check_points(X, min_rows=2)
    return sparse_code(
        points,
        points,
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


def _check_sparse(X: csr_array) -> csr_array:
    """Return sparse points if they are finite and two or more.

    Raises
    ------
    ValueError
        Otherwise.
    """
    points = csr_array(check_dense_or_sparse(X, "X"))
    if points.shape[0] < 2:
        raise ValueError(f"X: must have two rows or more, got shape {points.shape}")
    return points


def omp_self_expression(
    X: ArrayLike, *, n_nonzero: int, tol: float = 0.0, n_jobs: int | None = None
) -> csr_array:
    """Orthogonal matching pursuit coefficients: each row of X by a few others, chosen greedily.

    Row i starts with ``r = x_i`` and an empty support S. A step adds the row ``j != i`` not in S
    with the largest ``|x_j . r|`` to S, and sets ``c = argmin |x_i - sum_{j in S} c_j x_j|^2`` and
    ``r = x_i - c X``. The row ends if S has `n_nonzero` entries, if ``|r| <= tol``, or if no other
    row is correlated with r beyond rounding.

    The rows are not normalised: scale them to unit norm for the usual method. The correlations of a
    block of rows are one matrix product, and an orthogonal basis of each support is updated. Memory
    is O(n_jobs * block * (n_samples + n_nonzero * n_features) + non-zeros), and up to 15,000 points
    ``n_samples^2`` numbers of float32 for their Gram matrix.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    n_nonzero : int
        Largest number of non-zeros in a row, from 1 to ``n_samples - 1``.
    tol : float, default=0.0
        Norm of the residual at which a row ends, >= 0.
    n_jobs : int, optional
        Number of threads that share the rows. None is 1, or what ``joblib.parallel_config`` says.

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
