"""A linear memory trained by heavy ball with weight decay: Titans."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array
from .sequences import check_array_of, check_sequences


def titans_memory(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    step: ArrayLike,
    momentum: ArrayLike,
    decay: ArrayLike,
    state: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
) -> tuple[Array, tuple[Array, Array]]:
    """Train a linear memory on each token by heavy ball with decay, and read it with each query.

    ::

        Z_t = eta_t Z_{t-1} - 2 theta_t k_t^T (k_t M_{t-1} - v_t)
        M_t = (1 - alpha_t) M_{t-1} + Z_t,   o_t = q_t M_t

    The gradient is that of ``|v_t - k_t M|^2``, without a half, taken at M_{t-1}, before the decay.
    ``alpha = eta = 0`` and ``theta = beta / 2`` is `delta_rule`.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    step, momentum, decay : array-like
        theta, eta and alpha; each broadcasts to (..., n_tokens).
    state : pair of array-like, default=(0.0, 0.0)
        M and Z before the first token; they broadcast to (..., d, e).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : pair of ndarray of shape (..., d, e)
        M and Z after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity or shapes that do not fit.

    References
    ----------
    Behrouz, Zhong and Mirrokni (2025), Titans; EQUATIONS TR-8.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import titans_memory
    >>> out, (M, Z) = titans_memory(
    ...     [[1], [1]], [[1], [1]], [[4], [8]], step=0.25, momentum=0.5, decay=0.0
    ... )
    >>> out.ravel(), Z
    (array([2., 6.]), array([[4.]]))
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    gates = {"step": step, "momentum": momentum, "decay": decay}
    theta, eta, alpha = (
        check_array_of(x, name, k.shape[:-1])[..., None, None] for name, x in gates.items()
    )
    M, Z = (check_array_of(x, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1])) for x in state)
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        error = k[..., t, None, :] @ M - v[..., t, None, :]
        Z = eta[..., t, :, :] * Z - 2 * theta[..., t, :, :] * k[..., t, :, None] * error
        M = (1 - alpha[..., t, :, :]) * M + Z
        out[..., t, :] = (q[..., t, None, :] @ M)[..., 0, :]
    return out, (M, Z)
