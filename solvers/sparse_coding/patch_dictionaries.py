"""Dictionaries of patches."""

import numpy as np

from ..solution import Array, check_integer


def dct_dictionary(patch_size: int, n_frequencies: int, channels: int = 1) -> Array:
    """Overcomplete DCT dictionary of patches without their means.

    Its atoms are all products ``w_a(x) w_b(y)`` of the cosines ``w_a(x) = cos(pi a (x + 1/2) / n)``
    with n = `n_frequencies`, without their mean for a > 0, but for the constant one; of unit norm.
    Of several channels, each has these for itself. With ``n_frequencies = patch_size`` atoms are
    orthonormal.

    Parameters
    ----------
    patch_size : int
        Side of the patches, >= 2.
    n_frequencies : int
        At least `patch_size`.
    channels : int, default=1

    Returns
    -------
    ndarray of shape (channels * (n_frequencies^2 - 1), channels * patch_size^2)

    Raises
    ------
    ValueError
        If a number is no integer, or out of range.

    References
    ----------
    Elad and Aharon (2006).

    Examples
    --------
    >>> from twinsolve.solvers.sparse_coding import dct_dictionary
    >>> dct_dictionary(8, 11).shape
    (120, 64)
    """
    check_integer(patch_size, "patch_size", minimum=2)
    check_integer(n_frequencies, "n_frequencies", minimum=patch_size)
    channels = check_integer(channels, "channels", minimum=1)
    place = np.arange(patch_size) + 0.5
    waves = np.cos(np.pi / n_frequencies * np.outer(np.arange(n_frequencies), place))
    waves[1:] -= waves[1:].mean(axis=1, keepdims=True)
    atoms = np.einsum("ai,bj->abij", waves, waves).reshape(-1, patch_size**2)[1:]
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    return np.kron(np.eye(channels), atoms)
