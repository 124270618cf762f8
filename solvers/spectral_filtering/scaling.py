"""Equalisers that restore high frequencies: AttnScale on the matrix, FeatScale on the features."""

import math
import numbers

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix, check_one_or_each, check_row_stochastic
from .frequencies import split_frequencies


def high_pass_scale(A: ArrayLike, omega: float, *, visible: ArrayLike | None = None) -> Array:
    """Attention matrix with its high-pass part scaled by ``1 + omega`` (AttnScale).

    ::

        A^ = 1 1^T / N + (1 + omega) (A - 1 1^T / N) = (1 + omega) A - omega 1 1^T / N

    ``1 1^T / N`` is the best approximation of A by a pure DC filter. The rows of A^ sum to 1;
    entries may be negative. Without `visible`, A^ equals ``A (I + omega H)``, with H as in
    `split_frequencies`: it scales the high frequencies of the values before A smooths them. The
    eigenvalues of a square A^ are then 1 and ``(1 + omega) mu`` for every other eigenvalue mu of A.

    Parameters
    ----------
    A : array-like of shape (n_queries, n_keys)
        Rows sum to 1, up to rounding in its dtype, which is corrected.
    omega : float
        0 gives A itself, -1 the uniform filter.
    visible : array-like of bool, optional
        True where a query may attend to a key, broadcast to the shape of A: a causal mask, or one
        row for padded keys. Row i of ``1 1^T / N`` is then uniform over the keys visible to query
        i, so that rows still sum to 1 and hidden keys stay hidden.

    Returns
    -------
    ndarray of shape (n_queries, n_keys)
        float32 if A is, else float64.

    Raises
    ------
    ValueError
        On entries that are not finite, rows that do not sum to 1, a mask that is not boolean, or
        weight on a hidden key.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022); EQUATIONS AO-7 to AO-9 and AO-L8.

    Examples
    --------
    >>> from twinsolve.solvers import high_pass_scale
    >>> high_pass_scale([[0.75, 0.25], [0.5, 0.5]], 0.5)
    array([[0.875, 0.125],
           [0.5  , 0.5  ]])
    """
    A, dtype = check_row_stochastic(A, "A")
    omega = _check_finite(omega, "omega")
    uniform = _uniform_rows(visible, A.shape)
    if visible is not None and A[uniform == 0].any():
        raise ValueError("visible: must be True where A has weight, got weight on a hidden key")
    return ((1 + omega) * A - omega * uniform).astype(dtype, copy=False)


def high_pass_values(
    smoothed: ArrayLike, values: ArrayLike, omega: float, *, visible: ArrayLike | None = None
) -> Array:
    """AttnScale of the output of any smoother, without its matrix.

    ::

        (1 + omega) A V - omega mean(V) = high_pass_scale(A, omega) @ V

    Parameters
    ----------
    smoothed : array-like of shape (n_queries, n_values)
        Output A V of the smoother.
    values : array-like of shape (n_keys, n_values)
        Its input V.
    omega : float
        0 changes nothing.
    visible : array-like of bool, optional
        As in `high_pass_scale`, of shape (n_queries, n_keys) or broadcast to it. The mean is then
        over the values visible to each query.

    Returns
    -------
    ndarray of shape (n_queries, n_values)
        float32 if both inputs are, else float64.

    Raises
    ------
    ValueError
        On bad shapes, entries that are not finite, or a query that sees no key.

    References
    ----------
    EQUATIONS AO-7 to AO-9, FF-1 and FF-1c.

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import high_pass_values
    >>> high_pass_values([[2.0], [4.0]], [[0.0], [8.0]], 0.5)
    array([[1.],
           [4.]])
    """
    values = check_matrix(values, "values")
    smoothed = check_matrix(smoothed, "smoothed", n_features=values.shape[1])
    omega = _check_finite(omega, "omega")
    dtype = np.result_type(smoothed, values)
    if visible is None:
        mean = values.mean(axis=0, dtype=np.float64)
    else:
        mean = _uniform_rows(visible, (len(smoothed), len(values))) @ values
    return ((1 + omega) * smoothed - omega * mean).astype(dtype, copy=False)


def scale_frequencies(Y: ArrayLike, s: float | ArrayLike, t: float | ArrayLike) -> Array:
    """Scale the mean and the high frequencies of each feature separately (FeatScale).

    ::

        Y + s * DC[Y] + t * HC[Y] = (1 + s) * DC[Y] + (1 + t) * HC[Y]

    with DC and HC of `split_frequencies`. For ``s = 0, t = omega`` and ``Y = A V`` this is
    ``(I + omega H) A V``, while AttnScale is ``A (I + omega H) V``. The two agree if A is doubly
    stochastic, but not in general.

    Parameters
    ----------
    Y : array-like of shape (n_tokens, n_features)
        Output of attention.
    s, t : float or array-like of shape (n_features,)
        Weights of the mean and of the high frequencies; 0 is no change.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)
        float32 if Y is, else float64.

    Raises
    ------
    ValueError
        On bad shapes or entries that are not finite.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022); EQUATIONS AO-10 to AO-12.

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import scale_frequencies
    >>> scale_frequencies([[1.0], [5.0]], 0.0, [0.5])
    array([[0.],
           [6.]])
    """
    Y = check_matrix(Y, "Y")
    dc, hc = split_frequencies(Y)
    s = check_one_or_each(s, "s", Y.shape[1], "feature")
    t = check_one_or_each(t, "t", Y.shape[1], "feature")
    scaled = (1 + s) * dc + (1 + t) * hc
    return scaled.astype(Y.dtype, copy=False)


def _uniform_rows(visible: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """Return rows that are uniform over the visible keys."""
    if visible is None:
        return np.full(shape, 1 / shape[1])
    try:
        mask = np.asarray(visible)
    except ValueError as error:
        raise ValueError("visible: must be an array, got rows of unequal length") from error
    if mask.dtype != bool:
        raise ValueError(f"visible: must be boolean, got {mask.dtype}")
    try:
        mask = np.broadcast_to(mask, shape)
    except ValueError as error:
        raise ValueError(f"visible: must broadcast to {shape}, got {mask.shape}") from error
    counts = mask.sum(axis=1, keepdims=True)
    if (counts == 0).any():
        raise ValueError(f"visible: query {int(counts.argmin())} sees no key")
    return mask / counts


def _check_finite(value: float, name: str) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}: must be a finite number, got {value!r}")
    return float(value)
