"""The average over a window that every filter here is: a kernel that goes by shifts, not by pairs.

::

    u_i = sum_j w_ij y_j / sum_j w_ij,    w_ij = g_(j-i) exp(-scale max(d_ij - offset, 0))
    d_ij = sum_kl t_k t_l |y_(i+(k,l)) - y_(j+(k,l))|^2

A shift j - i serves both of its pixels, as ``w_ij = w_ji``. Patches are compared by filtering the
squared differences along rows and then along columns, with direct sums: their terms are not
negative, so that no digit is lost, as it would be in running sums and integral images. The sums of
small uniform patches are plain ones: along columns of pairs of rows, which are kept for the next
rows, and along rows at once, turned into weights in the same pass.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial.distance import cdist

from ..apart import add, read
from ..compiled import inlined_fused, jit_fused
from ..exponential import exp2_terms, exp2_to_zero
from ..solution import Array
from ..workers import count_workers, spread

_BLOCK_ROWS = 32
_LINE_BYTES = 64  # of the cache
_STEP = 16  # pixels of which loops take whole numbers; none are left over, to be taken singly
_MOST_AT_ONCE = 7  # LLVM compares at most 8 pairs of arrays for overlap before it vectorises


@dataclass(frozen=True, eq=False)
class WindowAverage:
    """The numbers that make a filter out of the formula above.

    Parameters
    ----------
    padded : ndarray of shape (channels, height + size - 1, more than width + size - 1)
        The image y with ``(size - 1) // 2`` pixels added above and left, ``size // 2`` elsewhere,
        and the columns of `extend`.
    width : int
        That of the image.
    taps : ndarray of shape (size,)
        Weights t of a patch along an axis, symmetric about its middle.
    position : ndarray of shape (n_down + 1, 2 n_right + 1)
        Weights g of the shifts, at ``[down, right + n_right]``; those up follow by symmetry. The
        shift 0 has weight 1.
    scale, offset : float
    """

    padded: Array
    width: int
    taps: Array
    position: Array
    scale: float
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        return self.padded.shape[1] - len(self.taps) + 1, self.width

    @property
    def reaches_all(self) -> bool:
        """Whether all pixels are in all windows, and with equal weights of position."""
        height, width = self.shape
        return self.position.shape == (height, 2 * width - 1) and bool((self.position == 1).all())

    def apply(self, n_jobs: int | None) -> Array:
        """Average, band of rows by band of rows; returns shape (channels, height, width).

        The sums of one block of rows and vertical shift are taken in the precision of the image,
        their total in float64. Blocks are the same in all bands, and no band reads what another
        wrote: the result does not depend on `n_jobs`.
        """
        height, _ = self.shape
        blocks = -(-height // _BLOCK_ROWS)
        rows = _BLOCK_ROWS * -(-blocks // count_workers(n_jobs))
        tasks = [(self, start, min(start + rows, height)) for start in range(0, height, rows)]
        return np.concatenate(list(spread(_average_band, tasks, n_jobs)), axis=1)

    def matrix(self) -> Array:
        """Row-stochastic matrix of `apply` over the pixels in row-major order."""
        height, width = self.shape
        window = np.concatenate([self.position[:0:-1, ::-1], self.position])
        beyond = height - len(self.position), width - 1 - window.shape[1] // 2
        table = np.pad(window, [(beyond[0], beyond[0]), (beyond[1], beyond[1])])
        rows, columns = np.indices((height, width)).reshape(2, -1)
        shifts = rows - rows[:, None] + height - 1, columns - columns[:, None] + width - 1
        t = self.taps.astype(np.float64)
        padded = self.padded[..., : width + len(t) - 1]
        patches = sliding_window_view(padded, (len(t), len(t)), axis=(1, 2))
        weighted = patches * np.sqrt(np.outer(t, t))
        features = np.moveaxis(weighted, 0, 2).reshape(height * width, -1)  # (pixels, d)
        distances = cdist(features, features, "sqeuclidean")
        with np.errstate(over="ignore"):
            weights = table[shifts] * np.exp(-self.scale * np.maximum(distances - self.offset, 0))
        return (weights / weights.sum(axis=1, keepdims=True)).astype(self.padded.dtype)


def extend(padded: Array) -> Array:
    """Append columns so far from each other and from the image that no weight reaches them.

    What is left of a row is filled up with them, as loops take whole numbers of pixels.
    """
    channels, height, width = padded.shape
    longer = _aligned((channels, height, width + 2 * _STEP), padded.dtype)
    longer[..., :width] = padded
    beyond = longer.shape[2] - width
    longer[..., width:] = np.finfo(padded.dtype).max / (2 * beyond) * np.arange(1, beyond + 1)
    return longer


def _average_band(average: WindowAverage, start: int, stop: int) -> Array:
    padded, taps, width = average.padded, average.taps, average.width
    real, channels, size, border = padded.dtype, len(padded), len(taps), (len(taps) - 1) // 2
    totals = np.ones((channels + 1, stop - start, width))
    totals[:-1] = padded[:, start + border : stop + border, border : border + width]
    sums = _aligned((2, channels + 1, _BLOCK_ROWS + 1, width + _STEP), real)
    rows = _aligned((size + 5, padded.shape[2]), real)
    pairs, (slope, rise) = _pairs(taps), _line(average)
    terms = exp2_terms(real)
    slope /= real.type(1 if len(pairs) else size * size)
    slope = max(slope, np.finfo(real).tiny)  # infinite distances count
    _add_shifts(padded, pairs, average.position, slope, rise, start, totals, sums, rows, terms)
    totals[:-1] /= totals[-1]
    return totals[:-1].astype(real)


def _aligned(shape: tuple[int, ...], real: Any) -> Array:
    """Zeros in rows that begin with a line of the cache.

    Rows are lengthened to an odd number of lines, so that few of them compete for the same places.
    """
    per_line = _LINE_BYTES // real.itemsize
    longer = (*shape[:-1], per_line * (-(-shape[-1] // per_line) | 1))
    size = math.prod(longer)
    zeros = np.zeros(size + per_line, dtype=real)
    start = -zeros.ctypes.data % _LINE_BYTES // real.itemsize
    return zeros[start : start + size].reshape(longer)


def _line(average: WindowAverage) -> tuple[Any, Any]:
    """Slope and rise: ``w_ij = g_(j-i) 2^min(rise - slope d_ij, 0)``.

    The slope is at most what keeps the rise finite: beyond, weights are those of the position or 0.
    """
    real = average.padded.dtype
    most = float(np.finfo(real).max) / 4
    offset = min(average.offset, most)
    slope = real.type(min(average.scale / math.log(2), most / max(offset, 1)))
    return slope, real.type(float(slope) * offset)


def _pairs(taps: Array) -> Array:
    """Taps from the middle outwards, each for the two pixels at its distance; at least two.

    A pixel in the middle is a pair with itself, and two pixels are two halves of a pair. None are
    returned of uniform patches that are summed at once.
    """
    if len(taps) <= _MOST_AT_ONCE and (taps == taps[0]).all():
        return taps[:0]
    pairs = taps[len(taps) // 2 :].copy()
    if len(taps) % 2:
        pairs[0] /= 2
    return np.repeat(pairs / 2, 2) if len(taps) == 2 else pairs


@jit_fused
def _add_shifts(
    padded: Any,
    pairs: Any,
    position: Any,
    slope: Any,
    rise: Any,
    start: int,
    totals: Any,
    sums: Any,
    rows: Any,
    terms: Any,
) -> None:
    """Add the weighted pixels (and, last, the weights) of the band from row `start` on.

    `sums` are those of the rows of a block, and of the rows that lie a shift below them; what
    belongs to other bands goes to the last row. `rows` are the squares of a patch (or their pairs),
    the sums along columns, the weights, the last squares, zeros, and the distances.
    """
    size, reach = rows.shape[0] - 5, position.shape[1] // 2
    border, block, width = (size - 1) // 2, sums.shape[2] - 1, totals.shape[2]
    height, stop = padded.shape[1] - size + 1, start + totals.shape[1]
    reached = max(0, start - position.shape[0] + 1)
    for first in range(reached - reached % block, stop, block):
        for down in range(position.shape[0]):
            for right in range(-reach, reach + 1):
                factor = position[down, right + reach]
                if factor == 0 or (down == 0 and right <= 0):
                    continue
                level = np.log2(factor)
                here, there = max(0, -right), max(0, right)
                n = width - abs(right)
                n += -n % _STEP
                weights = rows[size + 1, :n]
                distances = rows[size + 2 if size == 1 and pairs.size == 0 else size + 4, :n]
                last = -2
                for i in range(max(first, start - down), min(first + block, stop, height - down)):
                    if stop - down <= i < start:  # both pixels belong to other bands
                        continue
                    _square_rows(padded, i, down, right, n, i != last + 1, pairs.size == 0, rows)
                    if pairs.size == 0:
                        _sum(rows, i, distances)
                    else:
                        _filter(rows, pairs, i, distances)
                    near, far = sums[0], sums[1]
                    y = i - first if i >= start else block
                    z = i - first if i + down < stop else block
                    below, above = i + down + border, i + border
                    _weigh(
                        *(distances, level + rise, slope, level, terms, weights),
                        *(_cut(padded, 0, below, there + border, n), _cut(near, 0, y, here, n)),
                        *(_cut(padded, 0, above, here + border, n), _cut(far, 0, z, there, n)),
                        *(_cut(near, -1, y, here, n), _cut(far, -1, z, there, n)),
                    )
                    for c in range(1, padded.shape[0]):
                        values = _cut(padded, c, below, there + border, n)
                        _add_product(weights, values, _cut(near, c, y, here, n))
                        values = _cut(padded, c, above, here + border, n)
                        _add_product(weights, values, _cut(far, c, z, there, n))
                    last = i
            _flush(sums[0], totals, first - start)
            _flush(sums[1], totals, first + down - start)


@inlined_fused
def _square_rows(
    padded: Any, i: int, down: int, right: int, n: int, afresh: bool, paired: bool, rows: Any
) -> None:
    """Squared differences in the rows of the patches of row i, or the sums of two rows of them.

    They stay in `rows` for the next i, unless it begins `afresh`.
    """
    size = rows.shape[0] - 5
    here, there = max(0, -right), max(0, right)
    width = n + size - 1
    width += -width % _STEP
    for k in range(i if afresh else i + size - 1, i + size):
        out, last = rows[k % size, :width], rows[size + 2, :width]
        for channel in range(padded.shape[0]):
            a = padded[channel, k, here : here + width]
            b = padded[channel, k + down, there : there + width]
            if paired and channel == padded.shape[0] - 1:
                _square_and_pair(a, b, out, channel == 0, last)
            else:
                _square(a, b, out, channel == 0)


@inlined_fused
def _sum(rows: Any, i: int, out: Any) -> None:
    """The pairs of squares summed along columns, then along rows."""
    size, n = rows.shape[0] - 5, out.size
    if size == 1:
        return  # the last squares are the distances
    width = n + size - 1
    width += -width % _STEP
    sums, last = rows[size, :width], rows[size + 2 if size % 2 else size + 3, :width]
    if size <= 5:
        _add_three(_pair(rows, i, 1)[:width], _pair(rows, i, 3)[:width], last, sums)
        _add_five(
            *(sums[:n], sums[1 : n + 1], _from(rows, 2, n), _from(rows, 3, n), _from(rows, 4, n)),
            out,
        )
    else:
        _add_four(
            *(_pair(rows, i, 1)[:width], _pair(rows, i, 3)[:width]),
            *(_pair(rows, i, 5)[:width], last, sums),
        )
        _add_seven(
            *(sums[:n], sums[1 : n + 1], sums[2 : n + 2], sums[3 : n + 3], sums[4 : n + 4]),
            *(sums[5 : n + 5], _from(rows, 6, n), out),
        )


@inlined_fused
def _pair(rows: Any, i: int, k: int) -> Any:
    """Squares of the k-th row of the patches plus those of the row above; zeros beyond."""
    size = rows.shape[0] - 5
    return rows[(i + k) % size if k < size else size + 3]


@inlined_fused
def _from(rows: Any, k: int, n: int) -> Any:
    """The sums along columns from the k-th on; zeros beyond the patch."""
    size = rows.shape[0] - 5
    return rows[size, k : k + n] if k < size else rows[size + 3, :n]


@inlined_fused
def _filter(rows: Any, pairs: Any, i: int, out: Any) -> None:
    """Squares filtered along columns, then along rows."""
    size, n = rows.shape[0] - 5, out.size
    low, high, second = (size - 1) // 2, size // 2, min(1, size - 2)
    along = rows[size, : n + size - 1]
    width = along.size
    x, y = i + low, i + high
    _start(
        rows[x % size, :width],
        rows[y % size, :width],
        rows[(x - second) % size, :width],
        rows[(y + second) % size, :width],
        pairs[0],
        pairs[1],
        along,
    )
    for t in range(2, pairs.size):
        _add_pair(rows[(x - t) % size, :width], rows[(y + t) % size, :width], pairs[t], along)
    _start(
        along[low : low + n],
        along[high : high + n],
        along[low - second : low - second + n],
        along[high + second : high + second + n],
        pairs[0],
        pairs[1],
        out,
    )
    for t in range(2, pairs.size):
        x, y = low - t, high + t
        _add_pair(along[x : x + n], along[y : y + n], pairs[t], out)


@inlined_fused
def _square(a: Any, b: Any, out: Any, first: bool) -> None:
    if first:
        for x in range(out.size):
            difference = a[x] - b[x]
            out[x] = difference * difference
    else:
        for x in range(out.size):
            difference = a[x] - b[x]
            out[x] += difference * difference


@inlined_fused
def _square_and_pair(a: Any, b: Any, out: Any, first: bool, last: Any) -> None:
    """The same, plus the last squares; these become the last."""
    if first:
        for x in range(out.size):
            difference = a[x] - b[x]
            square = difference * difference
            out[x] = last[x] + square
            last[x] = square
    else:
        for x in range(out.size):
            difference = a[x] - b[x]
            square = out[x] + difference * difference
            out[x] = last[x] + square
            last[x] = square


@inlined_fused
def _add_three(a: Any, b: Any, c: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = a[x] + b[x] + c[x]


@inlined_fused
def _add_four(a: Any, b: Any, c: Any, d: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = (a[x] + b[x]) + (c[x] + d[x])


@inlined_fused
def _add_five(a: Any, b: Any, c: Any, d: Any, e: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = (a[x] + b[x]) + (c[x] + d[x]) + e[x]


@inlined_fused
def _add_seven(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = (a[x] + b[x]) + (c[x] + d[x]) + ((e[x] + f[x]) + g[x])


@inlined_fused
def _start(a: Any, b: Any, c: Any, d: Any, tap: Any, beside: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] = tap * (a[x] + b[x]) + beside * (c[x] + d[x])


@inlined_fused
def _add_pair(left: Any, right: Any, tap: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] += tap * (left[x] + right[x])


@inlined_fused
def _cut(planes: Any, channel: int, y: int, x: int, n: int) -> Any:
    return planes[channel, y, x : x + n]


@inlined_fused
def _weigh(
    distances: Any,
    rise: Any,
    slope: Any,
    level: Any,
    terms: Any,
    weights: Any,
    below: Any,
    near: Any,
    above: Any,
    far: Any,
    near_total: Any,
    far_total: Any,
) -> None:
    """Weights of pairs of pixels; each pixel is added to the sum of the other, and the weight."""
    for x in range(weights.size):
        distance: Any = read(distances, x)  # type: ignore[call-arg]
        weight = exp2_to_zero(min(rise - slope * distance, level), terms)
        weights[x] = weight
        add(near, x, weight * read(below, x), 0)
        add(far, x, weight * read(above, x), 1)
        add(near_total, x, weight, 2)
        add(far_total, x, weight, 3)


@inlined_fused
def _add_product(a: Any, b: Any, out: Any) -> None:
    for x in range(out.size):
        out[x] += a[x] * b[x]


@jit_fused
def _flush(sums: Any, totals: Any, first: int) -> None:
    """Add the sums to the rows of the totals from the first on, where there are such."""
    for channel in range(sums.shape[0]):
        for y in range(max(0, -first), min(sums.shape[1] - 1, totals.shape[1] - first)):
            for x in range(totals.shape[2]):
                totals[channel, first + y, x] += sums[channel, y, x]
                sums[channel, y, x] = 0
