"""Passes over the same tokens: Kaczmarz's method."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from .delta import delta_rule
from .sequences import check_array_of, check_sequences


def kaczmarz_passes(
    k: ArrayLike,
    v: ArrayLike,
    *,
    n_passes: int,
    relaxation: float = 1.0,
    state: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Solve ``K S = V`` by passes of the delta rule over its rows.

    Steps are ``beta = relaxation / |k|^2``. From S = 0 these are sweeps of successive
    over-relaxation on ``K K^T y = V`` with ``S = K^T y``, those of Gauss and Seidel for
    ``relaxation=1``. If K has full row rank, S tends to ``S_0 + K^+ (V - K S_0)``, the nearest
    solution. The iteration does not tend to least squares where no S solves the system. Zero keys
    change nothing.

    Parameters
    ----------
    k : array-like of shape (..., n_tokens, d)
    v : array-like of shape (..., n_tokens, e)
    n_passes : int
        1 or more.
    relaxation : float, default=1.0
        In (0, 2).
    state : array-like, default=0.0
        S_0; broadcasts to (..., d, e).

    Returns
    -------
    state : ndarray of shape (..., d, e)
        S after the last pass, in float64.
    residuals : ndarray of shape (n_passes, ...)
        ``|K S - V|_F`` after each pass.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, a relaxation outside (0, 2) or no pass.

    References
    ----------
    Kaczmarz (1937); Björck and Elfving (1979); EQUATIONS TR-2s.

    Examples
    --------
    >>> from twinsolve.solvers.online_regression import kaczmarz_passes
    >>> state, residuals = kaczmarz_passes([[1, 0], [1, 1]], [[1], [3]], n_passes=40)
    >>> state.ravel().round(6), residuals[-1] < 1e-6
    (array([1., 2.]), np.True_)
    """
    k, v = check_sequences(k=k, v=v)
    check_integer(n_passes, "n_passes", 1)
    if check_positive(relaxation, "relaxation") >= 2:
        raise ValueError(f"relaxation: must be in (0, 2), got {relaxation:g}")
    S = check_array_of(state, "state", (*k.shape[:-2], k.shape[-1], v.shape[-1]))
    norms = (k**2).sum(axis=-1)
    beta = np.divide(relaxation, norms, out=np.zeros(norms.shape), where=norms > 0)
    residuals = []
    for _ in range(n_passes):
        _, S = delta_rule(k, k, v, beta=beta, state=S)
        residuals.append(np.linalg.norm(k @ S - v, axis=(-2, -1)))
    return S, np.stack(residuals)
