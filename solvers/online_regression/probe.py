"""Softmax attention corrected by the covariance of keys and values: Parallax, local linear fits."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from .sequences import check_array_of, check_sequences


def parallax(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    probe: ArrayLike,
    scale: float,
    state: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    """Causal softmax attention minus a probe times the covariance of keys and values.

    ::

        p = softmax(scale q_t K^T),   m = p K
        o_t = p V (1 + r_t.m) - sum_i p_i (r_t.k_i) v_i = p V - r_t Cov_p(k, v)

    K and V are all keys and values up to token t. r = 0 is attention; the r of
    `local_linear_probe` makes it local linear regression.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    probe : array-like
        r; broadcasts to (..., n_tokens, d).
    scale : float
        Factor of the logits, often ``d ** -0.5``.
    state : pair of array-like, optional
        Keys (..., n_earlier, d) and values (..., n_earlier, e) of earlier tokens, which all queries
        see.

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64.
    state : pair of ndarray
        All keys and values.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a scale that is not above 0.

    References
    ----------
    EQUATIONS TR-9.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import parallax
    >>> out, state = parallax(
    ...     [[0], [0]], [[-1], [1]], [[2], [6]], probe=[[0], [0.5]], scale=1.0
    ... )
    >>> out.ravel()
    array([2., 3.])
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    r, scale = check_array_of(probe, "probe", k.shape), check_positive(scale, "scale")
    K, V, first = _after(state, k, v)
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        keys, values = K[..., : first + t + 1, :], V[..., : first + t + 1, :]
        p, along = _weights(q[..., t, :], keys, scale), keys @ r[..., t, :, None]
        mean = p[..., None, :] @ values
        out[..., t, :] = (mean * (1 + p[..., None, :] @ along))[..., 0, :]
        out[..., t, :] -= (p[..., None, :] @ (along * values))[..., 0, :]
    return out, (K, V)


def local_linear_probe(
    q: ArrayLike, k: ArrayLike, *, scale: float, reg: float = 0.0, state: ArrayLike | None = None
) -> Array:
    """The probe with which `parallax` is local linear regression at each query.

    ::

        r_t = (Cov_p(k, k) + reg tr(Cov_p(k, k)) I)^-1 (m - q_t)

    with p, m and the keys up to token t as in `parallax`. Directions in which the keys do not
    differ, up to 1e-12 of the largest variance, get no slope. With kernel weights p of
    `local_linear_regression` the two functions are the same for keys of equal norm.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    scale : float
    reg : float, default=0.0
        Ridge penalty of the slope, relative to the spread of the keys.
    state : array-like of shape (..., n_earlier, d), optional
        Keys of earlier tokens.

    Returns
    -------
    ndarray of shape (..., n_tokens, d)

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, a scale that is not above 0 or ``reg < 0``.

    References
    ----------
    EQUATIONS TR-9.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import local_linear_probe
    >>> local_linear_probe([[0], [0.5]], [[-1], [1]], scale=1.0).round(6).ravel()
    array([ 0.     , -0.04817])
    """
    q, k = check_sequences(q=q, k=k)
    scale, reg = check_positive(scale, "scale"), check_positive(reg, "reg", allow_zero=True)
    K, _, first = _after(None if state is None else (state, state), k, k)
    r = np.empty(k.shape)
    for t in range(k.shape[-2]):
        keys = K[..., : first + t + 1, :]
        p = _weights(q[..., t, :], keys, scale)
        mean = p[..., None, :] @ keys
        x = keys - mean
        spread = (p[..., None] * x).swapaxes(-1, -2) @ x
        spread += reg * np.trace(spread, axis1=-2, axis2=-1)[..., None, None] * np.eye(k.shape[-1])
        inverse = np.linalg.pinv(spread, rcond=1e-12, hermitian=True)
        r[..., t, :] = ((mean - q[..., t, None, :]) @ inverse)[..., 0, :]
    return r


def _weights(q: Array, keys: Array, scale: float) -> Array:
    """Return the softmax weights of the keys for one query."""
    logits = scale * (keys @ q[..., None])[..., 0]
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _after(
    state: tuple[ArrayLike, ArrayLike] | None, k: Array, v: Array
) -> tuple[Array, Array, int]:
    """Return all keys and values, and the number of earlier ones."""
    if state is None:
        return k, v, 0
    n = np.shape(state[0])[-2] if np.ndim(state[0]) > 1 else 1
    K, V = (
        check_array_of(x, "state", (*new.shape[:-2], n, new.shape[-1]))
        for x, new in zip(state, (k, v), strict=True)
    )
    return np.concatenate([K, k], axis=-2), np.concatenate([V, v], axis=-2), n
