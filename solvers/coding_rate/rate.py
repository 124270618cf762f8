"""The coding rate of tokens, of their projections on subspaces, and gradient steps on it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix
from .projections import check_step, join, project, square_precision


class RateStep(NamedTuple):
    """Tokens after one step on a rate, and by how much the step is proved to lower it.

    Attributes
    ----------
    tokens : ndarray of shape (n_tokens, n_features)
    decrease : float
        The rate falls by at least so much.
    """

    tokens: Array
    decrease: float


def coding_rate(X: ArrayLike, *, eps: float) -> float:
    """Coding rate of tokens: nats that code them up to a squared error of ``eps^2`` a token.

    ::

        R = 1/2 logdet(I + al X^T X),    al = n_features / (n_tokens eps^2)

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
    eps : float
        Precision > 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity or an eps that is not positive.

    References
    ----------
    Yu et al., "Learning diverse and discriminative representations via the principle of maximal
    coding rate reduction" (2020); EQUATIONS CR-1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import coding_rate
    >>> coding_rate(np.eye(2), eps=1.0)  # log 2
    0.6931471805599453
    """
    X = check_matrix(X, "X").astype(np.float64, copy=False)
    return _half_logdet(X, scale_of_rate(X, eps))


def coding_rate_gradient(X: ArrayLike, *, eps: float) -> Array:
    """Gradient of `coding_rate`.

    ::

        grad R = al X (I + al X^T X)^-1 = al (X - C X)

    with C the coefficients of ridge self-expression (`least_squares_self_expression`) at
    ``lam = 1 / al``: what tokens cannot express of each other raises the rate.

    Parameters
    ----------
    X, eps
        As in `coding_rate`.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)
        In float64.

    Raises
    ------
    ValueError
        As `coding_rate` does.

    References
    ----------
    EQUATIONS CR-1.

    Examples
    --------
    >>> from twinsolve.solvers.coding_rate import coding_rate_gradient
    >>> coding_rate_gradient([[1.0], [0.0]], eps=1.0).round(12)
    array([[0.33333333],
           [0.        ]])
    """
    X = check_matrix(X, "X").astype(np.float64, copy=False)
    return _gradient(X, scale_of_rate(X, eps))


def subspace_rate(X: ArrayLike, basis: ArrayLike, n_heads: int, *, eps: float) -> float:
    """Sum of the coding rates of the tokens on the subspaces of several heads.

    ::

        R^c = 1/2 sum_h logdet(I + be W_h^T W_h),    W_h = X U_h,    be = p / (n_tokens eps^2)

    It is not convex in X.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
    basis : array-like of shape (n_features, n_heads * p)
        ``U_1 ... U_H`` side by side.
    n_heads : int
        >= 1.
    eps : float
        Precision > 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or an eps that is not positive.

    References
    ----------
    Yu et al., "White-box transformers via sparse rate reduction" (2023); EQUATIONS CR-2.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import coding_rate, subspace_rate
    >>> X = np.array([[1.0, 2.0], [0.0, 1.0]])
    >>> subspace_rate(X, np.eye(2), 1, eps=0.5) == coding_rate(X, eps=0.5)
    True
    """
    _, _, W = project(X, basis, n_heads)
    return sum(_half_logdet(w, scale_of_rate(w, eps)) for w in W)


def subspace_rate_gradient(X: ArrayLike, basis: ArrayLike, n_heads: int, *, eps: float) -> Array:
    """Gradient of `subspace_rate`: ridge self-expression of the tokens in each head.

    ::

        grad R^c = be sum_h (W_h - C_h W_h) U_h^T

    with ``C_h`` the coefficients of `least_squares_self_expression` of ``W_h`` at ``lam = 1 / be``.

    Parameters
    ----------
    X, basis, n_heads, eps
        As in `subspace_rate`.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)
        In float64.

    Raises
    ------
    ValueError
        As `subspace_rate` does.

    References
    ----------
    EQUATIONS CR-2, FF-10.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import subspace_rate_gradient
    >>> subspace_rate_gradient([[1.0, 2.0]], np.eye(2), 2, eps=1.0)
    array([[0.5, 0.4]])
    """
    _, U, W = project(X, basis, n_heads)
    return _joined_gradient(U, W, eps)


def coding_rate_step(
    X: ArrayLike, basis: ArrayLike, n_heads: int, *, eps: float, step: float
) -> RateStep:
    """One gradient step on `subspace_rate`, with the decrease that is proved.

    ::

        X+ = X - step grad R^c,    R^c(X) - R^c(X+) >= step (1 - step be / 2) |grad R^c|_F^2

    for ``0 < step be < 2`` and ``|sum_h U_h U_h^T|_2 <= 1``: the gradient has the Lipschitz
    constant be. With ``sum_h U_h U_h^T = I`` the step is
    ``(1 - step be) X + step be sum_h C_h W_h U_h^T``. The rate is not convex: steps tend to a
    critical point only, and no gap to a minimum is known.

    Parameters
    ----------
    X, basis, n_heads, eps
        As in `subspace_rate`.
    step : float
        In (0, 2 / be).

    Returns
    -------
    RateStep
        ``tokens`` and ``decrease``.

    Raises
    ------
    ValueError
        As `subspace_rate` does, and if `step` or the size of `basis` has no proof.

    References
    ----------
    EQUATIONS CR-2.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import coding_rate_step, subspace_rate
    >>> X = np.array([[1.0, 2.0]])
    >>> after, decrease = coding_rate_step(X, np.eye(2), 2, eps=1.0, step=1.0)
    >>> after
    array([[0.5, 1.6]])
    >>> fallen = subspace_rate(X, np.eye(2), 2, eps=1.0) - subspace_rate(
    ...     after, np.eye(2), 2, eps=1.0)
    >>> bool(fallen >= decrease > 0)
    True
    """
    X, U, W = project(X, basis, n_heads)
    be = scale_of_rate(W[0], eps)
    step = check_step(step, 2 / be, U)
    gradient = _joined_gradient(U, W, eps)
    decrease = step * (1 - step * be / 2) * float((gradient**2).sum())
    return RateStep(X - step * gradient, decrease)


def scale_of_rate(X: Array, eps: float) -> float:
    """Return ``n_features / (n_tokens eps^2)``."""
    return float(X.shape[1] / (len(X) * square_precision(eps)))


def _half_logdet(X: Array, scale: float) -> float:
    """Return ``1/2 logdet(I + scale X^T X)``, without loss where the products are small."""
    s = np.linalg.svd(X, compute_uv=False)
    return float(np.log1p(scale * s**2).sum() / 2)


def _gradient(X: Array, scale: float) -> Array:
    """Return ``scale X (I + scale X^T X)^-1``, without loss where X has no full rank."""
    U, s, V = np.linalg.svd(X, full_matrices=False)
    gradient: Array = (U * (s / (1 / scale + s**2))) @ V
    return gradient


def _joined_gradient(U: Array, W: Array, eps: float) -> Array:
    gradients = np.stack([_gradient(w, scale_of_rate(w, eps)) for w in W])
    joined: Array = join(gradients, U)
    return joined
