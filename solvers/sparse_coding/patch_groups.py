"""Denoise images by low-rank matrices of groups of similar patches."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..image_filters.images import check_image
from ..inputs import Array
from .image_patches import patch_rows
from .problem import check_range
from .similar_patches import closest

_BLOCK_GROUPS = 256


def denoise_low_rank(
    image: ArrayLike,
    *,
    sigma: float,
    patch_size: int = 7,
    n_similar: int = 60,
    window: int = 15,
    stride: int = 3,
    gain: float = 2.8,
    channel_axis: int | None = None,
) -> Array:
    """Denoise an image by reweighted nuclear norms of groups of similar patches.

    For each patch of a grid, the n patches closest to it, less their mean patch, are the rows of a
    matrix Y. Each singular value s of Y is shrunk to the fixed point x of reweighting, at which
    ``x = s - c / x`` ::

        x = (s + sqrt(s^2 - 4 c)) / 2,     c = 2 gain sqrt(n) sigma^2

    or to zero if ``s^2 < 4 c``. The result is a stationary point of
    ``|Y - X|_F^2 / 2 + c sum_i log x_i``. Each pixel is the weighted mean over all patches of all
    groups, with the weight ``1 / (rank + 1)`` for a group. This is the first iteration of the
    published method. There is no mask: of a matrix with missing entries the problem has no such
    closed form.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    sigma : float
        Noise level > 0, in grey levels.
    patch_size : int, default=7
    n_similar : int, default=60
        Number n of patches in a group, at most as many as a window holds.
    window : int, default=15
        Largest distance of the patches of a group along an axis, in pixels.
    stride : int, default=3
        Distance of neighbouring patches of the grid, in pixels; at most `patch_size`.
    gain : float, default=2.8
        Factor > 0; ``2 sqrt(2)`` in the paper.
    channel_axis : int, optional

    Returns
    -------
    ndarray of the shape of `image`

    Raises
    ------
    ValueError
        On NaN, infinity, levels whose squares lose precision in float64, arguments out of range, or
        an image smaller than a patch.

    References
    ----------
    Gu, Zhang, Zuo and Feng (2014), Weighted Nuclear Norm Minimization with Application to Image
    Denoising; Gu et al. (2017), Weighted Nuclear Norm Minimization and Its Applications to Low
    Level Vision, corollary 1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import denoise_low_rank
    >>> image = np.outer(np.ones(16), np.arange(16) // 8)
    >>> noisy = image + np.random.default_rng(0).normal(0, 0.1, image.shape)
    >>> denoised = denoise_low_rank(noisy, sigma=0.1)
    >>> bool(np.square(denoised - image).mean() < 0.2 * np.square(noisy - image).mean())
    True
    """
    planes = check_image(image, channel_axis, 1.0)
    values = planes.values.astype(np.float64) * planes.unit
    check_range(values.reshape(1, -1), "image")
    height, width = values.shape[1:]
    sigma, gain = check_positive(sigma, "sigma"), check_positive(gain, "gain")
    size = check_integer(patch_size, "patch_size", minimum=1, maximum=min(height, width))
    stride = check_integer(stride, "stride", minimum=1, maximum=size)
    window = check_integer(window, "window", minimum=0)
    corner = min(window, height - size) + 1, min(window, width - size) + 1
    n_similar = min(check_integer(n_similar, "n_similar", minimum=1), corner[0] * corner[1])
    shrink = partial(_shrink_groups, sigma=sigma, gain=gain)
    denoised = average_groups(
        values, shrink, patch_size=size, n_similar=n_similar, window=window, stride=stride
    )
    return planes.restore((denoised / planes.unit).astype(planes.values.dtype))


def average_groups(
    planes: Array,
    change: Callable[[Array], tuple[Array, Array]],
    *,
    patch_size: int,
    n_similar: int,
    window: int,
    stride: int,
) -> Array:
    """Average the patches of an image (channels, height, width) that `change` returns.

    It gets groups of similar patches, (n_groups, n_similar, width of a patch), and returns others
    in their place with a weight for each group.
    """
    height, width = planes.shape[1:]
    corners = _grid(height - patch_size + 1, width - patch_size + 1, stride)
    rows = patch_rows(planes, patch_size)
    total, mass = np.zeros_like(rows), np.zeros(len(rows))
    for start in range(0, len(corners), _BLOCK_GROUPS):
        block = corners[start : start + _BLOCK_GROUPS]
        groups = closest(planes, block, patch_size, window, n_similar)
        changed, weights = change(rows[groups])
        np.add.at(total, groups, weights[:, None, None] * changed)
        np.add.at(mass, groups, np.broadcast_to(weights[:, None], groups.shape))
    masses = np.repeat(mass[:, None], rows.shape[1], axis=1)
    sums, counts = (_sum_patches(x, planes.shape, patch_size) for x in (total, masses))
    average: Array = sums / counts
    return average


def _grid(down: int, across: int, stride: int) -> Array:
    """Return positions (top, left) a stride apart, and the last ones along each axis."""
    tops, lefts = (np.union1d(np.arange(0, n, stride), n - 1) for n in (down, across))
    return np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=-1).reshape(-1, 2)


def _shrink_groups(groups: Array, sigma: float, gain: float) -> tuple[Array, Array]:
    """Shrink singular values of groups (n, n_similar, d); return also each group's weight."""
    n = groups.shape[1]
    means = groups.mean(axis=1, keepdims=True)
    U, s, Vt = np.linalg.svd(groups - means, full_matrices=False)
    beyond = s**2 - 8 * gain * np.sqrt(n) * sigma * sigma
    shrunk = np.where(beyond > 0, (s + np.sqrt(np.maximum(beyond, 0))) / 2, 0)
    rank = (shrunk > 0).sum(axis=1)
    return (U * shrunk[:, None]) @ Vt + means, 1.0 / (1 + rank)


def _sum_patches(rows: Array, shape: tuple[int, ...], size: int) -> Array:
    """Return the image of summed patches, the rows of `patch_rows`, at their positions."""
    channels, height, width = shape
    grid = rows.reshape(height - size + 1, width - size + 1, channels, size, size)
    total = np.zeros(shape)
    for i, j in np.ndindex(size, size):
        total[:, i : i + grid.shape[0], j : j + grid.shape[1]] += np.moveaxis(grid[..., i, j], 2, 0)
    return total
