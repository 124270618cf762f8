"""Weighted averages over windows with holes, of volumes, and with a scale for each pixel.

::

    u_i = sum_j m_j w_ij y_j / sum_j m_j w_ij,    w_ij = g_(j-i) exp(-scale_i max(d_ij, 0))
    d_ij = sum_k t_k v_k (|y_(i+k) - y_(j+k)|^2 - n_(i+k) - n_(j+k)) / sum_k t_k v_k

with m the mask of valid pixels and ``v_k = m_(i+k) m_(j+k)``. NumPy computes it in float64, one
shift of a slab after another, for any number of axes. `WindowAverage` is the fast form for whole
images.

Only quotients of weights matter, so exponents count from the smallest in each window, which is 0 at
valid pixels. A pair without a common valid pixel (all v_k are 0) counts as farther than all others:
it has a weight only where no pixel of the window can be compared.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from scipy.ndimage import correlate1d

from ..inputs import Array
from ..kernels.workers import spread

_SLAB = 2**16  # pixels: the arrays of a shift stay in the cache
_FAR = float(np.finfo(np.float64).max) / 4  # exponent of pairs that cannot be compared
_HIDDEN = 2 * _FAR  # and of pixels that are not valid


@dataclass(frozen=True, eq=False)
class ShiftedAverage:
    """A filter of the form above.

    Parameters
    ----------
    padded : ndarray of shape (channels, ...)
        The image y in float64 with ``(size - 1) // 2`` pixels added before each axis, and
        ``size // 2`` behind it.
    taps : ndarray of shape (size,)
        Weights of a patch along an axis, with sum 1; t is their outer product.
    position : ndarray
        Weights g of all shifts, with an odd number along each axis of the image.
    scale : float or ndarray of the shape of the image
    noise : ndarray of shape (1, ...), optional
        The sum n of the variances of the channels, padded.
    mask : bool ndarray of shape (1, ...), optional
        Valid pixels, padded.
    """

    padded: Array
    taps: Array
    position: Array
    scale: float | Array
    noise: Array | None = None
    mask: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the image without its channels."""
        return tuple(side - len(self.taps) + 1 for side in self.padded.shape[1:])

    def apply(self, n_jobs: int | None) -> Array:
        """Return the averages, of shape (channels, ...); slabs do not depend on `n_jobs`.

        Raises
        ------
        ValueError
            If a pixel has no valid pixel in its window.
        """
        length, *others = self.shape
        thick = max(len(self.taps), _SLAB // prod(others))
        tasks = [(self, start, min(start + thick, length)) for start in range(0, length, thick)]
        totals = np.concatenate(list(spread(_add_slab, tasks, n_jobs)), axis=1)
        if (empty := totals[-1] == 0).any():
            first = tuple(map(int, np.argwhere(empty)[0]))
            raise ValueError(
                f"mask: {np.count_nonzero(empty)} pixels have no valid pixel in their window, "
                f"first {first}; increase patch_distance or win_size"
            )
        average: Array = totals[:-1] / totals[-1]
        return average

    def exponents(self, here: tuple[slice, ...], there: tuple[slice, ...]) -> Array:
        """Exponents of the weights of the pixels `there` for those `here`."""
        size = len(self.taps)
        i, j = (
            (slice(None), *(slice(s.start, s.stop + size - 1) for s in x)) for x in (here, there)
        )
        squares = np.square(self.padded[i] - self.padded[j]).sum(axis=0)
        if self.noise is not None:
            squares -= self.noise[i][0] + self.noise[j][0]
        if self.mask is not None:
            both = (self.mask[i] & self.mask[j])[0]
            shares = self._mean(both.astype(np.float64))
            squares = self._mean(squares * both) / np.where(shares > 0, shares, 1)
        else:
            squares = self._mean(squares)
        scale = self.scale if np.ndim(self.scale) == 0 else np.asarray(self.scale)[here]
        exponents: Array = np.minimum(scale * np.maximum(squares, 0), _FAR / 2)
        if self.mask is not None:
            exponents[shares <= 0] = _FAR
            exponents[~self.valid(there)] = _HIDDEN
        return exponents

    def valid(self, place: tuple[slice, ...]) -> Array:
        """The mask of pixels of the image."""
        assert self.mask is not None
        border = (len(self.taps) - 1) // 2
        valid: Array = self.mask[0][tuple(slice(s.start + border, s.stop + border) for s in place)]
        return valid

    def _mean(self, values: Array) -> Array:
        """Weighted sums over patches, of those that lie within the array."""
        size = len(self.taps)
        for axis in range(values.ndim) if size > 1 else ():
            values = correlate1d(values, self.taps, axis=axis, mode="constant")
            within = slice(size // 2, values.shape[axis] - (size - 1) // 2)
            values = values[(slice(None),) * axis + (within,)]
        return values


@np.errstate(over="ignore")  # of squares and exponents, whose weights are 0
def _add_slab(average: ShiftedAverage, start: int, stop: int) -> Array:
    """Sum weighted pixels, and last the weights, for the pixels from `start` to `stop`."""
    shape, border = average.shape, (len(average.taps) - 1) // 2
    inner = (slice(None), *(slice(border, border + side) for side in shape))
    values, masked = average.padded[inner], average.mask is not None
    totals = np.zeros((len(values) + 1, stop - start, *shape[1:]))
    least = np.full(totals.shape[1:], _HIDDEN)
    for place in np.argwhere(average.position):
        shift = place - np.array(average.position.shape) // 2
        here = [overlap(side, step) for side, step in zip(shape, shift, strict=True)]
        here[0] = slice(max(here[0].start, start), min(here[0].stop, stop))
        if here[0].start >= here[0].stop:
            continue
        there = tuple(slice(s.start + d, s.stop + d) for s, d in zip(here, shift, strict=True))
        exponents = average.exponents(tuple(here), there)
        here[0] = slice(here[0].start - start, here[0].stop - start)
        to = (slice(None), *here)
        if masked:
            before = least[to[1:]]
            lowest = np.minimum(before, exponents)
            totals[to] *= np.exp(lowest - before)
            exponents -= lowest
            least[to[1:]] = lowest
        weights = average.position[tuple(place)] * np.exp(-exponents)
        if masked:
            weights *= average.valid(there)
        totals[to][:-1] += weights * values[(slice(None), *there)]
        totals[to][-1] += weights
    return totals


def overlap(side: int, shift: int) -> slice:
    """Return the slice of the pixels i of an axis for which ``i + shift`` is a pixel too."""
    return slice(max(0, -shift), side - max(0, shift))
