"""Non-local means on images: the classical side of attention between overlapping patches."""

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from ..solution import Array, check_integer, check_positive

_BLOCK_ENTRIES = 2**22


def nonlocal_means(
    image: ArrayLike,
    *,
    patch_size: int = 7,
    patch_distance: int | None = 11,
    h: float = 0.1,
    sigma: float = 0.0,
    channel_axis: int | None = None,
) -> Array:
    """Denoise an image by averaging the pixels whose surrounding patches look alike.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij,     w_ij = exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)

    with ``d_ij^2`` the mean squared difference of the patches around i and j (over pixels and
    channels) and j in the search window of i, clipped to the image. Patches that reach over the
    border are filled by reflection without repeating the edge.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
    patch_size : int, default=7
        Side of the square patches in pixels, odd.
    patch_distance : int or None, default=11
        The window holds the pixels at most this far in each direction: ``(2 * patch_distance + 1)
        ** 2`` of them. None searches the whole image, at a cost that grows with the square of the
        number of pixels.
    h : float, default=0.1
        Decay of the weights, in grey levels; larger is smoother. The bandwidth s of the Gaussian
        kernel on patches as vectors of m entries is ``s^2 = m h^2 / 2``.
    sigma : float, default=0.0
        Standard deviation of the noise, in grey levels; ``2 sigma^2`` is the squared difference
        that noise alone would give.
    channel_axis : int, optional
        Axis of the channels; None is a grey image. Defaults and names as in scikit-image.

    Returns
    -------
    ndarray of the shape of `image`
        float32 if the image is, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, a wrong number of dimensions, an even or too large patch, ``h <= 0``,
        ``sigma < 0`` or ``patch_distance < 0``.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14 and section 9.5 (windowed form). The
    scale: ``exp(-|p_i - p_j|^2 / h'^2)`` of IF-14 on whole patches has ``h'^2 = m h^2``.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import nonlocal_means
    >>> image = np.outer([0.0, 0.0, 1.0, 1.0], np.ones(4))
    >>> np.abs(nonlocal_means(image, patch_size=3, patch_distance=2, h=0.1) - image).max() < 1e-12
    np.True_
    """
    pixels, h, sigma = _check_image(image, patch_size, patch_distance, h, sigma, channel_axis)
    if patch_distance is None:
        rows = _weight_rows(pixels, patch_size, None, h, sigma)
        values = pixels.reshape(-1, pixels.shape[-1])
        smoothed = np.concatenate([weights @ values for weights in rows]).reshape(pixels.shape)
    else:
        smoothed = _average_shifts(pixels, patch_size, patch_distance, h, sigma)
    if channel_axis is None:
        return smoothed[..., 0].astype(_dtype(image), copy=False)
    return np.moveaxis(smoothed, -1, channel_axis).astype(_dtype(image), copy=False)


def nonlocal_means_matrix(
    image: ArrayLike,
    *,
    patch_size: int = 7,
    patch_distance: int | None = 11,
    h: float = 0.1,
    sigma: float = 0.0,
    channel_axis: int | None = None,
) -> Array:
    """Row-stochastic matrix A of `nonlocal_means`, for small images: ``u = A @ y``.

    ``A_ij = w_ij / sum_l w_il`` with pixels in row-major order; parameters are those of
    `nonlocal_means`.

    Returns
    -------
    ndarray of shape (height * width, height * width)

    Raises
    ------
    ValueError
        As `nonlocal_means` does.

    References
    ----------
    EQUATIONS SE-8, IF-14, section 9.5.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import nonlocal_means_matrix
    >>> A = nonlocal_means_matrix(np.eye(4), patch_size=3, h=0.5)
    >>> A.shape, bool(np.allclose(A.sum(axis=1), 1))
    ((16, 16), True)
    """
    pixels, h, sigma = _check_image(image, patch_size, patch_distance, h, sigma, channel_axis)
    return np.concatenate([*_weight_rows(pixels, patch_size, patch_distance, h, sigma)])


def _dtype(image: ArrayLike) -> type:
    return np.float32 if np.asarray(image).dtype == np.float32 else np.float64


def _check_image(
    image: ArrayLike,
    patch_size: int,
    patch_distance: int | None,
    h: float,
    sigma: float,
    channel_axis: int | None,
) -> tuple[Array, float, float]:
    pixels = np.asarray(image)
    if pixels.dtype.kind not in "bifu":
        raise ValueError(f"image: must hold real numbers, got dtype {pixels.dtype}")
    if channel_axis is not None:
        check_integer(channel_axis, "channel_axis", minimum=-3, maximum=2)
    expected = 2 if channel_axis is None else 3
    if pixels.ndim != expected:
        raise ValueError(
            f"image: must have {expected} dimensions with channel_axis={channel_axis}, "
            f"got shape {pixels.shape}"
        )
    pixels = pixels.astype(np.float64)
    pixels = pixels[..., None] if channel_axis is None else np.moveaxis(pixels, channel_axis, -1)
    if not np.isfinite(pixels).all():
        raise ValueError("image: must not hold NaN or infinity")
    if check_integer(patch_size, "patch_size", minimum=1) % 2 == 0:
        raise ValueError(f"patch_size: must be odd, got {patch_size}")
    if patch_size // 2 >= min(pixels.shape[:2]):
        raise ValueError(
            f"patch_size: {patch_size} is too large to reflect an image of "
            f"{pixels.shape[0]} x {pixels.shape[1]} pixels"
        )
    if patch_distance is not None:
        check_integer(patch_distance, "patch_distance", minimum=0)
    return pixels, check_positive(h, "h"), check_positive(sigma, "sigma", allow_zero=True)


def _pad(pixels: Array, patch_size: int) -> Array:
    radius = patch_size // 2
    return np.pad(pixels, ((radius, radius), (radius, radius), (0, 0)), mode="reflect")


def _weights(squared_distance: Array, h: float, sigma: float) -> Array:
    with np.errstate(over="ignore"):  # a tiny h: weights 0 and 1
        return np.exp(-np.maximum(squared_distance - 2 * sigma**2, 0) / h / h)


def _weight_rows(
    pixels: Array, patch_size: int, patch_distance: int | None, h: float, sigma: float
) -> Iterator[Array]:
    height, width, channels = pixels.shape
    windows = sliding_window_view(_pad(pixels, patch_size), (patch_size, patch_size), axis=(0, 1))
    patches = windows.reshape(height * width, channels * patch_size**2)
    positions = np.indices((height, width)).reshape(2, -1).T
    size = max(1, _BLOCK_ENTRIES // len(patches))
    for start in range(0, len(patches), size):
        rows = slice(start, start + size)
        squared_distance = cdist(patches[rows], patches, "sqeuclidean") / patches.shape[1]
        weights = _weights(squared_distance, h, sigma)
        if patch_distance is not None:
            weights *= cdist(positions[rows], positions, "chebyshev") <= patch_distance
        yield weights / weights.sum(axis=1, keepdims=True)


def _average_shifts(
    pixels: Array, patch_size: int, patch_distance: int, h: float, sigma: float
) -> Array:
    height, width, _ = pixels.shape
    padded = _pad(pixels, patch_size)
    total, mass = pixels.copy(), np.ones((height, width, 1))
    for dy in range(min(patch_distance, height - 1) + 1):
        for dx in range(-min(patch_distance, width - 1), min(patch_distance, width - 1) + 1):
            if dy == 0 and dx <= 0:
                continue
            here, there, padded_here, padded_there = _overlap(height, width, dy, dx, patch_size)
            squares = ((padded[padded_here] - padded[padded_there]) ** 2).mean(axis=-1)
            weights = _weights(_box_mean(squares, patch_size), h, sigma)[..., None]
            total[here] += weights * pixels[there]
            total[there] += weights * pixels[here]
            mass[here] += weights
            mass[there] += weights
    return total / mass


def _overlap(height: int, width: int, dy: int, dx: int, patch_size: int) -> list[tuple[slice, ...]]:
    """Pixels i with i + shift inside, those i + shift, and the same two with their patches."""
    rows, columns = (0, height - dy), (max(0, -dx), min(width, width - dx))
    border = patch_size - 1
    return [
        (
            slice(rows[0] + y, rows[1] + y + margin),
            slice(columns[0] + x, columns[1] + x + margin),
        )
        for margin in (0, border)
        for y, x in ((0, 0), (dy, dx))
    ]


def _box_mean(squares: Array, patch_size: int) -> Array:
    columns = sliding_window_view(squares, patch_size, axis=0).sum(axis=-1)
    return sliding_window_view(columns, patch_size, axis=1).sum(axis=-1) / patch_size**2
