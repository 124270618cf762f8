"""Maps to the probability simplex: the projection, and certificates for it and for softmax."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from ..solution import Array


def sparsemax(logits: ArrayLike) -> Array:
    """Euclidean projection of each row of `logits` on the probability simplex.

    ::

        p = argmin_p |p - z|^2   subject to   p >= 0,  sum_j p_j = 1
          = max(z - tau, 0),   tau = max_k (z_(1) + ... + z_(k) - 1) / k

    with ``z_(1) >= z_(2) >= ...``. It is what softmax is with the squared norm in the place of the
    entropy: entries that lie 1 or more under the largest one become exactly zero. Rows are sorted,
    so it is exact in O(N log N); only differences from the largest entry are used, so it is stable
    for logits of any size.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        Real; ``-inf`` excludes an entry, which becomes 0. A row without any other entry becomes
        zeros, as a fully masked row of attention does.

    Returns
    -------
    ndarray of shape (..., N)
        float32 if the logits are, else float64; computed in float64.

    Raises
    ------
    ValueError
        If the logits hold NaN or ``+inf``, are not real, or have no entry.

    References
    ----------
    Held, Wolfe and Crowder, "Validation of subgradient optimization" (1974); Martins and Astudillo,
    "From softmax to sparsemax" (2016); EQUATIONS SE-SPM.

    Examples
    --------
    >>> from twinsolve.solvers import sparsemax
    >>> sparsemax([[0.5, 0.0, -1.0], [3.0, 3.0, 0.0]])
    array([[0.75, 0.25, 0.  ],
           [0.5 , 0.5 , 0.  ]])
    """
    logits = _check_logits(logits)
    z = _subtract_largest(logits)
    # tau >= -1, so what lies lower than that may as well lie there.
    heads = np.cumsum(-np.sort(-z.clip(-1), axis=-1), axis=-1)
    tau = ((heads - 1) / np.arange(1, z.shape[-1] + 1)).max(axis=-1, keepdims=True)
    # A Newton step in tau takes away what the long sums have rounded.
    excess = np.maximum(z - tau, 0).sum(axis=-1, keepdims=True) - 1
    tau += excess / (z > tau).sum(axis=-1, keepdims=True).clip(1)
    return np.maximum(z - tau, 0).astype(logits.dtype, copy=False)


def simplex_projection_residual(logits: ArrayLike, probabilities: ArrayLike) -> Array:
    """Residual of the optimality conditions of the projection on the simplex.

    With ``g = p - z``, half the gradient of ``|p - z|^2``, the largest of ::

        |sum_j p_j - 1|,   max_j (-p_j)+,   sum_j (p_j)+ (g_j - min_l g_l)

    It is zero exactly at ``sparsemax(z)``: g is constant on the support of p and nowhere smaller.
    The last is the duality gap of the linearised problem; where p lies in the simplex, it bounds
    the squared distance ``|p - sparsemax(z)|^2``.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`. An excluded entry must be 0, else the residual is infinite; where all are
        excluded, the sum must be 0.
    probabilities : array-like of shape (..., N)
        The p to be judged, finite.

    Returns
    -------
    ndarray of shape (...)
        float64.

    Raises
    ------
    ValueError
        If the logits hold NaN or ``+inf``, the probabilities are not finite, or shapes differ.

    References
    ----------
    EQUATIONS SE-SPM.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import simplex_projection_residual
    >>> simplex_projection_residual([[0.5, 0.0], [0.5, 0.0]], [[0.75, 0.25], [0.5, 0.5]])
    array([0.  , 0.25])
    """
    z, p = _check_pair(logits, probabilities)
    g = p - z
    slack = g - g.min(axis=-1, keepdims=True, initial=np.finfo(np.float64).max)
    gap = _times_positive(p, slack).sum(axis=-1)
    excess = abs(p.sum(axis=-1) - (z > -np.inf).any(axis=-1))
    return np.maximum.reduce([excess, -p.min(axis=-1), gap])


def entropic_gap(logits: ArrayLike, probabilities: ArrayLike) -> Array:
    """Duality gap of the entropic linear program, whose solution is the softmax.

    ::

        max_p z.p - sum_j p_j log p_j   subject to   p >= 0,  sum_j p_j = 1

    has the optimum ``logsumexp(z)`` at ``s = softmax(z)``, and any p of the simplex the gap ::

        logsumexp(z) - z.p + sum_j p_j log p_j = KL(p | s) >= |p - s|_1^2 / 2

    Off the simplex it is the divergence ``sum_j p_j log(p_j / s_j) - p_j + s_j``, which is zero
    exactly at s too, and infinite if an entry is negative.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`, divided by the temperature. An excluded entry must be 0, else the gap is
        infinite.
    probabilities : array-like of shape (..., N)
        The p to be judged, finite.

    Returns
    -------
    ndarray of shape (...)
        float64.

    Raises
    ------
    ValueError
        If the logits hold NaN or ``+inf``, the probabilities are not finite, or shapes differ.

    References
    ----------
    Boyd and Vandenberghe, "Convex Optimization" (2004), section 3.3; EQUATIONS SE-4.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import entropic_gap
    >>> entropic_gap([[0.0, 0.0], [0.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]).round(6)
    array([0.      , 0.693147])
    """
    z, p = _check_pair(logits, probabilities)
    # The largest entry adds 1 to the sum, unless all are excluded and the sum is 0.
    log_s = z - np.log(np.exp(z).sum(axis=-1, keepdims=True).clip(1))
    terms = _times_positive(p, np.log(np.where(p > 0, p, 1)) - log_s) - p + np.exp(log_s)
    return np.where((p < 0).any(axis=-1), np.inf, terms.sum(axis=-1).clip(0))


def _times_positive(p: Array, x: Array) -> Array:
    """``p * x`` where p > 0 and else 0, also at infinite x."""
    return p.clip(0) * np.where(p > 0, x, 0)


def _subtract_largest(logits: Array) -> Array:
    """Each row less its largest entry, in float64: at most 0, whatever the size of the logits."""
    z = logits.astype(np.float64)
    largest = z.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # an entry too far below for a float lies at -inf
        return z - np.where(largest > -np.inf, largest, 0)


def _check_logits(logits: ArrayLike) -> Array:
    checked = _check_array(logits, "logits")
    if not (checked < np.inf).all():
        raise ValueError("logits: must be finite, or -inf for an excluded entry; got NaN or +inf")
    return checked


def _check_pair(logits: ArrayLike, probabilities: ArrayLike) -> tuple[Array, Array]:
    z, p = _subtract_largest(_check_logits(logits)), _check_array(probabilities, "probabilities")
    if z.shape != p.shape:
        raise ValueError(f"probabilities: must have the logits' shape {z.shape}, got {p.shape}")
    if not np.isfinite(p).all():
        raise ValueError("probabilities: must not hold NaN or infinity")
    return z, p.astype(np.float64)


def _check_array(x: ArrayLike, name: str) -> Array:
    try:
        checked: Array = check_array(
            x,
            dtype=[np.float64, np.float32],
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            input_name=name,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if checked.ndim == 0 or checked.shape[-1] == 0:
        raise ValueError(f"{name}: must have shape (..., N) with N >= 1, got {checked.shape}")
    return checked
