"""Non-local means on images: the classical side of attention between overlapping patches."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..kernels.window_average import WindowAverage, extend
from .images import Planes, check_image


def nonlocal_means(
    image: ArrayLike,
    *,
    patch_size: int = 5,
    patch_distance: int | None = 6,
    h: float | None = None,
    sigma: float = 0.0,
    patch_weights: str = "uniform",
    channel_axis: int | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Denoise an image by averaging pixels with similar surrounding patches.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij,     w_ij = exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)

    with y the pixels of `image`, j in the search window of i, clipped to the image, and ``d_ij^2``
    the weighted mean of the squared differences of the patches around i and j, over pixels and
    channels. Patches beyond the border are filled by reflection without repeating the edge. Time
    grows with the number of pixels times the number of pixels in a window, and with `patch_size`
    (patches are summed along one axis, then along the other). Memory is a few images for every
    window.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
    patch_size : int, default=5
        Side of the square patches in pixels. An even patch reaches one pixel further down and
        right than up and left.
    patch_distance : int or None, default=6
        The window reaches this many pixels in each direction: it holds
        ``(2 * patch_distance + 1) ** 2`` pixels. None searches the whole image, at a cost that
        grows with the square of the number of pixels.
    h : float, optional
        Decay of the weights, in grey levels; larger is smoother. For uniform patches as vectors of
        m entries, it is a Gaussian kernel of the bandwidth s with ``s^2 = m h^2 / 2``. None is
        ``0.8 * sigma``, or 0.1 if sigma is 0; neither h nor sigma is estimated from the image.
    sigma : float, default=0.0
        Standard deviation of the noise, in grey levels; noise alone gives the mean squared
        difference ``2 sigma^2``.
    patch_weights : {"uniform", "gaussian"}, default="uniform"
        Weights of the pixels in the mean of squared differences. "gaussian" is a Gaussian of
        standard deviation ``(patch_size - 1) / 4`` pixels around the centre. In scikit-image they
        belong to ``fast_mode=True`` and ``False``; here both are fast, and uniform patches of at
        most 7 pixels a little faster.
    channel_axis : int, optional
        Axis of the channels; None is a grey image.
    n_jobs : int, optional
        Threads; None is 1, unless in a `joblib.parallel_config`. The result does not depend on it.

    Returns
    -------
    ndarray of the shape of `image`
        Computed in float32 if the image is, else in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, a wrong number of dimensions, a patch too large, ``h <= 0``,
        ``sigma < 0``, ``patch_distance < 0`` or unknown `patch_weights`.

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
    """
    h, sigma = _check_widths(h, sigma)
    planes = check_image(image, channel_axis, max(h, sigma))
    average = _average(planes, patch_size, patch_distance, h, sigma, patch_weights)
    return planes.restore(average.apply(n_jobs))


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
    h, sigma = _check_widths(h, sigma)
    planes = check_image(image, channel_axis, max(h, sigma))
    return _average(planes, patch_size, patch_distance, h, sigma, patch_weights).matrix()


def _check_widths(h: float | None, sigma: float) -> tuple[float, float]:
    sigma = check_positive(sigma, "sigma", allow_zero=True)
    return (0.8 * sigma or 0.1) if h is None else check_positive(h, "h"), sigma


def _average(
    planes: Planes,
    patch_size: int,
    patch_distance: int | None,
    h: float,
    sigma: float,
    patch_weights: str,
) -> WindowAverage:
    """Return the filter as an average over windows, by distances of patches."""
    _, height, width = planes.values.shape
    if check_integer(patch_size, "patch_size", minimum=1) // 2 >= min(height, width):
        raise ValueError(
            f"patch_size: must be smaller, to reflect an image of {height} x {width} pixels, "
            f"got {patch_size}"
        )
    distance = max(height, width)
    if patch_distance is not None:
        distance = check_integer(patch_distance, "patch_distance", minimum=0)
    real, noise = planes.values.dtype, sigma / planes.unit
    return WindowAverage(
        padded=extend(planes.reflect((patch_size - 1) // 2, patch_size // 2)),
        width=width,
        taps=_taps(patch_size, patch_weights).astype(real),
        position=np.ones((min(distance, height - 1) + 1, 2 * min(distance, width - 1) + 1), real),
        scale=planes.inverse_square(h) / len(planes.values),
        offset=2 * len(planes.values) * noise * noise,
    )


def _taps(patch_size: int, patch_weights: str) -> Array:
    """Return the weights of the pixels of a patch along one axis, with sum 1."""
    if patch_weights == "uniform":
        taps = np.ones(patch_size)
    elif patch_weights == "gaussian":
        taps = np.exp(-2 * np.linspace(-1, 1, patch_size) ** 2) if patch_size > 1 else np.ones(1)
    else:
        raise ValueError(f"patch_weights: must be 'uniform' or 'gaussian', got {patch_weights!r}")
    return taps / taps.sum()
