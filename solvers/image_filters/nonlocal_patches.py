"""Non-local means on images: the classical side of attention between overlapping patches."""

import numpy as np
from numpy.typing import ArrayLike

from ..kernels.window_average import WindowAverage, extend
from ..solution import Array, check_integer, check_positive
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
    """Denoise an image by averaging the pixels whose surrounding patches look alike.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij,     w_ij = exp(-max(d_ij^2 - 2 sigma^2, 0) / h^2)

    with ``d_ij^2`` the weighted mean of the squared differences of the patches around i and j (over
    pixels and channels) and j in the search window of i, clipped to the image. Patches that reach
    over the border are filled by reflection without repeating the edge. Time grows with the number
    of pixels times that of pixels in a window, and with `patch_size` (patches are summed along one
    axis, then along the other); memory is a few images, whatever the window.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
    patch_size : int, default=5
        Side of the square patches in pixels. Even ones reach one pixel further down and right.
    patch_distance : int or None, default=6
        The window holds the pixels at most this far in each direction: ``(2 * patch_distance + 1)
        ** 2`` of them. None searches the whole image, at a cost that grows with the square of the
        number of pixels.
    h : float, optional
        Decay of the weights, in grey levels; larger is smoother. The bandwidth s of the Gaussian
        kernel on uniform patches as vectors of m entries is ``s^2 = m h^2 / 2``. None is
        ``0.8 * sigma``, or 0.1 if sigma is 0: neither h nor sigma is estimated from the image.
    sigma : float, default=0.0
        Standard deviation of the noise, in grey levels; ``2 sigma^2`` is the squared difference
        that noise alone would give.
    patch_weights : {"uniform", "gaussian"}, default="uniform"
        Weights of the pixels in the mean of squared differences. "gaussian" is a Gaussian of
        standard deviation ``(patch_size - 1) / 4`` pixels around the centre. Scikit-image ties
        these to the algorithm (``fast_mode=True`` and ``False``); here both are fast, uniform
        ones of at most 7 pixels a little more so.
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
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14, IF-14w (windowed form). The
    scale (erratum E0-b): ``exp(-|p_i - p_j|^2 / h'^2)`` of IF-14 on whole patches has ``h'^2 =
    m h^2``. The fast mode of scikit-image at ``patch_size=p``, p odd, sums boxes of ``(p - 1)^2``
    pixels and divides by ``p^2``: here ``patch_size=p - 1`` and ``h * p / (p - 1)``, apart from its
    border and the weights under e^-5 that it drops. The default patch, window and decay are about
    the best for uniform patches in mean PSNR on Set12 with ``sigma = 25 / 255``; Gaussian patches
    do a little better at size 7.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import nonlocal_means
    >>> image = np.outer([0.0, 0.0, 1.0, 1.0], np.ones(4))
    >>> np.abs(nonlocal_means(image, patch_size=3, patch_distance=2, h=0.1) - image).max() < 1e-12
    np.True_
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
    _, height, width = planes.values.shape
    if check_integer(patch_size, "patch_size", minimum=1) // 2 >= min(height, width):
        raise ValueError(
            f"patch_size: {patch_size} is too large to reflect an image of "
            f"{height} x {width} pixels"
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
    """Weights along an axis, of sum 1 over the patch."""
    if patch_weights == "uniform":
        taps = np.ones(patch_size)
    elif patch_weights == "gaussian":
        taps = np.exp(-2 * np.linspace(-1, 1, patch_size) ** 2) if patch_size > 1 else np.ones(1)
    else:
        raise ValueError(f"patch_weights: must be 'uniform' or 'gaussian', got {patch_weights!r}")
    return taps / taps.sum()
