"""The noise level of a picture or a volume, also where a camera or JPEG has smoothed the noise."""

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
    is that of `skimage.restoration.estimate_sigma`, for white noise. Of a volume the blocks of all
    slices count together, without the surroundings: blocks of the one level that fills most.

    Parameters
    ----------
    levels : ndarray of shape (height, width, channels) or (depth, height, width, channels)
    seen : bool ndarray of the shape of `levels` without channels, optional
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
    seen = np.ones(levels.shape[:-1], dtype=bool) if seen is None else seen
    return float(np.mean([_estimate(channel, seen) for channel in np.moveaxis(levels, -1, 0)]))


def _estimate(plane: Array, seen: Array) -> float:
    """Return the estimate of one channel, of shape (height, width) or (depth, height, width)."""
    clipped = (plane == plane.min()) | (plane == plane.max())
    usable = (_cut(clipped).mean(axis=(-2, -1)) <= _CLIPPED) & _cut(seen).all(axis=(-2, -1))
    if plane.ndim == 3:
        usable &= ~_surroundings(_cut(plane))
    variances = np.where(usable, _variances(_cut(plane)), np.nan)
    around = np.where(usable, _means_around(variances), np.nan)
    n_usable = np.count_nonzero(~np.isnan(around))
    if n_usable < _FEWEST:
        return _estimate_white(plane, seen)
    n_flat = max(_FEWEST_FLAT, round(_SHARE * n_usable))
    flattest = np.argsort(around, axis=None)[:n_flat]  # NaN comes last
    return float(np.sqrt(np.median(variances.ravel()[flattest])))


def _cut(plane: Array) -> Array:
    """Return whole blocks, of shape (rows, columns, side, side), or that of each slice."""
    rows, columns = (extent // _SIDE for extent in plane.shape[-2:])
    whole = plane[..., : _SIDE * rows, : _SIDE * columns]
    return whole.reshape(*plane.shape[:-2], rows, _SIDE, columns, _SIDE).swapaxes(-3, -2)


def _surroundings(blocks: Array) -> Array:
    """Whether all pixels of a block have the level that most blocks of one level have."""
    level, same = blocks[..., 0, 0], np.ptp(blocks, axis=(-2, -1)) == 0
    found, counts = np.unique(level[same], return_counts=True)
    return same & (level == found[counts.argmax()]) if found.size else same


def _variances(blocks: Array) -> Array:
    """Return the variance of each block about its plane of least squares, without bias."""
    slope = np.linspace(-1, 1, _SIDE)
    slope /= np.sqrt(np.square(slope).mean())
    centred = blocks - blocks.mean(axis=(-2, -1), keepdims=True)
    explained = sum(
        np.square((centred * along).mean(axis=(-2, -1))) for along in (slope, slope[:, None])
    )
    left: Array = np.square(centred).mean(axis=(-2, -1)) - explained
    return left.clip(min=0) * _SIDE**2 / (_SIDE**2 - 3)


def _means_around(variances: Array) -> Array:
    """Return the mean over the usable ones of the eight neighbours; NaN without any."""
    border = [(0, 0)] * (variances.ndim - 2) + [(1, 1)] * 2
    padded = np.pad(variances, border, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(-2, -1))
    others = np.delete(windows.reshape(*variances.shape, 9), 4, axis=-1)
    count = (~np.isnan(others)).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.nansum(others, axis=-1) / np.where(count, count, np.nan)


def _estimate_white(plane: Array, seen: Array) -> float:
    """Return scikit-image's estimate; NaN if every wavelet reaches an unseen pixel."""
    axes = (-2, -1)
    if (reaches := dwtn((~seen).astype(np.float64), _BOX, axes=axes)["dd"] > 0.5).all():
        return np.nan
    details = np.abs(dwtn(np.where(seen, plane, 0), "db2", axes=axes)["dd"][~reaches])
    found = details[details > 0]
    return float(np.median(found) / norm.ppf(0.75)) if found.size else 0.0
