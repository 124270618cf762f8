"""Total variation of signals, solved directly."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_lam, check_matrix
from ..kernels.total_variation import denoise_rows
from ..solution import Solution, certified
from .problem import default_tol


def signal_variation(signals: ArrayLike, *, lam: ArrayLike) -> Solution:
    """Denoise signals by their total variation, each row apart.

    ::

        min_u  1/2 |u - f|^2 + lam sum_i |u_(i+1) - u_i|

    The solution is constant on segments. Dynamic programming finds them in O(n) operations, and on
    each u is the mean of f, plus lam divided by the length for each neighbouring segment that is
    higher, and minus this for each that is lower.

    Parameters
    ----------
    signals : array-like of shape (n_signals, n)
    lam : array-like broadcastable to (n_signals,)
        Weight > 0.

    Returns
    -------
    Solution
        `coef` is u, of the shape and dtype of the signals, and `dual` has shape (n_signals, n - 1):
        the running sums of u - f, clipped to [-lam, lam]. The gap is
        ``(primal - dual) / |f - mean f|^2``, so that ``1/2 |u - u*|^2 <= gap |f - mean f|^2``.

    Raises
    ------
    ValueError
        On NaN, infinity or a lam that is not positive.

    References
    ----------
    Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation" (2013);
    EQUATIONS FE-5.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import signal_variation
    >>> signal_variation([[0.0, 0.0, 1.0, 1.0]], lam=0.1).coef
    array([[0.05, 0.05, 0.95, 0.95]])
    """
    checked = check_matrix(signals, "signals")
    weights = check_lam(lam, len(checked))
    f = np.ascontiguousarray(checked, dtype=np.float64)
    level = f[:, :1]  # the solution moves with it
    u = np.empty_like(f)
    denoise_rows(f - level, weights, u)
    rows = Segments(u)
    u = rows.spread((rows.sums(f - level) + weights[rows.row] * rows.pushes) / rows.sizes) + level
    tol = default_tol(None, checked.dtype)
    return certified(u, lambda u: _certify(u, f, weights), dtype=checked.dtype, tol=tol, n_iter=1)


class Segments:
    """Segments on which rows are constant, in order of rows and samples.

    Attributes
    ----------
    row : ndarray of shape (n_segments,)
    sizes : ndarray of shape (n_segments,)
    pushes : ndarray of shape (n_segments,)
        How many of the neighbouring segments are higher, less how many are lower.
    """

    def __init__(self, u: Array) -> None:
        jumps = np.sign(np.diff(u, axis=1, prepend=u[:, :1], append=u[:, -1:]))
        starts = jumps[:, :-1] != 0
        starts[:, 0] = True
        self._first = np.flatnonzero(starts)
        self._shape = u.shape
        self.row = self._first // u.shape[1]
        self.sizes = np.diff(self._first, append=u.size)
        self.pushes = self.sums(np.diff(jumps, axis=1))

    def sums(self, x: Array) -> Array:
        """Return the sum of x over each segment."""
        return np.add.reduceat(x.ravel(), self._first) if len(self._first) else np.empty(0)

    def spread(self, values: Array) -> Array:
        """Return each segment's value at all of its samples."""
        return np.repeat(values, self.sizes).reshape(self._shape)


def _certify(u: Array, f: Array, lam: Array) -> tuple[Array, Array, Array]:
    """Return objective, relative gap and dual point of each row, for any u."""
    sums = np.cumsum(u - f, axis=1)[:, :-1]
    p = sums.clip(-lam[:, None], lam[:, None])
    residual = u - f - np.diff(p, axis=1, prepend=0, append=0)
    responses = np.diff(u, axis=1)
    penalty = lam * np.abs(responses).sum(axis=1)
    objective = ((u - f) ** 2).sum(axis=1) / 2 + penalty
    gap = (residual**2).sum(axis=1) / 2 + penalty - (responses * p).sum(axis=1)
    energy = ((f - f.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return objective, gap / np.where(energy > 0, energy, 1), p
