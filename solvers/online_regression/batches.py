"""Gradient steps on batches of tokens: TTT with a linear model."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer
from ..inputs import Array
from .sequences import check_array_of, check_sequences


def mini_batch_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    eta: ArrayLike,
    batch_size: int,
    state: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Correct a linear map by gradient steps at the state before each batch, and read it.

    ::

        S_t = S_{t-1} + eta_t k_t^T (v_t - k_t S_b),   o_t = q_t S_t

    S_b is the state before the batch that holds token t. Batches have `batch_size` tokens; the last
    may be shorter. Batches of one token are `delta_rule`. One batch of all tokens from S = 0 with
    eta = 1 is `recurrent_linear_attention`. A batch with keys K and one eta does not enlarge its
    errors for ``eta |K|_2^2 <= 2``.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    eta : array-like
        Steps; broadcasts to (..., n_tokens).
    batch_size : int
    state : array-like, default=0.0
        S before the first token, which begins a batch; broadcasts to (..., d, e).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : ndarray of shape (..., d, e)
        S after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a batch size below 1.

    References
    ----------
    Sun et al. (2024), *Learning to (learn at test time)*; EQUATIONS TR-7.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import mini_batch_rule
    >>> one = [[1], [1]]
    >>> mini_batch_rule(one, one, [[4], [8]], eta=0.5, batch_size=2)[0].ravel()
    array([2., 6.])
    """
    q, k, v = check_sequences(q=q, k=k, v=v)
    steps = check_array_of(eta, "eta", k.shape[:-1])
    check_integer(batch_size, "batch_size", 1)
    S = check_array_of(state, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1]))
    before, out = S, np.empty(v.shape)
    for t in range(k.shape[-2]):
        if t % batch_size == 0:
            before = S
        error = v[..., t, None, :] - k[..., t, None, :] @ before
        S = S + steps[..., t, None, None] * k[..., t, :, None] * error
        out[..., t, :] = (q[..., t, None, :] @ S)[..., 0, :]
    return out, S
