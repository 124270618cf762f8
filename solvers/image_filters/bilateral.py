"""The bilateral filter on images: attention by position and grey level."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import correlate1d

from ..inputs import Array
from ..kernels.window_average import WindowAverage, extend
from .images import Planes, as_array, check_image, check_side, check_width
from .level_average import average_levels


def bilateral_filter(
    image: ArrayLike,
    *,
    win_size: int | None = None,
    sigma_color: float = 0.1,
    sigma_spatial: float = 1.0,
    footprint: ArrayLike | None = None,
    channel_axis: int | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Smooth an image but keep its edges: average pixels close in position and in grey level.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij
        w_ij = exp(-|p_i - p_j|^2 / (2 sigma_spatial^2) - |y_i - y_j|^2 / (2 sigma_color^2))

    with y_i the grey level (or the channels) of pixel i, p_i its position in pixels, and j in the
    window around i. The window is clipped to the image: nothing is padded. ``|y_i - y_j|`` is the
    Euclidean distance over the channels.

    Both limits are exact. ``sigma_color=inf`` gives the windowed Gaussian filter, computed as a
    separable one. ``sigma_spatial=inf`` with a window of the whole image gives the range filter,
    which depends on grey levels only; for k distinct levels it takes k^2 operations.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
    win_size : int, optional
        Side of the square window in pixels, odd. None is ``max(5, 2 * ceil(3 * sigma_spatial) +
        1)``, the whole image if that is infinite.
    sigma_color : float, default=0.1
        Standard deviation of grey levels, in their own unit. Infinity is allowed.
    sigma_spatial : float, default=1.0
        Standard deviation of positions, in pixels. Infinity is allowed.
    footprint : array-like of bool, or of zeros and ones, optional
        Shape of the window in place of `win_size`, for instance a disk. Its sides must be odd, and
        it must hold its centre and the opposite of each of its shifts, so that ``w_ij = w_ji``.
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
        On NaN, infinity, a wrong number of dimensions, widths ``<= 0``, an even window, a footprint
        that is not symmetric, or both `footprint` and `win_size`.

    References
    ----------
    Tomasi and Manduchi (1998); EQUATIONS IF-13 with ``h_p^2 = 2 sigma_spatial^2`` and ``h_y^2 =
    2 sigma_color^2`` (erratum E0-b: IF-13 has no factor 2, and vectors take the norm). Names are
    those of scikit-image, which by default pads the image with zeros. OpenCV uses a disk as window,
    reflects at the border, and adds absolute differences over channels.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import bilateral_filter
    >>> image = np.outer([0.0, 0.0, 1.0, 1.0], np.ones(4))
    >>> bool(np.abs(bilateral_filter(image, sigma_color=0.1) - image).max() < 1e-12)
    True
    >>> bilateral_filter([[0.0, 3.0, 0.0]], sigma_color=np.inf, sigma_spatial=np.inf)
    array([[1., 1., 1.]])
    """
    sigma_color = check_width(sigma_color, "sigma_color")
    planes = check_image(image, channel_axis, sigma_color)
    average = _average(planes, win_size, sigma_color, sigma_spatial, footprint)
    if average.scale == 0 and footprint is None:
        smoothed = _gaussian_filter(planes.values, average.position)
    elif average.reaches_all:
        smoothed = average_levels(planes.values, average.scale, n_jobs)
    else:
        smoothed = average.apply(n_jobs)
    return planes.restore(smoothed)


def bilateral_matrix(
    image: ArrayLike,
    *,
    win_size: int | None = None,
    sigma_color: float = 0.1,
    sigma_spatial: float = 1.0,
    footprint: ArrayLike | None = None,
    channel_axis: int | None = None,
) -> Array:
    """Row-stochastic matrix A of `bilateral_filter`, for small images: ``u = A @ y``.

    ``A_ij = w_ij / sum_l w_il`` with pixels in row-major order; parameters are those of
    `bilateral_filter`.

    Returns
    -------
    ndarray of shape (height * width, height * width)
        float32 if the image is, else float64.

    Raises
    ------
    ValueError
        As `bilateral_filter` does.

    References
    ----------
    EQUATIONS IF-13.

    Examples
    --------
    >>> from twinsolve.solvers.image_filters import bilateral_matrix
    >>> bilateral_matrix([[0.0, 0.0]], sigma_spatial=float("inf"))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    sigma_color = check_width(sigma_color, "sigma_color")
    planes = check_image(image, channel_axis, sigma_color)
    return _average(planes, win_size, sigma_color, sigma_spatial, footprint).matrix()


def _average(
    planes: Planes,
    win_size: int | None,
    sigma_color: float,
    sigma_spatial: float,
    footprint: ArrayLike | None,
) -> WindowAverage:
    """Return the filter as an average over shifts of the image."""
    sigma_spatial = check_width(sigma_spatial, "sigma_spatial")
    _, height, width = planes.values.shape
    if footprint is None:
        window = _half_square(win_size, sigma_spatial, height, width)
    elif win_size is None:
        window = _half_footprint(footprint, height, width)
    else:
        raise ValueError(f"win_size: must be None with a footprint, got {win_size}")
    real, centre = planes.values.dtype, window.shape[1] // 2
    below, beside = np.arange(len(window)), np.arange(window.shape[1]) - centre
    position = np.outer(
        _gaussian(below, sigma_spatial, real), _gaussian(beside, sigma_spatial, real)
    )
    return WindowAverage(
        padded=extend(planes.values),
        width=width,
        taps=np.ones(1, real),
        position=position * window,
        scale=planes.inverse_square(sigma_color) / 2,
    )


def _gaussian(shift: Array, sigma: float, real: np.dtype) -> Array:
    """Return ``exp(-shift^2 / (2 sigma^2))``."""
    with np.errstate(over="ignore"):  # with a tiny sigma, weights are 0 and 1
        return np.exp(-((shift / sigma) ** 2) / 2).astype(real)


def _half_square(win_size: int | None, sigma_spatial: float, height: int, width: int) -> Array:
    """Lower half of the square window, clipped to the shifts within the image."""
    if win_size is not None:
        reach = check_side(win_size, "win_size") // 2
    else:
        reach = max(2, math.ceil(min(3 * sigma_spatial, height + width)))
    return np.ones((min(reach, height - 1) + 1, 2 * min(reach, width - 1) + 1), dtype=bool)


def _half_footprint(footprint: ArrayLike, height: int, width: int) -> Array:
    """Lower half of the footprint, clipped to the shifts within the image."""
    window = as_array(footprint, "footprint")
    if window.ndim != 2 or window.shape[0] % 2 + window.shape[1] % 2 < 2:
        raise ValueError(f"footprint: must be a matrix with odd sides, got shape {window.shape}")
    allowed = np.isin(window, (0, 1)) & (window.dtype.kind in "biuf")
    if not allowed.all():
        raise ValueError(f"footprint: must hold zeros and ones only, got {window[~allowed][0]!r}")
    window = window.astype(bool)
    y, x = window.shape[0] // 2, window.shape[1] // 2
    if not window[y, x] or (window != window[::-1, ::-1]).any():
        raise ValueError("footprint: must hold its centre, and the opposite of each of its shifts")
    right = min(x, width - 1)
    return window[y : y + min(y, height - 1) + 1, x - right : x + right + 1]


def _gaussian_filter(planes: Array, position: Array) -> Array:
    """Windowed Gaussian filter: average along columns, then along rows."""
    centre = position.shape[1] // 2
    smoothed = planes
    for axis, half in ((1, position[:, centre]), (2, position[0, centre:])):
        kernel = np.concatenate([half[:0:-1], half])
        smoothed = correlate1d(smoothed, kernel, axis=axis, mode="constant")
        mass = correlate1d(np.ones(planes.shape[axis]), kernel, mode="constant")
        smoothed /= mass[:, None] if axis == 1 else mass
    return smoothed
