"""Boosting of filters: smooth, smooth the residual, add. Samples are rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse, sparray

from .solution import Array, check_matrix

Smoother = Callable[[Array], Array]


def twicing(smoother: ArrayLike | sparray | Smoother, values: ArrayLike) -> Array:
    """Smooth `values`, smooth what the smoother left over, and add the two.

    ::

        A V + A (V - A V) = (2 A - A^2) V

    For a symmetric smoother the response to an eigenvalue mu is ``2 mu - mu^2 = 1 - (1 - mu)^2``:
    twicing keeps more of the high frequencies than A. If A is row stochastic, so is the sum of the
    rows of ``2 A - A^2``; entries may be negative.

    Parameters
    ----------
    smoother : array-like or sparse array of shape (n_samples, n_samples), or callable
        The matrix A, or the function ``values -> A @ values``, which need not be linear.
    values : array-like of shape (n_samples, n_values)

    Returns
    -------
    ndarray of shape (n_samples, n_values)

    Raises
    ------
    ValueError
        If the smoother is not square or does not fit the values, or an entry is not finite.

    References
    ----------
    Tukey, "Exploratory Data Analysis" (1977); EQUATIONS IF-TW. The chart printed in the image
    filtering paper adds ``F(Y - X)`` and so smooths twice (erratum E0-n); this is ``F(X - Y)``.

    Examples
    --------
    >>> from twinsolve.solvers import twicing
    >>> twicing([[0.75, 0.25], [0.25, 0.75]], [[0.0], [1.0]])
    array([[0.125],
           [0.875]])
    """
    values = check_matrix(values, "values")
    smooth = smoother if callable(smoother) else _as_function(smoother, len(values))
    once = np.asarray(smooth(values))
    if once.shape != values.shape:
        raise ValueError(
            f"smoother: returned shape {once.shape} for values of shape {values.shape}"
        )
    twice = once + np.asarray(smooth(values - once))
    if not np.isfinite(twice).all():
        raise ValueError("smoother: its result holds NaN or infinity")
    return twice


def _as_function(matrix: ArrayLike | sparray, n_samples: int) -> Smoother:
    A: Any = matrix if issparse(matrix) else check_matrix(matrix, "smoother")
    if A.shape != (n_samples, n_samples):
        raise ValueError(
            f"smoother: must be {n_samples} x {n_samples} to fit the values, got {A.shape}"
        )
    return lambda values: A @ values
