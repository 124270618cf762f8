"""Recursive least squares: the inverse of Mesa's matrix, corrected by each token."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array
from .ridge import check_weighted


def recursive_least_squares(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    beta: ArrayLike,
    lam: ArrayLike,
    forget: ArrayLike = 1.0,
) -> tuple[Array, tuple[Array, Array]]:
    """Keep the inverse of a weighted ridge regression's matrix, and read the solution.

    ::

        P <- P / a_t,   P <- P - beta_t P k_t^T k_t P / (1 + beta_t k_t P k_t^T)
        G_t = a_t G_{t-1} + beta_t k_t^T v_t,   o_t = q_t P_t G_t,   P_0 = Diag(1 / lam)

    P_t is the inverse of ``H_t + (a_1 ... a_t) Diag(lam)``, with the H of `mesa`: the penalty is
    forgotten too. It is `mesa` if and only if all a are 1. A token takes ``O(d^2)`` operations,
    those of `mesa` ``O(d^3)``; small a let the rounding of P grow.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    beta : array-like
        Weights of the tokens, 0 or more; broadcasts to (..., n_tokens).
    lam : array-like
        Penalties above 0; broadcasts to (..., d).
    forget : array-like, default=1.0
        a in (0, 1], one number a token; broadcasts to (..., n_tokens).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : pair of ndarray of shape (..., d, d) and (..., d, e)
        P and G after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, an a outside (0, 1], a beta below 0 or a penalty
        that is not above 0.

    References
    ----------
    Plackett (1950); EQUATIONS TR-5r.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import recursive_least_squares
    >>> one = [[1], [1]]
    >>> recursive_least_squares(one, one, [[4], [8]], beta=1.0, lam=2.0)[0].ravel().round(12)
    array([1.33333333, 3.        ])
    """
    q, k, v, steps, a, penalty, _, G = check_weighted(q, k, v, beta, lam, forget, (0.0, 0.0))
    if not a.all():
        raise ValueError("forget: must be in (0, 1], got 0, which leaves no inverse")
    P, out = np.linalg.inv(penalty), np.empty(v.shape)
    for t in range(k.shape[-2]):
        share, step = a[..., t, None, None], steps[..., t, None, None]
        key = k[..., t, None, :]
        P = P / share
        image = key @ P
        P = P - step * image.swapaxes(-1, -2) * image / (1 + step * image @ key.swapaxes(-1, -2))
        G = share * G + step * key.swapaxes(-1, -2) * v[..., t, None, :]
        out[..., t, :] = (q[..., t, None, :] @ P @ G)[..., 0, :]
    return out, (P, G)
