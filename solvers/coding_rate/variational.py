"""The variational rate of tokens that belong to several heads, and the step of token statistics."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from ..inputs import Array, check_matrix, check_one_or_each
from .projections import check_memberships, check_step, join, project, square_precision
from .rate import RateStep


def subspace_memberships(
    X: ArrayLike, basis: ArrayLike, n_heads: int, *, sharpness: float | ArrayLike
) -> Array:
    """Memberships of tokens in the subspaces of several heads, by what these hold of them.

    ::

        pi_j = argmax_pi  sum_h pi_h eta_h |w_jh|^2 + H(pi) = softmax_h(eta_h |w_jh|^2)

    over the simplex, with the sharpness eta, the entropy H and ``w_jh = x_j U_h``.

    Parameters
    ----------
    X, basis, n_heads
        As in `subspace_rate`.
    sharpness : float or array-like of shape (n_heads,)
        > 0.

    Returns
    -------
    ndarray of shape (n_tokens, n_heads)
        Rows sum to one; in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a sharpness that is not positive.

    References
    ----------
    Wu et al., "Token statistics transformer" (2025); EQUATIONS CR-5m.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import subspace_memberships
    >>> subspace_memberships([[1.0, 1.0]], np.eye(2), 2, sharpness=3.0)
    array([[0.5, 0.5]])
    """
    _, _, W = project(X, basis, n_heads)
    eta = check_one_or_each(sharpness, "sharpness", len(W), "head")
    if not (eta > 0).all():
        raise ValueError(f"sharpness: must be > 0, got {sharpness!r}")
    memberships: Array = softmax(eta * (W**2).sum(axis=2).T, axis=1)
    return memberships


def variational_rate(
    X: ArrayLike, basis: ArrayLike, memberships: ArrayLike, *, eps: float
) -> float:
    """Variational bound on the coding rate of tokens that belong to several heads.

    ::

        sum_h n_h / (2 N) sum_i log(1 + c s_hi),    c = n_features / eps^2
        n_h = sum_j pi_jh,    s_h = sum_j pi_jh w_jh^2 / n_h,    W_h = X U_h

    It is at least ``sum_h n_h / (2 N) logdet(I + (c / n_h) W_h^T diag(pi_h) W_h)``, and equal to it
    if and only if these moments are diagonal. It needs no matrix of tokens or of features. A head
    without members adds nothing.

    Parameters
    ----------
    X, basis
        As in `subspace_rate`.
    memberships : array-like of shape (n_tokens, n_heads)
        ``pi_jh >= 0``; rows sum to one.
    eps : float
        Precision > 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, memberships that are no distributions or an eps
        that is not positive.

    References
    ----------
    Wu et al., "Token statistics transformer" (2025); EQUATIONS CR-4.

    Examples
    --------
    >>> from twinsolve.solvers.coding_rate import variational_rate
    >>> variational_rate([[1.0], [1.0]], [[1.0]], [[1.0], [1.0]], eps=1.0)  # log(2) / 2
    0.3465735902799726
    """
    X, _, W, Pi, c = _check(X, basis, memberships, eps)
    s, n = _moments(W, Pi)
    return float((n[:, None] * np.log1p(c * s)).sum() / (2 * len(X)))


def token_statistics(
    X: ArrayLike, basis: ArrayLike, memberships: ArrayLike, *, eps: float
) -> Array:
    """Token-statistics attention: ``-n_tokens`` times the gradient of `variational_rate`.

    ::

        out = -sum_h pi_h o (c W_h / (1 + c s_h)) U_h^T

    with the memberships kept fixed. Features in which the tokens of a head are large already, by
    the second moment ``s_h``, are moved less.

    Parameters
    ----------
    X, basis, memberships, eps
        As in `variational_rate`.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)
        In float64.

    Raises
    ------
    ValueError
        As `variational_rate` does.

    References
    ----------
    EQUATIONS CR-5.

    Examples
    --------
    >>> from twinsolve.solvers.coding_rate import token_statistics
    >>> token_statistics([[1.0], [1.0]], [[1.0]], [[1.0], [1.0]], eps=1.0)
    array([[-0.5],
           [-0.5]])
    """
    _, U, W, Pi, c = _check(X, basis, memberships, eps)
    return _direction(U, W, Pi, c)


def variational_rate_step(
    X: ArrayLike, basis: ArrayLike, memberships: ArrayLike, *, eps: float, step: float
) -> RateStep:
    """One step along `token_statistics`, with the decrease of the rate that is proved.

    ::

        X+ = X + step out,    rate(X) - rate(X+) >= step (1 - step c / 2) |out|_F^2 / N

    for ``0 < step c < 2``, the memberships kept fixed and ``|sum_h U_h U_h^T|_2 <= 1``.

    Parameters
    ----------
    X, basis, memberships, eps
        As in `variational_rate`.
    step : float
        In (0, 2 / c).

    Returns
    -------
    RateStep
        ``tokens`` and ``decrease``.

    Raises
    ------
    ValueError
        As `variational_rate` does, and if `step` or the size of `basis` has no proof.

    References
    ----------
    EQUATIONS CR-5.

    Examples
    --------
    >>> from twinsolve.solvers.coding_rate import variational_rate_step
    >>> after, decrease = variational_rate_step([[1.0]], [[1.0]], [[1.0]], eps=1.0, step=1.0)
    >>> after, decrease
    (array([[0.5]]), 0.125)
    """
    X, U, W, Pi, c = _check(X, basis, memberships, eps)
    step = check_step(step, 2 / c, U)
    out = _direction(U, W, Pi, c)
    decrease = step * (1 - step * c / 2) * float((out**2).sum()) / len(X)
    return RateStep(X + step * out, decrease)


def _check(
    X: ArrayLike, basis: ArrayLike, memberships: ArrayLike, eps: float
) -> tuple[Array, Array, Array, Array, float]:
    """Return X, U, W, the memberships and c; there are as many heads as memberships."""
    X = check_matrix(X, "X")
    Pi = check_memberships(memberships, len(X))
    X, U, W = project(X, basis, Pi.shape[1])
    return X, U, W, Pi, float(X.shape[1] / square_precision(eps))


def _moments(W: Array, Pi: Array) -> tuple[Array, Array]:
    """Return s of shape (n_heads, p), 0 for a head without members, and n of shape (n_heads,)."""
    n = Pi.sum(axis=0)
    shares = np.divide(Pi, n, out=np.zeros_like(Pi), where=n > 0)
    return np.einsum("jh,hjp->hp", shares, W**2), n


def _direction(U: Array, W: Array, Pi: Array, c: float) -> Array:
    s, _ = _moments(W, Pi)
    out: Array = join(-Pi.T[:, :, None] * (c * W / (1 + c * s)[:, None]), U)
    return out
