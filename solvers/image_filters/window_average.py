"""The average over a window that every filter here is: a kernel that goes by shifts, not by pairs.

::

    u_i = sum_j w_ij y_j / sum_j w_ij,    w_ij = g_(j-i) exp(-scale max(d_ij - offset, 0))
    d_ij = sum_kl t_k t_l |y_(i+(k,l)) - y_(j+(k,l))|^2

A shift j - i serves both of its pixels, as ``w_ij = w_ji``. Patches are compared by filtering the
squared differences along rows and then along columns, with direct sums: their terms are not
negative, so that no digit is lost, as it would be in running sums and integral images.
"""

from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from numba import njit
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial.distance import cdist

from ..exponential import exp
from ..solution import Array

_BAND_ROWS = 64

jit = njit(nogil=True, cache=True, fastmath={"contract"})
inlined = njit(nogil=True, fastmath={"contract"}, forceinline=True)


@dataclass(frozen=True, eq=False)
class WindowAverage:
    """The numbers that make a filter out of the formula above.

    Parameters
    ----------
    padded : ndarray of shape (channels, height + size - 1, width + size - 1)
        The image y with ``(size - 1) // 2`` pixels added above and left, ``size // 2`` elsewhere.
    taps : ndarray of shape (size,)
        Weights t of a patch along an axis, symmetric about its middle.
    position : ndarray of shape (n_down + 1, 2 n_right + 1)
        Weights g of the shifts, at ``[down, right + n_right]``; those up follow by symmetry. The
        shift 0 has weight 1.
    scale, offset : float
    """

    padded: Array
    taps: Array
    position: Array
    scale: float
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        border = len(self.taps) - 1
        return self.padded.shape[1] - border, self.padded.shape[2] - border

    @property
    def reaches_all(self) -> bool:
        """Whether all pixels are in all windows, and with equal weights of position."""
        height, width = self.shape
        return self.position.shape == (height, 2 * width - 1) and bool((self.position == 1).all())

    def apply(self, n_jobs: int | None) -> Array:
        """Average, band of rows by band of rows; returns shape (channels, height, width).

        The sums of one vertical shift are taken in the precision of the image, their total in
        float64. No band reads what another wrote: the result does not depend on `n_jobs`.
        """
        height, _ = self.shape
        bands = joblib.Parallel(n_jobs=n_jobs, prefer="threads")(
            joblib.delayed(_average_band)(self, start, min(start + _BAND_ROWS, height))
            for start in range(0, height, _BAND_ROWS)
        )
        return np.concatenate(bands, axis=1)

    def matrix(self) -> Array:
        """Row-stochastic matrix of `apply` over the pixels in row-major order."""
        height, width = self.shape
        window = np.concatenate([self.position[:0:-1, ::-1], self.position])
        beyond = height - len(self.position), width - 1 - window.shape[1] // 2
        table = np.pad(window, [(beyond[0], beyond[0]), (beyond[1], beyond[1])])
        rows, columns = np.indices((height, width)).reshape(2, -1)
        shifts = rows - rows[:, None] + height - 1, columns - columns[:, None] + width - 1
        t = self.taps.astype(np.float64)
        patches = sliding_window_view(self.padded, (len(t), len(t)), axis=(1, 2))
        weighted = patches * np.sqrt(np.outer(t, t))
        features = np.moveaxis(weighted, 0, 2).reshape(height * width, -1)
        distances = cdist(features, features, "sqeuclidean")
        with np.errstate(over="ignore"):
            weights = table[shifts] * np.exp(-self.scale * np.maximum(distances - self.offset, 0))
        return (weights / weights.sum(axis=1, keepdims=True)).astype(self.padded.dtype)


def _average_band(average: WindowAverage, start: int, stop: int) -> Array:
    padded, taps = average.padded, average.taps
    real, size, border = padded.dtype, len(taps), (len(taps) - 1) // 2
    channels, (_, width) = len(padded), average.shape
    totals = np.ones((channels + 1, stop - start, width))
    totals[:-1] = padded[:, start + border : stop + border, border : border + width]
    sums = np.zeros(totals.shape, dtype=real)
    rows = np.empty((size + 2, padded.shape[2]), dtype=real)
    most = float(np.finfo(real).max)
    scale, offset = real.type(average.scale), real.type(min(average.offset, most))
    pairs = _pairs(taps)
    _add_shifts(padded, pairs, average.position, scale, offset, start, totals, sums, rows)
    totals[:-1] /= totals[-1]
    return totals[:-1].astype(real)


def _pairs(taps: Array) -> Array:
    """Taps from the middle outwards, each for the two pixels at its distance; at least two.

    A pixel in the middle is a pair with itself, and two pixels are two halves of a pair.
    """
    pairs = taps[len(taps) // 2 :].copy()
    if len(taps) % 2:
        pairs[0] /= 2
    return np.repeat(pairs / 2, 2) if len(taps) == 2 else pairs


@jit
def _add_shifts(
    padded: Any,
    pairs: Any,
    position: Any,
    scale: Any,
    offset: Any,
    start: int,
    totals: Any,
    sums: Any,
    rows: Any,
) -> None:
    """Add the weighted pixels (and, last, the weights) of the band from row `start` on."""
    size, reach = rows.shape[0] - 2, position.shape[1] // 2
    border = (size - 1) // 2
    height, stop = padded.shape[1] - size + 1, start + totals.shape[1]
    for down in range(position.shape[0]):
        for right in range(-reach, reach + 1):
            factor = position[down, right + reach]
            if factor == 0 or (down == 0 and right <= 0):
                continue
            here, there = max(0, -right), max(0, right)
            last = -2
            for i in range(max(0, start - down), min(stop, height - down)):
                if stop - down <= i < start:  # both pixels belong to other bands
                    continue
                weights = _weigh_row(padded, pairs, i, down, right, i != last + 1, rows)
                _decay(weights, factor, scale, offset)
                if i >= start:
                    _give(weights, padded, border, i + down, there, sums, i - start, here)
                if i + down < stop:
                    _give(weights, padded, border, i, here, sums, i + down - start, there)
                last = i
        _flush(sums, totals)


@inlined
def _weigh_row(
    padded: Any, pairs: Any, i: int, down: int, right: int, afresh: bool, rows: Any
) -> Any:
    """Squared distances between the patches of row i and those a shift away.

    The squares filtered along rows stay in `rows` for the next i, unless it begins `afresh`.
    """
    size = rows.shape[0] - 2
    low, high, second = (size - 1) // 2, size // 2, min(1, size - 2)
    here, there = max(0, -right), max(0, right)
    width = rows.shape[1] - abs(right)
    n = width - size + 1
    squares, distances = rows[size, :width], rows[size + 1, :n]
    for k in range(i if afresh else i + size - 1, i + size):
        for channel in range(padded.shape[0]):
            a = padded[channel, k, here : here + width]
            b = padded[channel, k + down, there : there + width]
            _square(a, b, squares, channel == 0)
        if size == 1:
            return squares
        along = rows[k % size, :n]
        _start(
            squares[low : low + n],
            squares[high : high + n],
            squares[low - second : low - second + n],
            squares[high + second : high + second + n],
            pairs[0],
            pairs[1],
            along,
        )
        for t in range(2, pairs.size):
            x, y = low - t, high + t
            _add_pair(squares[x : x + n], squares[y : y + n], pairs[t], along)
    low, high = i + low, i + high
    _start(
        rows[low % size, :n],
        rows[high % size, :n],
        rows[(low - second) % size, :n],
        rows[(high + second) % size, :n],
        pairs[0],
        pairs[1],
        distances,
    )
    for t in range(2, pairs.size):
        x, y = (low - t) % size, (high + t) % size
        _add_pair(rows[x, :n], rows[y, :n], pairs[t], distances)
    return distances


@inlined
def _square(a: Any, b: Any, out: Any, first: bool) -> None:
    if first:
        for x in range(out.size):
            difference = a[x] - b[x]
            out[x] = difference * difference
    else:
        for x in range(out.size):
            difference = a[x] - b[x]
            out[x] += difference * difference


@inlined
def _start(a: Any, b: Any, c: Any, d: Any, tap: Any, beside: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = tap * (a[x] + b[x]) + beside * (c[x] + d[x])


@inlined
def _add_pair(left: Any, right: Any, tap: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] += tap * (left[x] + right[x])


@inlined
def _decay(row: Any, factor: Any, scale: Any, offset: Any) -> None:
    zero = np.float32(0)
    for x in range(row.size):
        row[x] = factor * exp(-scale * max(row[x] - offset, zero))


@inlined
def _give(
    weights: Any, padded: Any, border: int, i: int, x: int, sums: Any, row: int, column: int
) -> None:
    """Add the weighted pixels of row i, from x on, to a row of the sums, from a column on."""
    n = weights.size
    _add(weights, sums[-1, row, column : column + n])
    for channel in range(padded.shape[0]):
        values = padded[channel, i + border, x + border : x + border + n]
        _add_product(weights, values, sums[channel, row, column : column + n])


@inlined
def _add(row: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] += row[x]


@inlined
def _add_product(a: Any, b: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] += a[x] * b[x]


@jit
def _flush(sums: Any, totals: Any) -> None:
    for channel in range(sums.shape[0]):
        for y in range(sums.shape[1]):
            for x in range(sums.shape[2]):
                totals[channel, y, x] += sums[channel, y, x]
                sums[channel, y, x] = 0
