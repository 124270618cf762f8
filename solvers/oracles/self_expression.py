"""cvxpy statement of sparse self-expression."""

from numpy.typing import ArrayLike

from ..solution import Array
from .sparse_coding import sparse_code


def sparse_self_expression(
    X: ArrayLike, *, lam: float | ArrayLike, nonnegative: bool = False
) -> Array:
    """Solve ``min_C |X - C X|_F^2 + lam |C|_1`` with ``diag(C) = 0`` by interior points.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    lam : float or array-like of shape (n_samples,)
    nonnegative : bool, default=False

    Returns
    -------
    ndarray of shape (n_samples, n_samples)

    Raises
    ------
    cvxpy.SolverError
        If the solver fails.

    References
    ----------
    EQUATIONS SE-12.

    Examples
    --------
    >>> from twinsolve.solvers.oracles.self_expression import sparse_self_expression
    >>> sparse_self_expression([[1.0], [2.0]], lam=1.0).round(4)
    array([[0.   , 0.375],
           [1.5  , 0.   ]])
    """
    return sparse_code(X, X, lam=lam, zero_diagonal=True, nonnegative=nonnegative)
