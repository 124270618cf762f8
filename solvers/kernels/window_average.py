"""Weighted averages over windows, the form of all filters here, computed shift by shift.

::

    u_i = sum_j w_ij y_j / sum_j w_ij,    w_ij = g_(j-i) exp(-scale max(d_ij - offset, 0))
    d_ij = sum_kl t_k t_l |y_(i+(k,l)) - y_(j+(k,l))|^2

Each shift j - i gives the weights of both pixels, as ``w_ij = w_ji``. Patches are compared by
filtering the squared differences along rows and along columns. This uses direct sums of nonnegative
terms, so that no digit is lost, unlike with running sums or integral images. Small uniform patches
need only plain sums: along each row once, then of pairs of rows, which are stored for the next
rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial.distance import cdist

from ..inputs import Array
from .apart import add, put, read
from .compiled import inlined_fused, jit_fused
from .exponential import exp2_terms, exp2_to_zero
from .workers import count_workers, spread

_BLOCK_ROWS = 32
_LINE_BYTES = 64  # of the cache
_STEP = 16  # loops process multiples of this number of pixels, without a remainder
_MOST_AT_ONCE = 7  # largest side of uniform patches whose sums are written out

# What the kernel stores for the current shift in `rows`, and how row k becomes weights::
#
#     rows of `rows`    uniform patches, size 5            other patches
#     0 .. size - 1     sums of squares, of pairs of       squares of the last `size` rows,
#                       rows: pair k at k % size           row k at k % size
#     + _SQUARES        squares of row k                   rows filtered along columns
#     + _WEIGHTS        weights of the pixels, where these have several channels
#     + _DISTANCES      d of the pixels in the middle of the patches that end with row k
#     + _ZEROS          zeros: what a patch of fewer rows or pixels reads instead
#     + _SUMS, + 1      sums along rows k and k - 1, alternating
#
#     row k:        s0 s1 s2 s3 s4 s5 ...     squares
#     along it:      [-- s0..s4 --]           `_along_five`: the pixels of a patch in one row
#     k - 1, k:     pair k = row k - 1 + row k
#     distance:     row k + pair k - 1 + pair k - 3     `_above_five`: the rows above, by pairs
#     ... size 4:   row k + row k - 1 + pair k - 2
#
# A loop writes to one of these rows, or to `sums`, and reads only from the others. The names of
# `put` and `add` number the arrays that a loop writes, from 0, and so tell the compiler that no two
# of them overlap.
_SQUARES = 0  # of one row, or filtered along columns
_WEIGHTS = 1
_DISTANCES = 2
_ZEROS = 3
_SUMS = 4  # along the last two rows, of uniform patches
_MORE_ROWS = 6


@dataclass(frozen=True, eq=False)
class WindowAverage:
    """A filter of the form above: its image, weights and scales.

    Parameters
    ----------
    padded : ndarray of shape (channels, height + size - 1, more than width + size - 1)
        The image y with ``(size - 1) // 2`` pixels added above and left, ``size // 2`` below and
        right, and the columns of `extend`.
    width : int
        Width of the image.
    taps : ndarray of shape (size,)
        Weights t of a patch along an axis, symmetric about its middle.
    position : ndarray of shape (n_down + 1, 2 n_right + 1)
        Weights g of the shifts down, at ``[down, right + n_right]``; shifts up have the same
        weights by symmetry. The shift 0 has weight 1.
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

    def apply(self, n_jobs: int | None) -> Array:
        """Return the averages, of shape (channels, height, width), computed in bands of rows.

        The sums over one block of rows and one vertical shift have the precision of the image,
        their totals float64. Blocks do not depend on the bands, and no band reads what another
        wrote, so that the result does not depend on `n_jobs`.
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
    """Append columns whose values differ so much from all others that their weights are 0.

    They fill each row up to a multiple of the pixels that loops process.
    """
    channels, height, width = padded.shape
    longer = _make_aligned((channels, height, width + 2 * _STEP), padded.dtype)
    longer[..., :width] = padded
    beyond = longer.shape[2] - width
    longer[..., width:] = np.finfo(padded.dtype).max / (2 * beyond) * np.arange(1, beyond + 1)
    return longer


def _average_band(average: WindowAverage, start: int, stop: int) -> Array:
    padded, taps, width = average.padded, average.taps, average.width
    real, channels, size, border = padded.dtype, len(padded), len(taps), (len(taps) - 1) // 2
    totals = np.ones((channels + 1, stop - start, width))
    totals[:-1] = padded[:, start + border : stop + border, border : border + width]
    sums = _make_aligned((2, channels + 1, _BLOCK_ROWS + 1, width + _STEP), real)
    rows = _make_aligned((size + _MORE_ROWS, padded.shape[2]), real)
    pairs, (slope, rise) = _pair_taps(taps), _fit_line(average)
    terms = exp2_terms(real)
    slope /= real.type(1 if len(pairs) else size * size)
    slope = max(slope, np.finfo(real).tiny)  # positive, so that infinite distances have weight 0
    _add_shifts(padded, pairs, average.position, slope, rise, start, totals, sums, rows, terms)
    totals[:-1] /= totals[-1]
    return totals[:-1].astype(real)


def _make_aligned(shape: tuple[int, ...], real: Any) -> Array:
    """Zeros in rows that are aligned to cache lines.

    Rows are padded to an odd number of cache lines, so that few rows compete for the same places in
    the cache.
    """
    per_line = _LINE_BYTES // real.itemsize
    longer = (*shape[:-1], per_line * (-(-shape[-1] // per_line) | 1))
    size = math.prod(longer)
    zeros = np.zeros(size + per_line, dtype=real)
    start = -zeros.ctypes.data % _LINE_BYTES // real.itemsize
    return zeros[start : start + size].reshape(longer)


def _fit_line(average: WindowAverage) -> tuple[Any, Any]:
    """Slope and rise in ``w_ij = g_(j-i) 2^min(rise - slope d_ij, 0)``.

    The slope is limited so that the rise is finite; with larger slopes, all weights would be those
    of the position or 0.
    """
    real = average.padded.dtype
    most = float(np.finfo(real).max) / 4
    offset = min(average.offset, most)
    slope = real.type(min(average.scale / math.log(2), most / max(offset, 1)))
    return slope, real.type(float(slope) * offset)


def _pair_taps(taps: Array) -> Array:
    """Taps from the middle outwards, each for the pair of pixels at its distance; at least two.

    The pixel in the middle is a pair with itself; of two pixels, each is half a pair. Uniform
    patches that are summed at once get no taps.
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

    `sums` holds the sums of the rows of a block, and of the rows that lie a shift below them. Its
    last row takes what belongs to other bands.
    """
    size, reach, uniform = rows.shape[0] - _MORE_ROWS, position.shape[1] // 2, pairs.size == 0
    block, width = sums.shape[2] - 1, totals.shape[2]
    height, stop = padded.shape[1] - size + 1, start + totals.shape[1]
    highest = max(0, start - position.shape[0] + 1)
    for first in range(highest - highest % block, stop, block):
        for down in range(position.shape[0]):
            for right in range(-reach, reach + 1):
                factor = position[down, right + reach]
                if factor == 0 or (down == 0 and right <= 0):
                    continue
                level = np.log2(factor)
                n = width - abs(right)
                n += -n % _STEP
                last = -2
                for i in range(max(first, start - down), min(first + block, stop, height - down)):
                    if stop - down <= i < start:  # both pixels belong to other bands
                        continue
                    for k in range(i + size - 1 if i == last + 1 else i, i + size):
                        to = size + _SQUARES if uniform else k % size
                        _square(padded, k, down, right, n + size - 1, rows, to)
                        if uniform and k < i + size - 1:
                            _sum_along(rows, k, n)
                        elif uniform:
                            _sum(rows, k, n)
                    if not uniform:
                        _filter(rows, pairs, i, n)
                    y = i - first if i >= start else block
                    z = i - first if i + down < stop else block
                    line = level + rise, slope, level
                    _weigh(padded, i, down, right, n, line, terms, rows, sums, y, z)
                    last = i
            _flush(sums[0], totals, first - start)
            _flush(sums[1], totals, first + down - start)


@inlined_fused
def _square(padded: Any, k: int, down: int, right: int, n: int, rows: Any, to: int) -> None:
    """Squared differences of row k and the row that lies a shift away."""
    n += -n % _STEP
    for x in range(n):
        put(rows, (to, x), _difference(padded, 0, k, down, right, x) ** 2, 0)
    for c in range(1, padded.shape[0]):
        for x in range(n):
            add(rows, (to, x), _difference(padded, c, k, down, right, x) ** 2, 0)


@inlined_fused
def _difference(padded: Any, c: int, k: int, down: int, right: int, x: int) -> Any:
    here, there = max(0, -right), max(0, right)
    return read(padded, (c, k, here + x)) - read(padded, (c, k + down, there + x))


# `_along_n` adds n numbers of a row, from x on, as a tree, so that few additions wait for others.


@inlined_fused
def _along_two(a: Any, row: int, x: int) -> Any:
    return read(a, (row, x)) + read(a, (row, x + 1))


@inlined_fused
def _along_three(a: Any, row: int, x: int) -> Any:
    return _along_two(a, row, x) + read(a, (row, x + 2))


@inlined_fused
def _along_four(a: Any, row: int, x: int) -> Any:
    return _along_two(a, row, x) + _along_two(a, row, x + 2)


@inlined_fused
def _along_five(a: Any, row: int, x: int) -> Any:
    return _along_four(a, row, x) + read(a, (row, x + 4))


@inlined_fused
def _along_six(a: Any, row: int, x: int) -> Any:
    return _along_four(a, row, x) + _along_two(a, row, x + 4)


@inlined_fused
def _along_seven(a: Any, row: int, x: int) -> Any:
    return _along_four(a, row, x) + _along_three(a, row, x + 4)


# `_above_n` adds the sums of the rows above the last row of a patch of n or n - 1 rows.


@inlined_fused
def _above_three(a: Any, p: int, q: int, r: int, x: int) -> Any:
    return read(a, (p, x))


@inlined_fused
def _above_five(a: Any, p: int, q: int, r: int, x: int) -> Any:
    return read(a, (p, x)) + read(a, (q, x))


@inlined_fused
def _above_seven(a: Any, p: int, q: int, r: int, x: int) -> Any:
    return read(a, (p, x)) + (read(a, (q, x)) + read(a, (r, x)))


def _sums(along: Any, above: Any, step: int) -> Any:
    """Return a kernel of the sums over a patch, from sums along its last row and the rows above.

    Loops of `step` pixels are unrolled, so that a number is loaded once for several pixels. Short
    sums are unrolled by the compiler itself; with `step` they would not become vector instructions.
    """

    @inlined_fused
    def add_up(rows: Any, size: int, k: int, n: int) -> None:
        squares, out, pair = size + _SQUARES, size + _DISTANCES, k % size
        before, now = size + _SUMS + (k - 1) % 2, size + _SUMS + k % 2
        p, q, r = _above(size, k, 1), _above(size, k, 3), _above(size, k, 5)
        for block in range(n // step):
            for t in range(step):
                x = step * block + t
                total = along(rows, squares, x)
                put(rows, (now, x), total, 0)
                put(rows, (pair, x), read(rows, (before, x)) + total, 1)
                put(rows, (out, x), above(rows, p, q, r, x) + total, 2)

    return add_up


_sum_two = _sums(_along_two, _above_three, 1)
_sum_three = _sums(_along_three, _above_three, 1)
_sum_four = _sums(_along_four, _above_five, _STEP)
_sum_five = _sums(_along_five, _above_five, _STEP)
_sum_six = _sums(_along_six, _above_seven, _STEP)
_sum_seven = _sums(_along_seven, _above_seven, _STEP)


@inlined_fused
def _sum_along(rows: Any, k: int, n: int) -> None:
    """Sum the squares along row k, and add the row above; no patch ends with row k."""
    size = rows.shape[0] - _MORE_ROWS
    before, now, pair = size + _SUMS + (k - 1) % 2, size + _SUMS + k % 2, k % size
    b, c, d = _squares(size, 1), _squares(size, 2), _squares(size, 3)
    e, f, g = _squares(size, 4), _squares(size, 5), _squares(size, 6)
    for x in range(n):
        total = _both(rows, size + _SQUARES, b, 0, 1, x) + _both(rows, c, d, 2, 3, x)
        total += _both(rows, e, f, 4, 5, x) + read(rows, (g, x + 6))
        put(rows, (now, x), total, 0)
        put(rows, (pair, x), read(rows, (before, x)) + total, 1)


@inlined_fused
def _squares(size: int, t: int) -> int:
    """Index in `rows` of the squares of row t of a patch."""
    return size + (_SQUARES if t < size else _ZEROS)


@inlined_fused
def _above(size: int, k: int, t: int) -> int:
    """Index in `rows` of the sums of the pair of rows that ends t above row k, or of one row."""
    if size % 2 == 0:
        t -= 1
    if t == 0:
        return size + _SUMS + (k - 1) % 2
    return (k - t) % size if t < size - 1 else size + _ZEROS


@inlined_fused
def _sum(rows: Any, k: int, n: int) -> None:
    """Sum the squares along row k, then add those of the rows above it in the patch."""
    size = rows.shape[0] - _MORE_ROWS
    if size == 1:
        for x in range(n):
            put(rows, (size + _DISTANCES, x), read(rows, (size + _SQUARES, x)), 0)
    elif size == 2:
        _sum_two(rows, size, k, n)
    elif size == 3:
        _sum_three(rows, size, k, n)
    elif size == 4:
        _sum_four(rows, size, k, n)
    elif size == 5:
        _sum_five(rows, size, k, n)
    elif size == 6:
        _sum_six(rows, size, k, n)
    elif size == 7:
        _sum_seven(rows, size, k, n)


@inlined_fused
def _filter(rows: Any, pairs: Any, i: int, n: int) -> None:
    """Filter squares along columns, then along rows."""
    size = rows.shape[0] - _MORE_ROWS
    low, high, second = (size - 1) // 2, size // 2, min(1, size - 2)
    along, out, width = size + _SQUARES, size + _DISTANCES, n + size - 1
    width += -width % _STEP
    tap, beside = pairs[0], pairs[1]
    y, z = (i + low) % size, (i + high) % size
    y_beside, z_beside = (i + low - second) % size, (i + high + second) % size
    for x in range(width):
        first, other = _both(rows, y, z, 0, 0, x), _both(rows, y_beside, z_beside, 0, 0, x)
        put(rows, (along, x), tap * first + beside * other, 0)
    for t in range(2, pairs.size):
        tap, y, z = pairs[t], (i + low - t) % size, (i + high + t) % size
        for x in range(width):
            add(rows, (along, x), tap * _both(rows, y, z, 0, 0, x), 0)
    tap, beside = pairs[0], pairs[1]
    for x in range(n):
        first = _both(rows, along, along, low, high, x)
        other = _both(rows, along, along, low - second, high + second, x)
        put(rows, (out, x), tap * first + beside * other, 0)
    for t in range(2, pairs.size):
        tap = pairs[t]
        for x in range(n):
            add(rows, (out, x), tap * _both(rows, along, along, low - t, high + t, x), 0)


@inlined_fused
def _both(rows: Any, a: int, b: int, left: int, right: int, x: int) -> Any:
    return read(rows, (a, left + x)) + read(rows, (b, right + x))


@inlined_fused
def _weigh(
    padded: Any,
    i: int,
    down: int,
    right: int,
    n: int,
    line: tuple[Any, Any, Any],
    terms: Any,
    rows: Any,
    sums: Any,
    y: int,
    z: int,
) -> None:
    """Compute the weights of pairs of pixels; add each pixel and the weight to the other's sum."""
    size, channels = rows.shape[0] - _MORE_ROWS, padded.shape[0]
    border, here, there, kept = (size - 1) // 2, max(0, -right), max(0, right), size + _WEIGHTS
    above, below, near, far = i + border, i + down + border, here + border, there + border
    if channels == 1:
        for x in range(n):
            weight = _weight(rows, x, line, terms)
            add(sums, (0, 0, y, here + x), weight * read(padded, (0, below, far + x)), 0)
            add(sums, (1, 0, z, there + x), weight * read(padded, (0, above, near + x)), 1)
            add(sums, (0, 1, y, here + x), weight, 2)
            add(sums, (1, 1, z, there + x), weight, 3)
        return
    for x in range(n):
        weight = _weight(rows, x, line, terms)
        put(rows, (kept, x), weight, 0)
        add(sums, (0, channels, y, here + x), weight, 1)
        add(sums, (1, channels, z, there + x), weight, 2)
    for c in range(channels):
        for x in range(n):
            weight = read(rows, (kept, x))
            add(sums, (0, c, y, here + x), weight * read(padded, (c, below, far + x)), 0)
            add(sums, (1, c, z, there + x), weight * read(padded, (c, above, near + x)), 1)


@inlined_fused
def _weight(rows: Any, x: int, line: tuple[Any, Any, Any], terms: Any) -> Any:
    rise, slope, most = line
    distance = read(rows, (rows.shape[0] - _MORE_ROWS + _DISTANCES, x))
    return exp2_to_zero(min(rise - slope * distance, most), terms)


@jit_fused
def _flush(sums: Any, totals: Any, first: int) -> None:
    """Add the sums to the rows of the totals from `first` on, as far as these exist."""
    for channel in range(sums.shape[0]):
        for y in range(max(0, -first), min(sums.shape[1] - 1, totals.shape[1] - first)):
            for x in range(totals.shape[2]):
                totals[channel, first + y, x] += sums[channel, y, x]
                sums[channel, y, x] = 0
