"""cvxpy statement of the weighted least-squares problem behind kernel smoothers."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array


def weighted_least_squares(weights: ArrayLike, values: ArrayLike) -> Array:
    """Solve ``min_u sum_j K_ij |y_j - u|^2`` for every row i of the weights K.

    Parameters
    ----------
    weights : array-like of shape (n_queries, n_keys)
        Nonnegative, with positive row sums.
    values : array-like of shape (n_keys, n_values)

    Returns
    -------
    ndarray of shape (n_queries, n_values)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-5, IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.kernel_smoothing import weighted_least_squares
    >>> weighted_least_squares([[1.0, 3.0]], [[0.0], [4.0]]).round(5)
    array([[3.]])
    """
    K, y = np.asarray(weights, dtype=float), np.asarray(values, dtype=float)
    u = cp.Variable((len(K), y.shape[1]))
    errors = [
        cp.sum_squares(cp.multiply(np.sqrt(K[i])[:, None], y - np.ones((len(y), 1)) @ u[i : i + 1]))
        for i in range(len(K))
    ]
    cp.Problem(cp.Minimize(cp.sum(cp.hstack(errors)))).solve(solver=cp.CLARABEL)
    return np.asarray(u.value)
