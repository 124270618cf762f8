"""Self-expression by orthogonal matching pursuit."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ..solution import check_integer, check_positive
from ..sparse_coding.matching_pursuit import pursue_rows
from ..sparse_coding.problem import check_points


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
