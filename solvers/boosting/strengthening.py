"""SOS boosting: strengthen the signal, operate the filter, subtract the previous estimate."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from .filters import Callback, Filter, bind, check_signal, iterate


def sos_boosting(
    filter: Filter,
    y: ArrayLike,
    *,
    n_iter: int,
    rho: float = 1.0,
    tau: float = 1.0,
    callback: Callback | None = None,
) -> Array:
    """Filter the observation plus the last estimate, and subtract the estimate again.

    ::

        u_0 = 0,     u_{k+1} = tau f(y + rho u_k) - (tau rho + tau - 1) u_k

    A fixed point satisfies ``(1 + rho) u = f(y + rho u)`` for any tau. For a linear filter
    ``f = A`` it is ``u = (I + rho (I - A))^-1 A y``. The response to an eigenvalue mu is then
    ``mu / (1 + rho (1 - mu))``. For mu in ``(0, 1)`` this is less than mu, so that the same filter
    smooths more. A step multiplies the error by ``1 - tau (1 + rho (1 - mu))``. For mu in
    ``[0, 1]`` the iteration converges if ``tau < 2 / (1 + rho (1 - mu_min))``; with the defaults it
    converges if all mu are in ``(0, 1]``. `sos_tau_max` gives the limit of tau.

    Parameters
    ----------
    filter : array-like or sparse array of shape (n_samples, n_samples), or callable
        The matrix A, or the function f, which need not be linear.
    y : array-like of shape (n_samples, n_values), or an image for a callable
        The observation. A callable gets and returns arrays of this shape, which may also be
        (height, width) or have three dimensions. For a matrix, an image must have one row for each
        pixel.
    n_iter : int
        Number of iterations >= 0.
    rho : float, default=1.0
        Weight >= 0 of the estimate that is added to the observation; 0 is the plain filter.
    tau : float, default=1.0
        Relaxation > 0. It changes the speed and range of convergence, but not the fixed point.
    callback : callable, optional
        Called as ``callback(k, u_k)`` for k = 0 to n_iter; must not write into u_k.

    Returns
    -------
    ndarray of the shape of `y`
        float32 if y and the matrix are, else float64.

    Raises
    ------
    ValueError
        If a matrix is not square or does not fit y, an entry is not finite, a callable returns
        another shape, complex numbers, NaN or infinity, the iteration diverges until it overflows,
        ``n_iter < 0``, ``rho < 0`` or ``tau <= 0``.

    References
    ----------
    Romano and Elad, "Boosting of image denoising algorithms" (2015).

    Examples
    --------
    >>> from twinsolve.solvers import sos_boosting
    >>> A = [[0.75, 0.25], [0.25, 0.75]]
    >>> sos_boosting(A, [[0.0], [1.0]], n_iter=60).round(6)
    array([[0.333333],
           [0.666667]])
    """
    rho = check_positive(rho, "rho", allow_zero=True)
    tau = check_positive(tau, "tau")
    f, y = bind(filter, check_signal(y, "y"), "filter")
    previous = tau * rho + tau - 1
    return iterate(
        lambda k, u: tau * f(y + rho * u) - previous * u,
        np.zeros_like(y),
        n_iter,
        callback,
        "filter",
    )


def sos_tau_max(eigenvalues: ArrayLike, *, rho: float = 1.0) -> float:
    """Limit of tau below which SOS boosting converges, from the eigenvalues of the filter.

    ::

        tau_max = min_mu 2 Re(1 / s),     s = 1 + rho (1 - mu)

    over the eigenvalues mu. For ``0 < tau < tau_max`` each ``|1 - tau s| < 1``. If some
    ``Re(s) <= 0``, no tau converges and the result is 0.

    Parameters
    ----------
    eigenvalues : array-like of shape (n_eigenvalues,)
        Eigenvalues of the matrix of the filter, real or complex.
    rho : float, default=1.0
        As in `sos_boosting`.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the eigenvalues are not finite, there are none, or ``rho < 0``.

    References
    ----------
    Romano and Elad, "Boosting of image denoising algorithms" (2015), for real eigenvalues.

    Examples
    --------
    >>> from twinsolve.solvers.boosting import sos_tau_max
    >>> sos_tau_max([0.0, 1.0], rho=1.0)
    1.0
    """
    rho = check_positive(rho, "rho", allow_zero=True)
    try:
        mu = np.asarray(eigenvalues, dtype=np.complex128)
    except (TypeError, ValueError) as error:
        raise ValueError(f"eigenvalues: must be numbers, got {eigenvalues!r}") from error
    if mu.ndim != 1 or mu.size == 0 or not np.isfinite(mu).all():
        raise ValueError("eigenvalues: must be a list of at least one finite number")
    s = 1 + rho * (1 - mu)
    if (s.real <= 0).any():
        return 0.0
    return float(2 * (1 / s).real.min())
