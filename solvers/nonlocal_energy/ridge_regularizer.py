"""Denoising by a weakly convex ridge regulariser with a convex total energy."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix
from ..solution import MORE, Solution, certified, warn_unless_converged
from .filter_banks import FilterBank, Potentials
from .problem import default_tol


class ConvexRidge(NamedTuple):
    """``F(u) = 1/2 |u - f|^2 + lam sum_i psi_i(W_i u)`` in float64, with its proved convexity.

    Attributes
    ----------
    f : ndarray of shape (height, width)
    bank : FilterBank
    potentials : Potentials
    lam : float
    convexity, smoothness : float
        ``convexity |v|^2 <= v^T F'' v <= smoothness |v|^2`` wherever F'' exists.
    """

    f: Array
    bank: FilterBank
    potentials: Potentials
    lam: float
    convexity: float
    smoothness: float

    def objective(self, u: Array) -> float:
        return float(((u - self.f) ** 2).sum()) / 2 + self.lam * self.potentials.value(self.bank(u))

    def gradient(self, u: Array) -> Array:
        return u - self.f + self.lam * self.bank.adjoint(self.potentials.influence(self.bank(u)))

    def certify(self, u: Array) -> tuple[Array, Array, Array]:
        """Objective, certified root mean square distance, and gradient, for `certified`."""
        gradient = self.gradient(u)
        distance = np.linalg.norm(gradient) / self.convexity / np.sqrt(u.size)
        return np.asarray(self.objective(u)), np.asarray(distance), gradient


def convex_ridge(
    f: ArrayLike, bank: FilterBank, potentials: Potentials, *, lam: float
) -> ConvexRidge:
    """Return the problem ``min_u 1/2 |u - f|^2 + lam sum_i psi_i(W_i u)``, if it is proved convex.

    Let ``-rho_i <= psi_i'' <= mu_i``. In the order of symmetric matrices, for images of every
    size, ::

        F'' >= I - lam sum_i rho_i W_i^T W_i >= convexity  = 1 - lam |sum_i rho_i W_i^T W_i|_2
        F'' <= I + lam sum_i  mu_i W_i^T W_i <= smoothness = 1 + lam |sum_i  mu_i W_i^T W_i|_2

    with upper bounds of the norms (`FilterBank.norm_bound`). For ``|W|_2 = 1`` and equal rho_i, the
    convexity is at least ``1 - lam rho``.

    Parameters
    ----------
    f : array-like of shape (height, width)
    bank : FilterBank
        The operators W_i.
    potentials : Potentials
        The potentials psi_i.
    lam : float
        Weight > 0 of the potentials.

    Returns
    -------
    ConvexRidge

    Raises
    ------
    ValueError
        If the convexity is not positive, or on NaN, infinity, or ``lam <= 0``.

    References
    ----------
    Goujon, Neumayer and Unser, "Learning weakly convex regularizers for convergent image
    reconstruction algorithms" (2024); EQUATIONS FE-3. Their code allows lam up to the square root
    of the convex limit (erratum E10-l).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import (
    ...     FilterBank, Potentials, convex_ridge, dct_filters)
    >>> huber = Potentials(np.ones((3, 1)), np.ones((3, 1)))
    >>> problem = convex_ridge(np.eye(3), FilterBank(dct_filters(2)), huber, lam=0.5)
    >>> problem.convexity, round(problem.smoothness, 2)
    (1.0, 3.0)
    """
    f = check_matrix(f, "f").astype(np.float64, copy=False)
    lam = check_positive(lam, "lam")
    least, largest = potentials.curvatures()
    convexity = 1 - lam * bank.norm_bound(-least)
    if convexity <= 0:
        raise ValueError(
            "lam: the energy is proved convex only if lam |sum_i rho_i W_i^T W_i|_2 < 1, "
            f"got {1 - convexity:.4g} at lam={lam:.4g}"
        )
    smoothness = 1 + lam * bank.norm_bound(largest)
    return ConvexRidge(f, bank, potentials, lam, convexity, smoothness)


def minimize_convex_ridge(
    f: ArrayLike,
    bank: FilterBank,
    potentials: Potentials,
    *,
    lam: float,
    tol: float | None = None,
    max_iter: int = 2000,
) -> Solution:
    """Minimise the energy of a convex ridge regulariser: denoise the image f.

    ::

        min_u  F(u) = 1/2 |u - f|^2 + lam sum_i psi_i(W_i u)

    See `convex_ridge` for the conditions. Accelerated gradient steps of length ``1 / smoothness``
    are run until the certificate is reached, and restarted where they increase the energy.

    Parameters
    ----------
    f, bank, potentials, lam
        As for `convex_ridge`.
    tol : float, optional
        Largest certified distance `gap`, in grey levels. None is 1e-8, and 1e-5 where f is float32.
    max_iter : int, default=2000
        Largest number of gradient evaluations.

    Returns
    -------
    Solution
        `coef` is u, of the shape and dtype of f; `objective` is F(u); `dual` is the gradient. The
        gap bounds the root mean square distance from the minimiser u*::

            |u - u*| / sqrt(n_pixels)  <=  gap = |grad F(u)| / (convexity sqrt(n_pixels))

        It bounds the energy too: ``F(u) - F(u*) <= convexity n_pixels gap^2 / 2``.

    Raises
    ------
    ValueError
        As `convex_ridge`, or if `tol` or `max_iter` is not positive.

    Warns
    -----
    ConvergenceWarning
        If `tol` is missed.

    References
    ----------
    EQUATIONS FE-3; O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes"
    (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import (
    ...     FilterBank, Potentials, dct_filters, minimize_convex_ridge)
    >>> huber = Potentials(np.full((3, 1), 10.0), np.ones((3, 1)))
    >>> solution = minimize_convex_ridge(np.eye(2), FilterBank(dct_filters(2)), huber, lam=1.0)
    >>> solution.coef
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    dtype = check_matrix(f, "f").dtype
    problem = convex_ridge(f, bank, potentials, lam=lam)
    tol = default_tol(tol, dtype)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    u, n_iter = _descend_with_momentum(problem, tol if dtype == np.float64 else tol / 10, max_iter)
    solution = certified(u, problem.certify, dtype=dtype, tol=tol, n_iter=n_iter, cure=MORE)
    warn_unless_converged(solution)
    return solution


def _descend_with_momentum(problem: ConvexRidge, tol: float, max_iter: int) -> tuple[Array, int]:
    """Run Nesterov's iteration until the gradient at the returned point proves `tol`."""
    max_norm = tol * problem.convexity * np.sqrt(problem.f.size)
    u = last = problem.f
    t, n_iter = 1.0, 0
    while n_iter < max_iter:
        gradient = problem.gradient(u)
        n_iter += 1
        if np.linalg.norm(gradient) <= max_norm:
            break
        stepped = u - gradient / problem.smoothness
        move = stepped - last
        if (gradient * move).sum() > 0:
            t = 1.0
        grown = (1 + np.sqrt(1 + 4 * t * t)) / 2
        u, last, t = stepped + (t - 1) / grown * move, stepped, grown
    return u, n_iter
