"""The average over all pixels with weights by grey level only, not by position."""

from typing import Any

import numpy as np

from ..inputs import Array
from ..kernels.compiled import inlined_reordered, jit_reordered
from ..kernels.exponential import exp
from ..kernels.workers import spread

_QUERIES = 2**10
_KEYS = 2**11


def average_levels(planes: Array, scale: float, n_jobs: int | None) -> Array:
    """Average pixels with weights ``exp(-scale |y_i - y_j|^2)``, once for each distinct level y.

    Parameters
    ----------
    planes : ndarray of shape (channels, height, width)
    scale : float

    Returns
    -------
    ndarray of the shape of `planes`
        Blocks of pairs are summed in the precision of `planes`, the sums of blocks in float64.
    """
    if len(planes) == 1:
        levels, counts = np.unique(planes, return_counts=True)
        counts = counts.astype(planes.dtype)
        averages = _average(levels[None], counts, scale, n_jobs)
        return averages[0, np.searchsorted(levels, planes)]
    levels = planes.reshape(len(planes), -1)
    counts = np.ones(levels.shape[1], planes.dtype)
    return _average(levels, counts, scale, n_jobs).reshape(planes.shape)


def _average(levels: Array, counts: Array, scale: float, n_jobs: int | None) -> Array:
    """Return averages at the columns of `levels`; `counts` is the number of pixels of each."""
    n = levels.shape[1]
    values = np.concatenate([levels * counts, counts[None]])
    scale = levels.dtype.type(scale)
    tasks = [
        (levels, values, scale, start, min(start + _QUERIES, n)) for start in range(0, n, _QUERIES)
    ]
    return np.concatenate(list(spread(_average_block, tasks, n_jobs)), axis=1)


def _average_block(levels: Array, values: Array, scale: Any, start: int, stop: int) -> Array:
    """Return the averages at some of the levels."""
    totals = np.zeros((len(values), stop - start))
    _add_pairs(levels, values, scale, start, totals, np.empty(_KEYS, levels.dtype))
    return (totals[:-1] / totals[-1]).astype(levels.dtype)


@jit_reordered
def _add_pairs(levels: Any, values: Any, scale: Any, start: int, totals: Any, row: Any) -> None:
    """Add to `totals` the values weighted by ``exp(-scale |difference of levels|^2)``."""
    for first in range(0, levels.shape[1], row.size):
        n = min(row.size, levels.shape[1] - first)
        weights = row[:n]
        for i in range(totals.shape[1]):
            weights[:] = 0
            for channel in range(levels.shape[0]):
                _add_squares(
                    levels[channel, first : first + n], levels[channel, start + i], weights
                )
            _decay(weights, scale)
            for channel in range(values.shape[0]):
                totals[channel, i] += _dot(weights, values[channel, first : first + n])


@inlined_reordered
def _add_squares(row: Any, level: Any, out: Any) -> None:
    for x in range(out.size):
        difference = row[x] - level
        out[x] += difference * difference


@inlined_reordered
def _decay(row: Any, scale: Any) -> None:
    for x in range(row.size):
        row[x] = exp(-scale * row[x])


@inlined_reordered
def _dot(a: Any, b: Any) -> Any:
    total = a[0] * b[0]
    for x in range(1, a.size):
        total += a[x] * b[x]
    return total
