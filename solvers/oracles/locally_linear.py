"""cvxpy statement of locally linear reconstruction weights."""

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array


def reconstruction_weights(x: ArrayLike, neighbors: ArrayLike, *, reg: float = 1e-3) -> Array:
    """Solve ``min_c |x - c Z|^2 + reg tr(g) |c|^2`` subject to ``sum(c) = 1`` for one point.

    Parameters
    ----------
    x : array-like of shape (n_features,)
    neighbors : array-like of shape (n_neighbors, n_features)
        The rows of Z; ``g_ab = (z_a - x) . (z_b - x)``.
    reg : float, default=1e-3

    Returns
    -------
    ndarray of shape (n_neighbors,)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-9.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.locally_linear import reconstruction_weights
    >>> reconstruction_weights([1.0], [[0.0], [2.0]]).round(5)
    array([0.5, 0.5])
    """
    point, Z = np.asarray(x, dtype=float), np.asarray(neighbors, dtype=float)
    c = cp.Variable(len(Z))
    trace = ((Z - point) ** 2).sum()
    objective = cp.sum_squares(point - c @ Z) + reg * trace * cp.sum_squares(c)
    cp.Problem(cp.Minimize(objective), [cp.sum(c) == 1]).solve(solver=cp.CLARABEL)
    return np.asarray(c.value)
