"""Measures of the effect of filtering and boosting on the signal and on the noise."""

import math
import numbers

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from ..scales import frobenius_norm
from .filters import Filter, bind, check_signal


def signal_to_noise_ratio(signal: ArrayLike, noise: ArrayLike) -> float:
    """Ratio of the norms of signal and noise: ``SNR = |u| / |n|``, not in decibels.

    Parameters
    ----------
    signal : array-like of two or three dimensions
        The clean part u of ``y = u + n``.
    noise : array-like of the same shape
        The noise n.

    Returns
    -------
    float
        Infinite if the noise is zero. In decibels it is ``20 log10(SNR)``.

    Raises
    ------
    ValueError
        If the shapes differ, an entry is not finite, or signal and noise are both zero.

    References
    ----------
    Romano and Elad, "Boosting of image denoising algorithms" (2015); EQUATIONS IF-18.

    Examples
    --------
    >>> from twinsolve.solvers.boosting import signal_to_noise_ratio
    >>> signal_to_noise_ratio([[3.0, 4.0]], [[0.0, 2.0]])
    2.5
    """
    u, n = _check_parts(signal, noise)
    size = max(np.abs(u).max(), np.abs(n).max())
    if size == 0:
        raise ValueError("signal: must not be zero if the noise is, as the ratio is undefined")
    above, below = frobenius_norm(u / size), frobenius_norm(n / size)
    return above / below if below > 0 else math.inf


def method_noise(filter: Filter, y: ArrayLike) -> Array:
    """Part of the input that a filter removes: ``y - f(y)``.

    For a good filter it looks like noise. Structure in it is signal that was lost; `twicing`
    smooths it and adds it back.

    Parameters
    ----------
    filter : array-like or sparse array of shape (n_samples, n_samples), or callable
        As for `twicing`.
    y : array-like of shape (n_samples, n_values), or an image for a callable
        As for `twicing`.

    Returns
    -------
    ndarray of the shape of `y`
        float32 if y and the matrix are, else float64.

    Raises
    ------
    ValueError
        If a matrix is not square or does not fit y, an entry is not finite, or a callable returns
        another shape, complex numbers, NaN or infinity.

    References
    ----------
    Buades, Coll and Morel, "A review of image denoising algorithms, with a new one" (2005).

    Examples
    --------
    >>> from twinsolve.solvers.boosting import method_noise
    >>> method_noise([[0.75, 0.25], [0.25, 0.75]], [[0.0], [1.0]])
    array([[-0.25],
           [ 0.25]])
    """
    f, y = bind(filter, check_signal(y, "y"), "filter")
    return y - _refuse_nonfinite(f(y))


def residual_noise_share(filter: Filter, signal: ArrayLike, noise: ArrayLike) -> float:
    """Share of the noise that a filter lets through: ``g = |f(u + n) - f(u)| / |n|``.

    For a linear filter this is ``|A n| / |n|`` for any signal, so a matrix is applied to the noise
    only. A callable is applied to ``u + n`` and to u. The error of the difference is then rounding
    of the size of ``f(u)``, relative to ``|n|``.

    Parameters
    ----------
    filter : array-like or sparse array of shape (n_samples, n_samples), or callable
        As for `twicing`.
    signal : array-like of shape (n_samples, n_values), or an image for a callable
        The clean signal u.
    noise : array-like of the same shape
        The noise n, not zero.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As `method_noise` does; if the shapes differ or the noise is zero.

    References
    ----------
    EQUATIONS IF-18, where it is g.

    Examples
    --------
    >>> from twinsolve.solvers.boosting import residual_noise_share
    >>> residual_noise_share([[0.5, 0.5], [0.5, 0.5]], [[2.0], [2.0]], [[1.0], [-1.0]])
    0.0
    """
    u, n = _check_parts(signal, noise)
    if not n.any():
        raise ValueError("noise: must not be zero, as its share is then undefined")
    f, u = bind(filter, u, "filter")
    if callable(filter):
        return frobenius_norm(
            _refuse_nonfinite(f(u + n)) - _refuse_nonfinite(f(u))
        ) / frobenius_norm(n)
    n = n / np.abs(n).max()
    return frobenius_norm(_refuse_nonfinite(f(n))) / frobenius_norm(n)


def snr_gain_bound(signal_share: float, cosine: float, noise_share: float) -> float:
    """Lower bound on ``SNR(y + y^) / SNR(y)``, the gain by adding the filtered y^ to y.

    ::

        sqrt(1 + 2 a b + a^2) / (1 + g)

    for ``y = u + n`` and ``y^ = u^ + n^`` with ``|u^| = a |u|``, ``cos(u, u^) >= b`` and
    ``|n^| = g |n|``. The bound is attained if the cosine is b and n^ is parallel to n. It exceeds 1
    if and only if ``2 a b + a^2 > 2 g + g^2``.

    Parameters
    ----------
    signal_share : float
        a >= 0.
    cosine : float
        b in ``[-1, 1]``.
    noise_share : float
        g >= 0; see `residual_noise_share`.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    EQUATIONS IF-18. The paper states a gain for ``min(a, b) > g``, which is not sufficient (erratum
    E0-d), after a step that prints ``1 + g`` for ``1 + g^2`` (E0-e).

    Examples
    --------
    >>> from twinsolve.solvers.boosting import snr_gain_bound
    >>> round(snr_gain_bound(0.5, 0.5, 0.4), 3)
    0.945
    """
    a = check_positive(signal_share, "signal_share", allow_zero=True)
    g = check_positive(noise_share, "noise_share", allow_zero=True)
    if not (isinstance(cosine, numbers.Real) and -1 <= cosine <= 1):
        raise ValueError(f"cosine: must be a number in [-1, 1], got {cosine!r}")
    return math.hypot(1 - a, math.sqrt(2 * a * (1 + cosine))) / (1 + g)


def _check_parts(signal: ArrayLike, noise: ArrayLike) -> tuple[Array, Array]:
    """Return signal and noise in float64, after a check that their shapes agree."""
    u, n = check_signal(signal, "signal"), check_signal(noise, "noise")
    if n.shape != u.shape:
        raise ValueError(f"noise: has shape {n.shape}, but the signal has {u.shape}")
    return u.astype(np.float64), n.astype(np.float64)


def _refuse_nonfinite(result: Array) -> Array:
    if not np.isfinite(result).all():
        raise ValueError("filter: its result holds NaN or infinity")
    return result
