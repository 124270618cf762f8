"""Boosting by smoothing the residual of the smoother: twicing and L2 boosting."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from .filters import Callback, Filter, bind, check_signal, iterate


def twicing(smoother: Filter, values: ArrayLike) -> Array:
    """Smooth `values`, smooth the residual, and add the two.

    ::

        A V + A (V - A V) = (2 A - A^2) V

    with A the smoother and V the values. For a symmetric smoother the response to an eigenvalue mu
    is ``2 mu - mu^2 = 1 - (1 - mu)^2``: twicing keeps more of the high frequencies than A. If the
    rows of A sum to 1, so do the rows of ``2 A - A^2``, whose entries may be negative. Twicing is
    `l2_boosting` with two steps.

    Parameters
    ----------
    smoother : array-like or sparse array of shape (n_samples, n_samples), or callable
        The matrix A, or the function ``values -> A @ values``, which need not be linear.
    values : array-like of shape (n_samples, n_values), or an image for a callable
        A callable gets and returns arrays of this shape, which may also be (height, width) or have
        three dimensions. For a matrix, an image must have one row for each pixel.

    Returns
    -------
    ndarray of the shape of `values`
        float32 if the values and the matrix are, else float64.

    Raises
    ------
    ValueError
        If a matrix is not square or does not fit the values, or an entry is not finite; or if a
        callable returns another shape, complex numbers, NaN or infinity.

    References
    ----------
    Tukey, "Exploratory Data Analysis" (1977); EQUATIONS IF-TW. The chart in the image filtering
    paper adds ``F(Y - X)`` and so smooths twice (erratum E0-n); here it is ``F(X - Y)``.

    Examples
    --------
    >>> from twinsolve.solvers import twicing
    >>> twicing([[0.75, 0.25], [0.25, 0.75]], [[0.0], [1.0]])
    array([[0.125],
           [0.875]])
    """
    return l2_boosting(smoother, values, n_iter=2)


def l2_boosting(
    smoother: Filter,
    values: ArrayLike,
    *,
    n_iter: int,
    shrinkage: float = 1.0,
    callback: Callback | None = None,
) -> Array:
    """Add the smoothed residual to the fit repeatedly: generalised twicing.

    ::

        u_0 = 0,     u_{m+1} = u_m + nu S(y - u_m)

    A linear smoother ``S = A`` gives ``u_m = (I - (I - nu A)^m) y``: the response to an eigenvalue
    mu is ``1 - (1 - nu mu)^m``. For a diagonalisable A the iterates diverge for some y if and only
    if some ``|1 - nu mu| > 1``, which holds for every negative mu. If all eigenvalues are in
    ``[0, 1]``, as for a symmetric positive semidefinite smoother with ``|A|_2 <= 1``, the iterates
    tend to the projection of y on the range of A along its null space. The noise then returns:
    `n_iter` is the regularisation.

    Parameters
    ----------
    smoother : array-like or sparse array of shape (n_samples, n_samples), or callable
        The matrix A, or the function S, which need not be linear.
    values : array-like of shape (n_samples, n_values), or an image for a callable
        The observations y; shapes as for `twicing`.
    n_iter : int
        Number of steps m >= 0.
    shrinkage : float, default=1.0
        Step nu in ``(0, 1]``; smaller steps trace a finer path of fits.
    callback : callable, optional
        Called as ``callback(m, u_m)`` for m = 0 to n_iter; must not write into u_m.

    Returns
    -------
    ndarray of the shape of `values`
        float32 if the values and the matrix are, else float64.

    Raises
    ------
    ValueError
        As `twicing` does; if an iterate overflows, as it diverges; if ``n_iter < 0`` or the
        shrinkage is not in ``(0, 1]``.

    References
    ----------
    Bühlmann and Yu, "Boosting with the L2 loss: regression and classification" (2003); twicing is
    two steps with nu = 1: EQUATIONS IF-TW.

    Examples
    --------
    >>> from twinsolve.solvers import l2_boosting
    >>> A = [[0.75, 0.25], [0.25, 0.75]]
    >>> l2_boosting(A, [[0.0], [1.0]], n_iter=3)
    array([[0.0625],
           [0.9375]])
    """
    nu = check_positive(shrinkage, "shrinkage")
    if nu > 1:
        raise ValueError(f"shrinkage: must be in (0, 1], got {shrinkage!r}")
    smooth, y = bind(smoother, check_signal(values, "values"), "smoother")
    return iterate(
        lambda m, u: u + nu * smooth(y - u), np.zeros_like(y), n_iter, callback, "smoother"
    )
