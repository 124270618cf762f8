"""The noise level of a picture, also where a camera or JPEG has smoothed the noise."""

import numpy as np
from pywt import Wavelet, dwtn
from scipy.stats import norm

from ....solvers.inputs import Array

_SIDE = 12  # pixels of a block: wide beside what cameras smooth, narrow beside what they show
_FEWEST = 80  # blocks; of fewer, too few are flat
_SHARE, _FEWEST_FLAT = 0.05, 8  # of the blocks, those that are flat, and how many at least
_BOX = Wavelet("box", filter_bank=[[1.0] * 4] * 4)  # as long as db2
_CLIPPED = 0.02  # of its pixels: a block with more at an end of the levels does not count


def estimate_noise(levels: Array, seen: Array | None = None) -> float:
    """Estimate the standard deviation of the noise from the flattest blocks of a picture.

    The picture is cut into blocks of 12 x 12 pixels. A block is as flat as the eight blocks around
    it: the mean of their variances about a plane. Of the flattest 5 % the median of their own
    variances is that of the noise. A block is thus not chosen by its own noise, which would make
    the estimate too low. All frequencies count alike, so that noise need not be white. It must
    reach over a few pixels only: of noise smoothed by a Gaussian of one pixel, a tenth is lost.
    Blocks with clipped pixels are left out. Of fewer than 80 blocks, 108 x 108 pixels, the estimate
    is that of `skimage.restoration.estimate_sigma`, for white noise.

    Parameters
    ----------
    levels : ndarray of shape (height, width, channels)
    seen : bool ndarray of shape (height, width), optional
        Pixels that count; others are transparent or holes.

    Returns
    -------
    float
        In units of `levels`, the mean over the channels; 0 for a picture without any detail, NaN
        if no 4 x 4 pixels are all seen.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.ndimage import gaussian_filter
    >>> from twinsolve.bench.vision.denoising.noise_estimate import estimate_noise
    >>> noise = gaussian_filter(np.random.default_rng(0).standard_normal((240, 320)), 0.8)
    >>> float(round(estimate_noise(noise[..., None]) / noise.std(), 2))
    0.91
    """
    seen = np.ones(levels.shape[:2], dtype=bool) if seen is None else seen
    return float(np.mean([_estimate(channel, seen) for channel in np.moveaxis(levels, 2, 0)]))


def _estimate(plane: Array, seen: Array) -> float:
    clipped = (plane == plane.min()) | (plane == plane.max())
    usable = (_cut(clipped).mean(axis=(2, 3)) <= _CLIPPED) & _cut(seen).all(axis=(2, 3))
    variances = np.where(usable, _variances(_cut(plane)), np.nan)
    around = np.where(usable, _means_around(variances), np.nan)
    n_usable = np.count_nonzero(~np.isnan(around))
    if n_usable < _FEWEST:
        return _estimate_white(plane, seen)
    n_flat = max(_FEWEST_FLAT, round(_SHARE * n_usable))
    flattest = np.argsort(around, axis=None)[:n_flat]  # NaN comes last
    return float(np.sqrt(np.median(variances.ravel()[flattest])))


def _cut(plane: Array) -> Array:
    """Return whole blocks, of shape (rows, columns, side, side)."""
    height, width = (_SIDE * (extent // _SIDE) for extent in plane.shape)
    cut = plane[:height, :width].reshape(height // _SIDE, _SIDE, width // _SIDE, _SIDE)
    return cut.swapaxes(1, 2)


def _variances(blocks: Array) -> Array:
    """Return the variance of each block about its plane of least squares, without bias."""
    slope = np.linspace(-1, 1, _SIDE)
    slope /= np.sqrt(np.square(slope).mean())
    centred = blocks - blocks.mean(axis=(2, 3), keepdims=True)
    explained = sum(
        np.square((centred * along).mean(axis=(2, 3))) for along in (slope, slope[:, None])
    )
    left: Array = np.square(centred).mean(axis=(2, 3)) - explained
    return left.clip(min=0) * _SIDE**2 / (_SIDE**2 - 3)


def _means_around(variances: Array) -> Array:
    """Return the mean over the usable ones of the eight neighbours; NaN without any."""
    padded = np.pad(variances, 1, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).reshape(*variances.shape, 9)
    others = np.delete(windows, 4, axis=2)
    count = (~np.isnan(others)).sum(axis=2)
    with np.errstate(invalid="ignore"):
        return np.nansum(others, axis=2) / np.where(count, count, np.nan)


def _estimate_white(plane: Array, seen: Array) -> float:
    """Return scikit-image's estimate; NaN if every wavelet reaches an unseen pixel."""
    if (reaches := dwtn((~seen).astype(np.float64), _BOX)["dd"] > 0.5).all():
        return np.nan
    details = np.abs(dwtn(np.where(seen, plane, 0), "db2")["dd"][~reaches])
    found = details[details > 0]
    return float(np.median(found) / norm.ppf(0.75)) if found.size else 0.0
