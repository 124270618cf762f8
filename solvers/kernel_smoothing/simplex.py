"""Maps to the probability simplex: projection, entmax, and certificates, also for softmax."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from ..inputs import Array, as_numbers

_NEWTON_STEPS = 100
_BISECTIONS = 64
_ROUNDING = 4e-15  # of the sum of a row; smaller steps do not end


def sparsemax(logits: ArrayLike) -> Array:
    """Euclidean projection of each row of `logits` on the probability simplex.

    ::

        p = argmin_p |p - z|^2   subject to   p >= 0,  sum_j p_j = 1
          = max(z - tau, 0),   tau = max_k (z_(1) + ... + z_(k) - 1) / k

    with z a row of `logits` and ``z_(1) >= z_(2) >= ...`` its sorted entries. The projection is the
    softmax with the squared norm in place of the entropy; entries that are 1 or more below the
    largest become exactly zero. It sorts each row, so it is exact and takes O(N log N) operations.
    It uses only differences from the largest entry, so it is stable for logits of any size.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        Real; ``-inf`` excludes an entry, which becomes 0. A row whose entries are all excluded
        becomes zeros, like a fully masked row of attention.

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
    # tau >= -1: entries below -1 become 0 in any case, and may be set to -1.
    heads = np.cumsum(-np.sort(-z.clip(-1), axis=-1), axis=-1)
    tau = ((heads - 1) / np.arange(1, z.shape[-1] + 1)).max(axis=-1, keepdims=True)
    # A Newton step in tau removes the rounding error of the long sums.
    excess = np.maximum(z - tau, 0).sum(axis=-1, keepdims=True) - 1
    tau += excess / (z > tau).sum(axis=-1, keepdims=True).clip(1)
    return np.maximum(z - tau, 0).astype(logits.dtype, copy=False)


def entmax(logits: ArrayLike, *, alpha: ArrayLike) -> Array:
    """Entmax of each row of `logits`: softmax at alpha = 1, `sparsemax` at alpha = 2.

    ::

        p = argmax_p p.z + H(p)   subject to   p >= 0,  sum_j p_j = 1,
        H(p) = sum_j (p_j - p_j^alpha) / (alpha (alpha - 1)),   at alpha = 1  -sum_j p_j log p_j
          = (1 + (alpha - 1) (z - c))_+^(1 / (alpha - 1)),      at alpha = 1  exp(z - c)

    with c such that the entries sum to one. Up to alpha = 2 their sum is convex in c and falls, so
    that Newton steps from the largest logit approach c from below, in some log N steps. Beyond, the
    sum falls but is not convex: c is found by bisection. For alpha > 1, entries that are ``1 /
    (alpha - 1)`` or more below the largest become exactly zero.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`.
    alpha : array-like broadcastable to (..., 1)
        >= 1.

    Returns
    -------
    ndarray of shape (..., N)
        float32 if the logits are, else float64; computed in float64.

    Raises
    ------
    ValueError
        If the logits hold NaN or ``+inf``, are not real, or have no entry, or alpha is out of
        range.

    References
    ----------
    Peters, Niculae and Martins, "Sparse sequence-to-sequence models" (2019); EQUATIONS EN-1.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import entmax
    >>> entmax([1.0, 0.0, -2.0], alpha=1.5).round(4)
    array([0.8307, 0.1693, 0.    ])
    """
    logits = _check_logits(logits)
    z, excess = _subtract_largest(logits), _check_alpha(alpha, logits)
    p = np.exp(_log_entmax(z, excess, *_find_shift(z, excess)))
    return (p / p.sum(axis=-1, keepdims=True).clip(0.5)).astype(logits.dtype, copy=False)


def entmax_gap(logits: ArrayLike, probabilities: ArrayLike, *, alpha: ArrayLike) -> Array:
    """Duality gap of the problem of `entmax`.

    With c as there and ``s = entmax(z)``, the gap of any p in the simplex is ::

        c - 1/alpha + sum_j s_j^alpha / alpha - p.z - H(p)

    It is at least ``|p - s|^2 / 2`` for alpha <= 2, and ``sum_j |p_j - s_j|^alpha / (alpha (alpha -
    1))`` beyond.

    For p outside the simplex, ``c (sum_j p_j - 1)`` and ``(1 - sum_j p_j) / alpha`` are added, so
    that the result is also zero exactly at s. It is infinite if an entry of p is negative. At
    alpha = 1 it is `entropic_gap`.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`. If p is not 0 at an excluded entry, the gap is infinite.
    probabilities : array-like of shape (..., N)
        The p to be checked, finite.
    alpha : array-like broadcastable to (..., 1)
        >= 1.

    Returns
    -------
    ndarray of shape (...)
        float64.

    Raises
    ------
    ValueError
        If the logits hold NaN or ``+inf``, the probabilities are not finite, shapes differ, or
        alpha is out of range.

    References
    ----------
    EQUATIONS EN-2.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import entmax_gap
    >>> entmax_gap([[0.0, 0.0], [0.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]], alpha=2.0)
    array([0.  , 0.25])
    """
    z, p = _check_pair(logits, probabilities)
    excess = _check_alpha(alpha, z)
    order = 1 + excess
    c, top = _find_shift(z, excess)
    # Entry by entry, so that nothing large cancels.
    log_p = np.log(np.where(p > 0, p, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        entropy = -p * np.where(excess > 0, np.expm1(excess * log_p) / excess, log_p) / order
    terms = np.exp(order * _log_entmax(z, excess, c, top)) / order - entropy - p / order
    terms -= _times_positive(p, z - c)
    return np.where((p < 0).any(axis=-1), np.inf, terms.sum(axis=-1).clip(0))


def _find_shift(z: Array, excess: Array) -> tuple[Array, Array]:
    """Return the c at which `entmax` sums to one, for rows whose largest entry is 0.

    The second result is ``1 - excess c`` without cancellation, where the excess is above 1.
    """
    c, top = np.zeros((*z.shape[:-1], 1)), np.ones((*z.shape[:-1], 1))
    steep = excess > 1
    if steep.any():
        top = np.where(steep, _bisect_top(z, excess), 1)
        c = np.where(steep, (1 - top) / excess.clip(1), 0)
    for _ in range(0 if steep.all() else _NEWTON_STEPS):
        log_p = _log_entmax(z, excess, c, top)
        slope = _slopes(log_p, excess).sum(axis=-1, keepdims=True)
        rise = (np.exp(log_p).sum(axis=-1, keepdims=True) - 1) / slope.clip(1)
        rise = np.where(steep, 0, rise)
        if not (rise > _ROUNDING).any():
            break
        c += rise.clip(0)
    return c, top


def _bisect_top(z: Array, excess: Array) -> Array:
    """Return ``1 - excess c``, which is ``max p^excess`` and so at least ``N^-excess``."""
    above = np.zeros((*z.shape[:-1], 1))
    below = -np.log(z.shape[-1]) * excess
    for _ in range(_BISECTIONS):
        middle = (above + below) / 2
        too_much = (
            np.exp(_log_entmax(z, excess.clip(1), above, np.exp(middle))).sum(-1)[..., None] > 1
        )
        above, below = np.where(too_much, middle, above), np.where(too_much, below, middle)
    return np.exp(below)


def _slopes(log_p: Array, excess: Array) -> Array:
    """Return ``p^(2 - alpha)`` on the support, and 0 off it."""
    inside = log_p > -np.inf
    return np.where(inside, np.exp((1 - excess) * np.where(inside, log_p, 0)), 0)


def _log_entmax(z: Array, excess: Array, c: Array, top: Array) -> Array:
    """Return the logarithm of ``(1 + excess (z - c))_+^(1 / excess)``; see `_find_shift`."""
    y = z - c
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.log((top + excess * z).clip(0)) / excess
        rows = np.where(excess > 0, np.log1p((excess * y).clip(-1)) / excess, y)
    return np.where(excess > 1, steep, rows)


def _check_alpha(alpha: ArrayLike, logits: Array) -> Array:
    """Return ``alpha - 1`` as a column."""
    excess = as_numbers(alpha, "alpha", np.float64) - 1
    if not ((excess >= 0) & (excess < np.inf)).all():
        raise ValueError(f"alpha: must be finite and >= 1, got {alpha!r:.60}")
    try:
        return np.broadcast_to(excess, (*logits.shape[:-1], 1))
    except ValueError as error:
        shape = (*logits.shape[:-1], 1)
        raise ValueError(f"alpha: must be broadcastable to {shape}, got {excess.shape}") from error


def simplex_projection_residual(logits: ArrayLike, probabilities: ArrayLike) -> Array:
    """Residual of the optimality conditions of the projection on the simplex.

    With z a row of `logits`, p one of `probabilities` and ``g = p - z`` half the gradient of
    ``|p - z|^2``, the residual is the largest of ::

        |sum_j p_j - 1|,   max_j (-p_j)+,   sum_j (p_j)+ (g_j - min_l g_l)

    It is zero exactly at ``sparsemax(z)``, where g is constant on the support of p and nowhere
    smaller. The last term is the duality gap of the linearised problem. If p lies in the simplex,
    this term bounds the squared distance ``|p - sparsemax(z)|^2``.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`. If p is not 0 at an excluded entry, the residual is infinite. If all
        entries are excluded, the sum of p must be 0.
    probabilities : array-like of shape (..., N)
        The p to be checked, finite.

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

    The program, with z a row of `logits` and p one of `probabilities`, is ::

        max_p z.p - sum_j p_j log p_j   subject to   p >= 0,  sum_j p_j = 1

    Its optimum is ``logsumexp(z)``, at ``s = softmax(z)``. The gap of any p in the simplex is ::

        logsumexp(z) - z.p + sum_j p_j log p_j = KL(p | s) >= |p - s|_1^2 / 2

    For p outside the simplex the result is the divergence
    ``sum_j p_j log(p_j / s_j) - p_j + s_j``, which is also zero exactly at s. It is infinite if an
    entry of p is negative.

    Parameters
    ----------
    logits : array-like of shape (..., N)
        As in `sparsemax`, divided by the temperature. If p is not 0 at an excluded entry, the gap
        is infinite.
    probabilities : array-like of shape (..., N)
        The p to be checked, finite.

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
    # The sum is at least 1, from the largest entry, unless all are excluded and it is 0.
    log_s = z - np.log(np.exp(z).sum(axis=-1, keepdims=True).clip(1))
    terms = _times_positive(p, np.log(np.where(p > 0, p, 1)) - log_s) - p + np.exp(log_s)
    return np.where((p < 0).any(axis=-1), np.inf, terms.sum(axis=-1).clip(0))


def _times_positive(p: Array, x: Array) -> Array:
    """Return ``p * x`` where p > 0, and 0 elsewhere, even if x is infinite there."""
    return p.clip(0) * np.where(p > 0, x, 0)


def _subtract_largest(logits: Array) -> Array:
    """Subtract from each row its largest entry, in float64."""
    z = logits.astype(np.float64)
    largest = z.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # a difference below the float range becomes -inf
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
    """Return x as a float array with at least one entry a row, whatever its number of axes."""
    x = as_numbers(x, name)
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
