"""Delta rules: one step on the last token, explicit or implicit."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array
from .sequences import check_array_of, check_sequences, check_share


def delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    beta: ArrayLike,
    forget: ArrayLike = 1.0,
    metric: ArrayLike = 1.0,
    state: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Correct a linear map by a step on the error of each token, and read it with each query.

    ::

        S_- = Diag(a_t) S_{t-1},   e_t = v_t - k_t S_-
        S_t = S_- + beta_t (m_t o k_t)^T e_t,   o_t = q_t S_t

    a = m = 1 is the delta rule of DeltaNet: LMS, and Kaczmarz where ``beta_t |k_t|^2 = 1``. With
    forgetting it is gated DeltaNet (one a for a token) or KDA (one for each feature of the keys);
    with m it is the preconditioned delta rule. The error after the step is
    ``(1 - beta k.(m o k)) e``: it does not grow for ``0 <= beta k.(m o k) <= 2``.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    beta : array-like
        Steps; broadcasts to (..., n_tokens).
    forget : array-like, default=1.0
        a in [0, 1]; broadcasts to (..., n_tokens, d). One number a token has shape
        (..., n_tokens, 1).
    metric : array-like, default=1.0
        m; broadcasts to (..., n_tokens, d).
    state : array-like, default=0.0
        S before the first token; broadcasts to (..., d, e).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : ndarray of shape (..., d, e)
        S after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or an a outside [0, 1].

    References
    ----------
    Widrow and Hoff (1960); Schlag et al. (2021); EQUATIONS TR-2, TR-3, TR-6.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import delta_rule
    >>> out, state = delta_rule([[1], [1]], [[1], [1]], [[4], [8]], beta=0.5)
    >>> out.ravel(), state
    (array([2., 5.]), array([[5.]]))
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    a, m = check_share(forget, "forget", k.shape), check_array_of(metric, "metric", k.shape)
    steps = check_array_of(beta, "beta", k.shape[:-1])
    S = check_array_of(state, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1]))
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        S = a[..., t, :, None] * S
        e = v[..., t, None, :] - k[..., t, None, :] @ S
        S = S + steps[..., t, None, None] * (m * k)[..., t, :, None] * e
        out[..., t, :] = (q[..., t, None, :] @ S)[..., 0, :]
    return out, S


def proximal_point_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    delta: ArrayLike,
    forget: ArrayLike = 1.0,
    state: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Correct a linear map by a proximal point step on the error of each token.

    ::

        S_t = argmin_S 1/2 |v_t - k_t S|^2 + 1/(2 delta_t) |S - Diag(a_t) S_{t-1}|_F^2
        o_t = q_t S_t

    Solved as the linear system ``(I + delta k^T k) S = Diag(a) S_{t-1} + delta k^T v``. It is
    `delta_rule` with ``beta = delta / (1 + delta |k|^2)``, and never overshoots.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    delta : array-like
        Steps, 0 or more; broadcasts to (..., n_tokens).
    forget : array-like, default=1.0
        a in [0, 1]; broadcasts to (..., n_tokens, d).
    state : array-like, default=0.0
        S before the first token; broadcasts to (..., d, e).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : ndarray of shape (..., d, e)
        S after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, an a outside [0, 1] or a delta below 0.

    References
    ----------
    Liu et al. (2024), Longhorn; EQUATIONS TR-2p.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import proximal_point_rule
    >>> out, state = proximal_point_rule([[1], [1]], [[1], [1]], [[4], [8]], delta=1.0)
    >>> out.ravel(), state
    (array([2., 5.]), array([[5.]]))
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    a, steps = check_share(forget, "forget", k.shape), check_array_of(delta, "delta", k.shape[:-1])
    if steps.min(initial=0) < 0:
        raise ValueError(f"delta: must be >= 0, got {steps.min():g}")
    S = check_array_of(state, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1]))
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        column = steps[..., t, None, None] * k[..., t, :, None]
        right = a[..., t, :, None] * S + column * v[..., t, None, :]
        S = np.linalg.solve(np.eye(k.shape[-1]) + column * k[..., t, None, :], right)
        out[..., t, :] = (q[..., t, None, :] @ S)[..., 0, :]
    return out, S
