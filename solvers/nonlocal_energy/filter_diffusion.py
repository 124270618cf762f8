"""Energies of filter responses, and diffusion on them, for given filters and potentials."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix, check_one_or_each
from .filter_banks import FilterBank, Potentials


def filter_energy(
    u: ArrayLike, f: ArrayLike, bank: FilterBank, potentials: Potentials, *, lam: float
) -> float:
    """Energy of an image u: potentials of its responses to filters plus its distance from f.

    ::

        E(u) = sum over windows w of  sum_i rho_i(<k_i, u_w>) + lam/2 |u_w - f_w|^2
             = sum_i rho_i(K_i u) + lam/2 sum_p n_p (u_p - f_p)^2

    with k_i the filters of `bank`, K_i u their responses on the windows u_w, rho_i the
    `potentials`, and n_p the number of windows that cover pixel p: ``size**2`` for circular and
    zero borders.

    Parameters
    ----------
    u, f : array-like of shape (height, width)
    bank : FilterBank
    potentials : Potentials
    lam : float
        Of any sign.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    EQUATIONS FE-1, whose lam is ``size**2`` times the lam here.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import (
    ...     FilterBank, Potentials, dct_filters, filter_energy)
    >>> quadratic = Potentials(np.full((3, 1), 10.0), np.ones((3, 1)))
    >>> bank = FilterBank(dct_filters(2))
    >>> round(filter_energy(np.eye(2), np.eye(2), bank, quadratic, lam=1.0), 12)
    0.5
    """
    u, f = _same_shape(u, f)
    check_one_or_each(lam, "lam", 1, "image")
    distance = bank.counts(f.shape) * (u - f) ** 2
    return potentials.value(bank(u)) + lam / 2 * float(distance.sum())


def filter_energy_gradient(
    u: ArrayLike, f: ArrayLike, bank: FilterBank, potentials: Potentials, *, lam: float
) -> Array:
    """Gradient ``sum_i K_i^T rho_i'(K_i u) + lam n (u - f)`` of `filter_energy`.

    Parameters
    ----------
    u, f, bank, potentials, lam
        As for `filter_energy`.

    Returns
    -------
    ndarray of shape (height, width)

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    EQUATIONS FE-1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import (
    ...     FilterBank, Potentials, dct_filters, filter_energy_gradient)
    >>> quadratic = Potentials(np.full((3, 1), 10.0), np.ones((3, 1)))
    >>> bank = FilterBank(dct_filters(2))
    >>> filter_energy_gradient(np.eye(2), np.eye(2), bank, quadratic, lam=1.0)
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    u, f = _same_shape(u, f)
    check_one_or_each(lam, "lam", 1, "image")
    return bank.adjoint(potentials.influence(bank(u))) + lam * bank.counts(f.shape) * (u - f)


def filter_diffusion_step(
    u: ArrayLike, f: ArrayLike, bank: FilterBank, potentials: Potentials, *, lam: float
) -> Array:
    """One step of diffusion by filters: a gradient step on `filter_energy`, scaled by 1 / n.

    ::

        u - (1/n) sum_i K_i^T rho_i'(K_i u) - lam (u - f)

    with n_p the number of windows that cover pixel p. From u = f, with DCT filters and one clipping
    of weight 1, it is the average over all windows of soft thresholding in the transform, for any
    lam.

    Parameters
    ----------
    u, f, bank, potentials, lam
        As for `filter_energy`.

    Returns
    -------
    ndarray of shape (height, width)
        In the dtype of u and f: float32 if both are, else float64.

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    EQUATIONS FE-1, FE-2, with ``phi_i = rho_i' / size**2`` for circular and zero borders.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import (
    ...     FilterBank, Potentials, dct_filters, filter_diffusion_step)
    >>> quadratic = Potentials(np.full((3, 1), 10.0), np.ones((3, 1)))
    >>> filter_diffusion_step(np.eye(2), np.eye(2), FilterBank(dct_filters(2)), quadratic, lam=1.0)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    gradient = filter_energy_gradient(u, f, bank, potentials, lam=lam)
    u, f = _same_shape(u, f)
    stepped = u - gradient / bank.counts(f.shape)
    return stepped.astype(np.result_type(u.dtype, f.dtype), copy=False)


def _same_shape(u: ArrayLike, f: ArrayLike) -> tuple[Array, Array]:
    """Return u and f as finite matrices, after a check that their shapes agree."""
    u, f = check_matrix(u, "u"), check_matrix(f, "f")
    if u.shape != f.shape:
        raise ValueError(f"f: must be of the shape of u, {u.shape}, got {f.shape}")
    return u, f
