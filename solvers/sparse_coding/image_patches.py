"""Denoise images by their overlapping patches: code each patch, and average where they overlap.

All patches lie within the image: nothing is padded, and pixels near the border are in fewer
patches.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer
from ..image_filters.images import check_image
from ..inputs import Array

_BAND_PATCHES = 2**14


def patch_rows(planes: Array, patch_size: int) -> Array:
    """Patches within an image (channels, height, width) as rows, channel after channel.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.image_patches import patch_rows
    >>> patch_rows(np.arange(6.0).reshape(1, 2, 3), 2)
    array([[0., 1., 3., 4.],
           [1., 2., 4., 5.]])
    """
    windows = np.lib.stride_tricks.sliding_window_view(planes, (patch_size,) * 2, axis=(1, 2))
    return windows.transpose(1, 2, 0, 3, 4).reshape(-1, len(planes) * patch_size**2)


def denoise_patches(
    image: ArrayLike,
    code: Callable[[Array], Array],
    *,
    patch_size: int,
    channel_axis: int | None = None,
    in_bands: bool = True,
) -> Array:
    """Average the reconstructions of all overlapping patches of an image.

    ::

        u = sum_i R_i^T ( m_i + code(R_i y - m_i) ) / sum_i R_i^T 1

    with y the image, R_i the operator that extracts patch i, and m_i the means of the channels of
    patch i. The patches are coded in bands of about 16,000 patches, so that memory is linear in the
    number of pixels with a small constant.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    code : callable
        ``code(rows)`` returns the reconstructions of patches. The rows are float64 patches without
        their means, of shape (n_patches, channels * patch_size^2).
    patch_size : int
        Side of the patches, at most that of the image.
    channel_axis : int, optional
    in_bands : bool, default=True
        False calls `code` once, on all patches.

    Returns
    -------
    ndarray of the shape of `image`

    Raises
    ------
    ValueError
        On NaN, infinity, or an image smaller than a patch.

    References
    ----------
    Elad and Aharon (2006), without their data term on the noisy pixels; EQUATIONS IF-KSVD.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import denoise_patches
    >>> denoise_patches(np.eye(3), np.zeros_like, patch_size=2).round(2)
    array([[0.5 , 0.38, 0.25],
           [0.38, 0.38, 0.38],
           [0.25, 0.38, 0.5 ]])
    """
    planes = check_image(image, channel_axis, 1.0)
    values = planes.values.astype(np.float64) * planes.unit
    channels, height, width = values.shape
    size = check_integer(patch_size, "patch_size", minimum=1, maximum=min(height, width))
    across = width - size + 1
    band = max(1, _BAND_PATCHES // across) if in_bands else height
    total, covers = np.zeros_like(values), np.zeros((height, width))
    for top in range(0, height - size + 1, band):
        rows = patch_rows(values[:, top : top + band + size - 1], size)
        grid = rows.reshape(len(rows), channels, -1)
        means = grid.mean(axis=2, keepdims=True)
        denoised_rows = code((grid - means).reshape(rows.shape)).reshape(grid.shape) + means
        _add(total[:, top:], covers[top:], denoised_rows.reshape(-1, across, channels, size, size))
    denoised = total / covers
    return planes.restore((denoised / planes.unit).astype(planes.values.dtype))


def _add(total: Array, covers: Array, patches: Array) -> None:
    """Add patches (down, across, channels, size, size) at their positions, and count them."""
    down, across, _, size, _ = patches.shape
    for i, j in np.ndindex(size, size):
        total[:, i : i + down, j : j + across] += np.moveaxis(patches[..., i, j], 2, 0)
        covers[i : i + down, j : j + across] += 1


def dct_dictionary(patch_size: int, n_frequencies: int, channels: int = 1) -> Array:
    """Overcomplete DCT dictionary of patches without their means.

    The atoms are all products ``w_a(x) w_b(y)`` except the constant one, scaled to unit norm. Here
    ``w_a(x) = cos(pi a (x + 1/2) / n)`` with n = `n_frequencies`, less its mean if a > 0. With
    several channels, each channel has its own copy of these atoms. With
    ``n_frequencies = patch_size`` the atoms are orthonormal.

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
        If a number is not an integer, or out of range.

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
