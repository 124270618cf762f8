"""Non-local means on images: the classical side of attention between overlapping patches."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..kernels.window_average import WindowAverage, extend
from .images import Planes, check_image, check_image_or_volume, check_map, check_map_shape, reflect
from .shifted_average import ShiftedAverage


def nonlocal_means(
    image: ArrayLike,
    *,
    patch_size: int = 5,
    patch_distance: int | None = 6,
    h: float | ArrayLike | None = None,
    sigma: float | ArrayLike = 0.0,
    patch_weights: str = "uniform",
    channel_axis: int | None = None,
    mask: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Denoise an image or a volume by averaging pixels with similar surrounding patches.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij,     w_ij = exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)

    with y the pixels of `image`, j in the search window of i, clipped to the image, and ``d_ij^2``
    the weighted mean of the squared differences of the patches around i and j, over pixels and
    channels. Patches beyond the border are filled by reflection without repeating the edge. Time
    grows with the number of pixels times the number of pixels in a window, and with `patch_size`
    (patches are summed along one axis, then along the other). Memory is a few images for every
    window, and for volumes too.

    With holes or a noise level for each pixel the mean is over pairs of valid pixels, less the
    noise of both::

        u_i = sum_j m_j w_ij y_j / sum_j m_j w_ij,     w_ij = exp(-max(d_ij, 0) / h_i^2)
        d_ij = sum_k t_k v_k (|y_(i+k) - y_(j+k)|^2 - s_(i+k)^2 - s_(j+k)^2) / sum_k t_k v_k

    with m the `mask`, ``v_k = m_(i+k) m_(j+k)``, t the weights of a patch and s `sigma`. Squares
    are means over channels. Holes are filled by the same formula, and their values are never read.
    A pair of pixels without a common valid pixel in their patches has weight 0. If that holds for
    all pairs of a pixel, it gets the mean of the valid pixels in its window. Masks, maps and
    volumes take a slower form in float64, some 50 to 100 ns for each pixel and pixel of its window.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
        Or a volume of shape (n1, n2, n3), each at least 5, where `channel_axis` is None.
    patch_size : int, default=5
        Side of the square patches in pixels; patches of a volume are cubes. An even patch reaches
        one pixel further down and right than up and left.
    patch_distance : int or None, default=6
        The window reaches this many pixels in each direction: it holds
        ``(2 * patch_distance + 1) ** 2`` pixels, or to the third power in a volume. None searches
        the whole image, at a cost that grows with the square of the number of pixels.
    h : float or array-like of the shape of the image without channels, optional
        Decay of the weights, in grey levels; larger is smoother. For uniform patches as vectors of
        m entries, it is a Gaussian kernel of the bandwidth s with ``s^2 = m h^2 / 2``. An array
        holds the decay of each pixel that is denoised. None is ``0.8 * sigma``, or 0.1 where sigma
        is 0; neither h nor sigma is estimated from the image.
    sigma : float or array-like of the shape of the image without channels, default=0.0
        Standard deviation of the noise, in grey levels; noise alone gives the mean squared
        difference ``2 sigma^2``. An array holds that of each pixel.
    patch_weights : {"uniform", "gaussian"}, default="uniform"
        Weights of the pixels in the mean of squared differences. "gaussian" is a Gaussian of
        standard deviation ``(patch_size - 1) / 4`` pixels around the centre. In scikit-image they
        belong to ``fast_mode=True`` and ``False``; here both are fast, and uniform patches of at
        most 7 pixels a little faster.
    channel_axis : int, optional
        Axis of the channels; None is a grey image or a volume.
    mask : array-like of bool, of the shape of the image without channels, optional
        True at valid pixels, False in holes. Holes may hold NaN.
    n_jobs : int, optional
        Threads; None is 1, unless in a `joblib.parallel_config`. The result does not depend on it.

    Returns
    -------
    ndarray of the shape of `image`
        float32 if the image is, else float64.

    Raises
    ------
    ValueError
        On NaN, infinity, a wrong number of dimensions, a patch too large, ``h <= 0``,
        ``sigma < 0``, ``patch_distance < 0``, unknown `patch_weights`, maps or a mask of another
        shape, or a pixel without any valid pixel in its window.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14, IF-14w (windowed form). For the scale
    (erratum E0-b): ``exp(-|p_i - p_j|^2 / h'^2)`` of IF-14, on patches as vectors, has
    ``h'^2 = m h^2``. The fast mode of scikit-image at ``patch_size=p``, p odd, sums boxes of
    ``(p - 1)^2`` pixels and divides by ``p^2``. That is ``patch_size=p - 1`` and
    ``h * p / (p - 1)`` here, except at the border and for weights under e^-5, which it drops. The
    default patch, window and decay have about the best mean PSNR of uniform patches on Set12 with
    ``sigma = 25 / 255``; Gaussian patches of size 7 do a little better.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import nonlocal_means
    >>> image = np.outer([0.0, 0.0, 1.0, 1.0], np.ones(4))
    >>> denoised = nonlocal_means(image, patch_size=3, patch_distance=2, h=0.1)
    >>> bool(np.abs(denoised - image).max() < 1e-12)
    True
    >>> image[1, 1], mask = np.nan, np.arange(16).reshape(4, 4) != 5
    >>> filled = nonlocal_means(image, patch_size=3, patch_distance=2, h=0.1, mask=mask)
    >>> bool(abs(filled[1, 1]) < 1e-9)
    True
    """
    h, sigma = _check_widths(h, sigma)
    width = float(max(np.max(h), np.max(sigma)))
    planes, mask = check_image_or_volume(image, channel_axis, width, mask)
    shape = planes.values.shape[1:]
    for value, name in ((sigma, "sigma"), (h, "h")):
        check_map_shape(value, name, shape)
    if mask is None and len(shape) == 2 and np.ndim(h) == np.ndim(sigma) == 0:
        average = _average(
            planes, patch_size, patch_distance, float(h), float(sigma), patch_weights
        )
        return planes.restore(average.apply(n_jobs))
    shifted = _shifted_average(planes, patch_size, patch_distance, h, sigma, patch_weights, mask)
    return planes.restore(shifted.apply(n_jobs).astype(planes.values.dtype, copy=False))


def nonlocal_means_matrix(
    image: ArrayLike,
    *,
    patch_size: int = 5,
    patch_distance: int | None = 6,
    h: float | None = None,
    sigma: float = 0.0,
    patch_weights: str = "uniform",
    channel_axis: int | None = None,
) -> Array:
    """Row-stochastic matrix A of `nonlocal_means`, for small images: ``u = A @ y``.

    ``A_ij = w_ij / sum_l w_il`` with pixels in row-major order; parameters are those of
    `nonlocal_means`.

    Returns
    -------
    ndarray of shape (height * width, height * width)
        float32 if the image is, else float64.

    Raises
    ------
    ValueError
        As `nonlocal_means` does.

    References
    ----------
    EQUATIONS SE-8, IF-14, IF-14w.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.image_filters import nonlocal_means_matrix
    >>> A = nonlocal_means_matrix(np.eye(4), patch_size=3, h=0.5)
    >>> A.shape, bool(np.allclose(A.sum(axis=1), 1))
    ((16, 16), True)
    """
    sigma = check_positive(sigma, "sigma", allow_zero=True)
    h = (0.8 * sigma or 0.1) if h is None else check_positive(h, "h")
    planes = check_image(image, channel_axis, max(h, sigma))
    return _average(planes, patch_size, patch_distance, h, sigma, patch_weights).matrix()


def _check_widths(
    h: float | ArrayLike | None, sigma: float | ArrayLike
) -> tuple[float | Array, float | Array]:
    sigma = check_map(sigma, "sigma", allow_zero=True)
    if h is not None:
        return check_map(h, "h"), sigma
    return np.where(sigma > np.float64(0), 0.8 * sigma, 0.1)[()], sigma


def _average(
    planes: Planes,
    patch_size: int,
    patch_distance: int | None,
    h: float,
    sigma: float,
    patch_weights: str,
) -> WindowAverage:
    """Return the filter as an average over windows, by distances of patches."""
    down, beside = _reaches(planes, patch_size, patch_distance)
    real, noise = planes.values.dtype, sigma / planes.unit
    return WindowAverage(
        padded=extend(planes.reflect((patch_size - 1) // 2, patch_size // 2)),
        width=planes.values.shape[2],
        taps=_taps(patch_size, patch_weights).astype(real),
        position=np.ones((down + 1, 2 * beside + 1), real),
        scale=planes.inverse_square(h) / len(planes.values),
        offset=2 * len(planes.values) * noise * noise,
    )


def _shifted_average(
    planes: Planes,
    patch_size: int,
    patch_distance: int | None,
    h: float | Array,
    sigma: float | Array,
    patch_weights: str,
    mask: Array | None,
) -> ShiftedAverage:
    """Return the filter for masks, maps and volumes."""
    reaches, n_channels = _reaches(planes, patch_size, patch_distance), len(planes.values)
    border = (patch_size - 1) // 2, patch_size // 2
    shape = (1, *planes.values.shape[1:])
    ratio = np.asarray(planes.unit / h)
    variances = n_channels * np.broadcast_to(np.square(sigma / planes.unit), shape)
    return ShiftedAverage(
        padded=planes.reflect(*border).astype(np.float64, copy=False),
        taps=_taps(patch_size, patch_weights),
        position=np.ones([2 * reach + 1 for reach in reaches]),
        scale=np.minimum(ratio * ratio, np.finfo(np.float64).max) / n_channels,
        noise=reflect(variances, *border) if np.any(sigma) else None,
        mask=None if mask is None else reflect(mask[None], *border),
    )


def _reaches(planes: Planes, patch_size: int, patch_distance: int | None) -> list[int]:
    """Return how far the window reaches along each axis, within the image."""
    shape = planes.values.shape[1:]
    if check_integer(patch_size, "patch_size", minimum=1) // 2 >= min(shape):
        raise ValueError(
            f"patch_size: must be smaller, to reflect an image of {' x '.join(map(str, shape))} "
            f"pixels, got {patch_size}"
        )
    distance = max(shape)
    if patch_distance is not None:
        distance = check_integer(patch_distance, "patch_distance", minimum=0)
    return [min(distance, side - 1) for side in shape]


def _taps(patch_size: int, patch_weights: str) -> Array:
    """Return the weights of the pixels of a patch along one axis, with sum 1."""
    if patch_weights == "uniform":
        taps = np.ones(patch_size)
    elif patch_weights == "gaussian":
        taps = np.exp(-2 * np.linspace(-1, 1, patch_size) ** 2) if patch_size > 1 else np.ones(1)
    else:
        raise ValueError(f"patch_weights: must be 'uniform' or 'gaussian', got {patch_weights!r}")
    return taps / taps.sum()
