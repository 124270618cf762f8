"""The bilateral filter on images: attention by position and grey level."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import correlate1d

from ..inputs import Array, as_array
from ..kernels.window_average import WindowAverage, extend
from .images import (
    Planes,
    check_image,
    check_image_or_volume,
    check_side,
    check_width,
)
from .level_average import average_levels
from .shifted_average import ShiftedAverage


def bilateral_filter(
    image: ArrayLike,
    *,
    win_size: int | None = None,
    sigma_color: float = 0.1,
    sigma_spatial: float = 1.0,
    footprint: ArrayLike | None = None,
    channel_axis: int | None = None,
    mask: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Smooth an image or a volume but keep its edges: average what is close in place and level.

    ::

        u_i = sum_j w_ij y_j / sum_j w_ij
        w_ij = exp(-|p_i - p_j|^2 / (2 sigma_spatial^2) - |y_i - y_j|^2 / (2 sigma_color^2))

    with y_i the grey level (or the channels) of pixel i, p_i its position in pixels, and j in the
    window around i. The window is clipped to the image: nothing is padded. ``|y_i - y_j|`` is the
    Euclidean distance over the channels.

    Both limits are exact. ``sigma_color=inf`` gives the windowed Gaussian filter, computed as a
    separable one. ``sigma_spatial=inf`` with a window of the whole image gives the range filter,
    which depends on grey levels only; for k distinct levels it takes k^2 operations.

    With a `mask` the sums are over valid pixels j. A hole has no grey level: it gets the average of
    the valid pixels around it by position alone. Masks and volumes take a slower form in float64.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels along `channel_axis`
        Or a volume of shape (n1, n2, n3), each at least 5, where `channel_axis` is None.
    win_size : int, optional
        Side of the square window in pixels, odd; of a cube in volumes. None is ``max(5, 2 *
        ceil(3 * sigma_spatial) + 1)``, the whole image if that is infinite.
    sigma_color : float, default=0.1
        Standard deviation of grey levels, in their own unit. Infinity is allowed.
    sigma_spatial : float, default=1.0
        Standard deviation of positions, in pixels. Infinity is allowed.
    footprint : array-like of bool, or of zeros and ones, optional
        Shape of the window in place of `win_size`, for instance a disk. Its sides must be odd, and
        it must hold its centre and the opposite of each of its shifts, so that ``w_ij = w_ji``.
        It has as many axes as the image, without channels.
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
        On NaN, infinity, a wrong number of dimensions, widths ``<= 0``, an even window, a footprint
        that is not symmetric, both `footprint` and `win_size`, a mask of another shape, or a pixel
        without any valid pixel in its window.

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
    planes, mask = check_image_or_volume(image, channel_axis, sigma_color, mask)
    values = planes.values
    position = _position(values, win_size, sigma_spatial, footprint)
    scale = planes.inverse_square(sigma_color) / 2
    if mask is None and scale == 0 and footprint is None:
        smoothed = _gaussian_filter(values, position)
    elif mask is None and _reaches_all(position, values.shape[1:]):
        smoothed = average_levels(values, scale, n_jobs)
    elif mask is None and values.ndim == 3:
        smoothed = _average(planes, position, scale).apply(n_jobs)
    else:
        double, hidden = values.astype(np.float64, copy=False), None if mask is None else mask[None]
        average = ShiftedAverage(double, np.ones(1), position, scale, mask=hidden)
        smoothed = average.apply(n_jobs).astype(values.dtype, copy=False)
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
    `bilateral_filter`, except `mask` and `n_jobs`. It takes no volumes.

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
    position = _position(planes.values, win_size, sigma_spatial, footprint)
    return _average(planes, position, planes.inverse_square(sigma_color) / 2).matrix()


def _average(planes: Planes, position: Array, scale: float) -> WindowAverage:
    """Return the filter of an image as an average over shifts of it."""
    return WindowAverage(
        padded=extend(planes.values),
        width=planes.values.shape[2],
        taps=np.ones(1, planes.values.dtype),
        position=position[len(position) // 2 :],
        scale=scale,
    )


def _position(
    planes: Array,
    win_size: int | None,
    sigma_spatial: float,
    footprint: ArrayLike | None,
) -> Array:
    """Weights by position of all shifts, clipped to those within the image."""
    sigma_spatial, shape = check_width(sigma_spatial, "sigma_spatial"), planes.shape[1:]
    if footprint is None:
        window = _square(win_size, sigma_spatial, shape)
    elif win_size is None:
        window = _check_footprint(footprint, shape)
    else:
        raise ValueError(f"win_size: must be None with a footprint, got {win_size}")
    position = window.astype(planes.dtype)
    for axis, side in enumerate(window.shape):
        weights = _gaussian(np.arange(side) - side // 2, sigma_spatial)
        position *= weights.reshape([-1 if k == axis else 1 for k in range(window.ndim)])
    return position


def _gaussian(shift: Array, sigma: float) -> Array:
    """Return ``exp(-shift^2 / (2 sigma^2))``."""
    with np.errstate(over="ignore"):  # with a tiny sigma, weights are 0 and 1
        weights: Array = np.exp(-((shift / sigma) ** 2) / 2)
    return weights


def _reaches_all(position: Array, shape: tuple[int, ...]) -> bool:
    """Whether each window holds all pixels, with equal weights of position."""
    whole = position.shape == tuple(2 * side - 1 for side in shape)
    return whole and bool((position == 1).all())


def _square(win_size: int | None, sigma_spatial: float, shape: tuple[int, ...]) -> Array:
    """The square window, clipped to the shifts within the image."""
    if win_size is not None:
        reach = check_side(win_size, "win_size") // 2
    else:
        reach = max(2, math.ceil(min(3 * sigma_spatial, sum(shape))))
    return np.ones([2 * min(reach, side - 1) + 1 for side in shape], dtype=bool)


def _check_footprint(footprint: ArrayLike, shape: tuple[int, ...]) -> Array:
    """The footprint, clipped to the shifts within the image."""
    window = as_array(footprint, "footprint")
    if window.ndim != len(shape) or not all(side % 2 for side in window.shape):
        kind = "a matrix" if len(shape) == 2 else f"an array of {len(shape)} axes"
        raise ValueError(f"footprint: must be {kind} with odd sides, got shape {window.shape}")
    allowed = np.isin(window, (0, 1)) & (window.dtype.kind in "biuf")
    if not allowed.all():
        raise ValueError(f"footprint: must hold zeros and ones only, got {window[~allowed][0]!r}")
    window = window.astype(bool)
    middle = [side // 2 for side in window.shape]
    if not window[tuple(middle)] or (window != np.flip(window)).any():
        raise ValueError("footprint: must hold its centre, and the opposite of each of its shifts")
    reach = [min(m, side - 1) for m, side in zip(middle, shape, strict=True)]
    return window[tuple(slice(m - r, m + r + 1) for m, r in zip(middle, reach, strict=True))]


def _gaussian_filter(planes: Array, position: Array) -> Array:
    """Windowed Gaussian filter: average along one axis after another."""
    middle, smoothed = [side // 2 for side in position.shape], planes
    for axis in range(len(middle)):
        line = (*middle[:axis], slice(None), *middle[axis + 1 :])
        kernel = position[line].astype(planes.dtype)
        smoothed = correlate1d(smoothed, kernel, axis=1 + axis, mode="constant")
        mass = correlate1d(np.ones(planes.shape[1 + axis]), kernel, mode="constant")
        smoothed /= mass.reshape([-1 if k == 1 + axis else 1 for k in range(planes.ndim)])
    return smoothed
