"""Ridge regression on the tokens so far, solved for every token: the Mesa layer."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer
from ..inputs import Array
from .sequences import check_array_of, check_sequences, check_share

Statistics = tuple[ArrayLike, ArrayLike]


def mesa(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    beta: ArrayLike,
    lam: ArrayLike,
    forget: ArrayLike = 1.0,
    state: Statistics = (0.0, 0.0),
) -> tuple[Array, tuple[Array, Array]]:
    """Solve a weighted ridge regression on the tokens so far, and read it with each query.

    ::

        H_t = a_t H_{t-1} + beta_t k_t^T k_t,   G_t = a_t G_{t-1} + beta_t k_t^T v_t
        o_t = q_t (H_t + Diag(lam))^-1 G_t

    From an empty state, ``(H_t + Diag(lam))^-1 G_t`` minimises
    ``sum_i w_ti beta_i |v_i - k_i S|^2 + tr S^T Diag(lam) S``, with ``w_ti`` the product of a over
    the tokens after i up to t.

    Parameters
    ----------
    q, k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    beta : array-like
        Weights of the tokens, 0 or more; broadcasts to (..., n_tokens).
    lam : array-like
        Penalties above 0; broadcasts to (..., d).
    forget : array-like, default=1.0
        a in [0, 1], one number a token; broadcasts to (..., n_tokens).
    state : pair of array-like, default=(0.0, 0.0)
        H and G before the first token; they broadcast to (..., d, d) and (..., d, e).

    Returns
    -------
    out : ndarray of shape (..., n_tokens, e)
        In float64. Row t contains token t.
    state : pair of ndarray of shape (..., d, d) and (..., d, e)
        H and G after the last token.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, an a outside [0, 1], a beta below 0 or a penalty
        that is not above 0.

    References
    ----------
    von Oswald et al. (2025), MesaNet; EQUATIONS TR-5.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import mesa
    >>> out, state = mesa([[1], [1]], [[1], [1]], [[4], [8]], beta=1.0, lam=2.0)
    >>> out.ravel().round(12), state
    (array([1.33333333, 3.        ]), (array([[2.]]), array([[12.]])))
    """
    q, k, v, steps, a, penalty, H, G = check_weighted(q, k, v, beta, lam, forget, state)
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        column = steps[..., t, None, None] * k[..., t, :, None]
        H = a[..., t, None, None] * H + column * k[..., t, None, :]
        G = a[..., t, None, None] * G + column * v[..., t, None, :]
        out[..., t, :] = (q[..., t, None, :] @ np.linalg.solve(H + penalty, G))[..., 0, :]
    return out, (H, G)


def mesa_by_cg(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    beta: ArrayLike,
    lam: ArrayLike,
    n_iter: int,
    forget: ArrayLike = 1.0,
    state: Statistics = (0.0, 0.0),
) -> tuple[Array, tuple[Array, Array]]:
    """Compute `mesa` with a fixed number of steps of conjugate gradients for each token.

    ::

        o_t = x_t G_t,   x_t (H_t + Diag(lam)) = q_t   by n_iter steps from x = 0

    No preconditioner. A step whose residual is exactly zero changes nothing. One step is linear
    attention times ``|q|^2 / (q A q^T)``, with ``A = H_t + Diag(lam)``. In exact arithmetic d steps
    are `mesa`; for equal penalties and ``state = 0`` so are t + 1 steps at token t.

    Parameters
    ----------
    n_iter : int
        Steps, 1 or more. The other parameters are those of `mesa`.

    Returns
    -------
    out, state
        As `mesa` returns them.

    Raises
    ------
    ValueError
        As `mesa` does, and if n_iter is not a whole number >= 1.

    References
    ----------
    Hestenes and Stiefel (1952); EQUATIONS TR-5c.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import mesa_by_cg
    >>> out, state = mesa_by_cg([[1], [1]], [[1], [1]], [[4], [8]], beta=1.0, lam=2.0, n_iter=1)
    >>> out.ravel().round(12)
    array([1.33333333, 3.        ])
    """
    q, k, v, steps, a, penalty, H, G = check_weighted(q, k, v, beta, lam, forget, state)
    check_integer(n_iter, "n_iter", 1)
    out = np.empty(v.shape)
    for t in range(k.shape[-2]):
        column = steps[..., t, None, None] * k[..., t, :, None]
        H = a[..., t, None, None] * H + column * k[..., t, None, :]
        G = a[..., t, None, None] * G + column * v[..., t, None, :]
        out[..., t, :] = (_solve_by_cg(H + penalty, q[..., t, None, :], n_iter) @ G)[..., 0, :]
    return out, (H, G)


def mesa_error_bound(
    q: ArrayLike, x: ArrayLike, H: ArrayLike, G: ArrayLike, lam: ArrayLike
) -> Array:
    """Bound of the error of an approximate `mesa`, from the residual of its linear system.

    ::

        |x G - q A^-1 G| <= |q - x A| |G|_2 / min(lam),   A = H + Diag(lam)

    It holds for every x, such as that of few steps of conjugate gradients.

    Parameters
    ----------
    q, x : array-like of shape (..., n, d)
        Queries, and what is taken for ``q A^-1``.
    H : array-like of shape (..., d, d)
        Symmetric and positive semidefinite, such as the first state of `mesa`.
    G : array-like of shape (..., d, e)
        The second state.
    lam : array-like
        Penalties above 0; broadcasts to (..., d).

    Returns
    -------
    ndarray of shape (..., n)

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a penalty that is not above 0.

    References
    ----------
    EQUATIONS TR-5b.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import mesa_error_bound
    >>> mesa_error_bound([[3.0]], [[0.9]], [[1.0]], [[4.0]], 2.0).round(12)
    array([0.6])
    """
    q, x = check_sequences(q=q, x=x)
    lead, d = q.shape[:-2], q.shape[-1]
    H = check_array_of(H, "H", (*lead, d, d))
    G = check_array_of(G, "G", (*lead, d, np.shape(G)[-1] if np.ndim(G) > 1 else 1))
    penalty = _check_penalty(lam, (*lead, d))
    residual = q - x @ H - x * penalty[..., None, :]
    size = np.linalg.norm(G, ord=2, axis=(-2, -1)) / penalty.min(axis=-1)
    return np.asarray(np.linalg.norm(residual, axis=-1) * size[..., None])


def _solve_by_cg(A: Array, b: Array, n_iter: int) -> Array:
    """Return x after `n_iter` steps of conjugate gradients from 0 on ``x A = b``, rows."""
    x, r, p = np.zeros_like(b), b, b
    rho = (r * r).sum(-1, keepdims=True)
    for _ in range(n_iter):
        pA = p @ A
        alpha = _divide(rho, (p * pA).sum(-1, keepdims=True))
        x, r = x + alpha * p, r - alpha * pA
        before, rho = rho, (r * r).sum(-1, keepdims=True)
        p = r + _divide(rho, before) * p
    return x


def _divide(above: Array, below: Array) -> Array:
    """Return the quotient, 0 where the divisor is 0: there the residual is zero already."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def check_weighted(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    lam: ArrayLike,
    forget: ArrayLike,
    state: Statistics,
) -> tuple[Array, ...]:
    """Return the checked arguments; penalties are diagonal matrices."""
    q, k, v = check_sequences(q=q, k=k, v=v)
    steps, a = (
        check_array_of(beta, "beta", k.shape[:-1]),
        check_share(forget, "forget", k.shape[:-1]),
    )
    penalty = _check_penalty(lam, (*k.shape[:-2], k.shape[-1]))
    if steps.min(initial=0) < 0:
        raise ValueError(f"beta: must be >= 0, got {steps.min():g}")
    square = (*k.shape[:-2], k.shape[-1], k.shape[-1])
    H = check_array_of(state[0], "state", square)
    G = check_array_of(state[1], "state", (*square[:-1], v.shape[-1]))
    return q, k, v, steps, a, penalty[..., None] * np.eye(k.shape[-1]), H, G


def _check_penalty(lam: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return penalties of this shape, if all are above 0."""
    penalty = check_array_of(lam, "lam", shape)
    if penalty.min(initial=1) <= 0:
        raise ValueError(f"lam: must be > 0, got {penalty.min():g}")
    return penalty
