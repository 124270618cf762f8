"""Linear attention with forgetting, token by token."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array
from .sequences import check_array_of, check_sequences, check_share


def recurrent_linear_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, forget: ArrayLike = 1.0, state: ArrayLike = 0.0
) -> tuple[Array, Array]:
    """Sum outer products of keys and values with forgetting, and read the sum with each query.

    ::

        S_t = Diag(a_t) S_{t-1} + k_t^T v_t,   o_t = q_t S_t

    S_t is one gradient step of length 1 from S = 0 on ``1/2 sum_i w_ti |v_i - k_i S|^2``, with
    ``w_ti`` the product of a over the tokens after i up to t. Nothing is scaled or normalised.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    forget : array-like, default=1.0
        a in [0, 1]; broadcasts to (..., n_tokens, d). One number a token has shape
        (..., n_tokens, 1).
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
    Katharopoulos et al. (2020); EQUATIONS TR-1.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import recurrent_linear_attention
    >>> out, state = recurrent_linear_attention([[1], [1]], [[1], [2]], [[3], [5]], forget=0.5)
    >>> out.ravel(), state
    (array([ 3. , 11.5]), array([[11.5]]))
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    a = check_share(forget, "forget", k.shape)
    S = check_array_of(state, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1]))
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        S = a[..., t, :, None] * S + k[..., t, :, None] * v[..., t, None, :]
        out[..., t, :] = (q[..., t, None, :] @ S)[..., 0, :]
    return out, S
