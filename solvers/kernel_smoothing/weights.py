"""Kernel weights in tiles of queries by keys that fit the cache, never all of them at once.

Gaussian weights come from one matrix product a tile where rounding allows it. All others come from
differences of coordinates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array, check_matrix
from ..kernels.compiled import jit_reordered
from ..kernels.exponential import exp, exp2
from ..kernels.workers import one_blas_thread, spread
from ..scales import unit_under

Kernel = Callable[[Array], Array]

_ROWS = 512
_ROW_BYTES = 2048
_WHOLE_ENTRIES = 2**20
# Largest (|q|^2 + |k|^2) / s^2 of centred points for which a matrix product is accurate enough:
# the error of a logit is a few times eps * limit at most, and no weight underflows.
_LIMITS = {np.float32: 64.0, np.float64: 512.0}
_LOG_2 = math.log(2)
_HEAVIEST = 1e307  # with this sum of weights, sums of weighted values below 2 in size are finite
_DECAYS = ("gaussian", "laplace")
_PROFILES: dict[str, Kernel] = {"epanechnikov": lambda r: np.maximum(1 - r * r, 0)}


class Tile(NamedTuple):
    """Weights of some keys for some queries, each row up to a factor."""

    columns: slice
    weights: Array
    mass: Array  # sums of the rows of `weights`
    factor: Array | None = None  # of each row: multiply the sums over earlier tiles by it


@dataclass(frozen=True)
class Products:
    """Weights ``exp(q.k - |k|^2/2 - |q|^2/2)`` of points in units of the bandwidth.

    They are computed as powers of two: `queries` and biases are divided by log 2.
    """

    queries: Array
    keys: Array  # one column a key, as in Distances
    query_bias: Array
    key_bias: Array

    def tiles(self, rows: slice, *, whole: bool = False) -> Iterator[Tile]:
        """Weights of the queries in `rows`, all keys at once if `whole`."""
        queries, bias = self.queries[rows], self.query_bias[rows]
        mass = np.empty(len(queries))
        for columns, tile in _tiles(len(queries), self.keys, whole):
            np.matmul(queries, self.keys[:, columns], out=tile)
            _exponentiate_products(tile, bias, self.key_bias[columns], mass)
            yield Tile(columns, tile, mass)


@dataclass(frozen=True)
class Distances:
    """Weights of any kernel from ``d(q, k) / bandwidth``, in float64.

    The distance is ``d(q, k)^2 = sum_d m_d (q_d - k_d)^2``.
    """

    queries: Array
    keys: Array
    metric: Array  # of shape (n_queries, n_features)
    bandwidth: float
    kernel: str | Kernel

    def tiles(self, rows: slice, *, whole: bool = False) -> Iterator[Tile]:
        """Weights of the queries in `rows`, all keys at once if `whole`."""
        queries, metric = self.queries[rows], np.ascontiguousarray(self.metric[rows])
        nearest = np.full(len(queries), np.inf)
        factor, mass = np.empty(len(queries)), np.empty(len(queries))
        for columns, tile in _tiles(len(queries), self.keys, whole):
            _squared_distances(queries, self.keys, columns.start, metric, tile)
            if self.kernel in _DECAYS:
                scale = self._decay(tile)
                _exponentiate_distances(tile, scale, tile.min(axis=1), nearest, factor, mass)
                yield Tile(columns, tile, mass, factor)
            else:
                weights = self._profile(tile)
                yield Tile(columns, weights, weights.sum(axis=1))

    def _decay(self, tile: Array) -> float:
        """Turn squared distances into those that the exponent needs; return its scale."""
        largest = np.finfo(np.float64).max  # finite, as zero times infinity is NaN
        if self.kernel == "gaussian":
            return min(0.5 / self.bandwidth / self.bandwidth, largest)
        np.sqrt(tile, out=tile)
        return min(1 / self.bandwidth, largest)

    def _profile(self, tile: Array) -> Array:
        """Weights from squared distances, by a kernel without exponential decay."""
        with np.errstate(over="ignore"):  # with a tiny bandwidth, distances become infinite
            np.divide(np.sqrt(tile, out=tile), self.bandwidth, out=tile)
            kernel = self.kernel if callable(self.kernel) else _PROFILES[self.kernel]
            weights = np.asarray(kernel(tile), dtype=np.float64)
        if weights.shape != tile.shape:
            raise ValueError(
                f"kernel: must return one weight for each distance, got shape {weights.shape} for "
                f"distances of shape {tile.shape}"
            )
        limit = _HEAVIEST / self.keys.shape[1]
        if not ((weights >= 0) & (weights <= limit)).all():
            raise ValueError(
                f"kernel: must return weights from 0 to {_HEAVIEST:.0g} / n_keys, got "
                f"{weights.min()} to {weights.max()}"
            )
        return weights


Weights = Products | Distances


def prepare_weights(
    queries: Array,
    keys: Array,
    bandwidth: float,
    kernel: str | Kernel,
    precision: ArrayLike | None,
    dtype: Any = np.float64,
    *,
    exact: bool = False,
) -> Weights:
    """Check the arguments, and choose how to compute the weights for a result of `dtype`.

    With `exact`, they come from differences of coordinates.
    """
    bandwidth = check_positive(bandwidth, "bandwidth")
    known = sorted((*_DECAYS, *_PROFILES))
    if not callable(kernel) and not (isinstance(kernel, str) and kernel in known):
        raise ValueError(f"kernel: must be a callable or one of {known}, got {kernel!r}")
    root = None if precision is None else _square_root(precision, keys.shape[1])
    if not exact and isinstance(kernel, str) and kernel == "gaussian":
        products = _products(queries, keys, bandwidth, root, dtype)
        if products is not None:
            return products
    return exact_weights(queries, keys, bandwidth, kernel, root)


def exact_weights(
    queries: Array,
    keys: Array,
    bandwidth: float,
    kernel: str | Kernel,
    root: Array | None = None,
    metric: Array | None = None,
) -> Distances:
    """Weights from differences of coordinates.

    `root` is the root of the precision, a matrix or a diagonal. `metric` holds the diagonals m of
    `Distances` for all queries or for each.
    """
    if root is not None and root.ndim == 2:
        queries, keys = _transform(queries, keys, root)
    elif root is not None:
        metric = root**2
    unit = unit_under(queries, keys)
    return Distances(
        np.ascontiguousarray(queries / unit, dtype=np.float64),
        np.ascontiguousarray((keys / unit).T, dtype=np.float64),
        np.broadcast_to(np.ones(keys.shape[1]) if metric is None else metric, queries.shape),
        float(max(bandwidth / unit, np.finfo(np.float64).tiny)),
        kernel,
    )


def fill_rows(
    out: Array, n_jobs: int | None, n_rows: int | None, function: Any, *arguments: Any
) -> Array:
    """Fill `out` with ``function(*arguments, rows)``, in threads, in blocks of `n_rows` rows.

    The blocks do not depend on `n_jobs`, so the answer does not either.
    """
    size = n_rows or _ROWS
    blocks = [slice(start, min(start + size, len(out))) for start in range(0, len(out), size)]
    tasks = [(*arguments, rows) for rows in blocks]
    with one_blas_thread:
        for rows, block in zip(blocks, spread(function, tasks, n_jobs), strict=True):
            out[rows] = block
    return out


def rows_with_all_keys(n_keys: int) -> int:
    """Number of rows in a block that holds the weights of all keys at once."""
    return max(1, min(_ROWS, _WHOLE_ENTRIES // n_keys))


def check_mass(mass: Array, rows: slice) -> None:
    """Raise a ValueError if all weights of a query are zero; the message names the first."""
    if not mass.all():
        row = rows.start + int(np.flatnonzero(mass == 0)[0])
        raise ValueError(f"bandwidth: query {row} has no key with a positive weight; widen it")


def _tiles(n_rows: int, keys: Array, whole: bool) -> Iterator[tuple[slice, Array]]:
    """Yield the columns of each tile, and an array of its shape, which all tiles share."""
    n_keys = keys.shape[1]
    width = n_keys if whole else min(n_keys, max(1, _ROW_BYTES // keys.itemsize))
    buffer = np.empty(n_rows * width, keys.dtype)
    for start in range(0, n_keys, width):
        stop = min(start + width, n_keys)
        tile = buffer[: n_rows * (stop - start)].reshape(n_rows, stop - start)
        yield slice(start, stop), tile


def _products(
    queries: Array, keys: Array, bandwidth: float, root: Array | None, dtype: Any
) -> Products | None:
    """Return weights by inner products, or None where rounding errors would be too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        q, k = _transform(queries, keys, root)
        q, k = q / bandwidth, k / bandwidth
        largest = _squares(q).max() + _squares(k).max()
    for real, limit in _LIMITS.items():
        if largest <= limit and np.dtype(real).itemsize >= np.dtype(dtype).itemsize:
            q, k = (q / _LOG_2).astype(real), k.astype(real)
            biases = (-0.5 * _LOG_2 * _squares(q), -0.5 / _LOG_2 * _squares(k))
            return Products(q, np.ascontiguousarray(k.T), *(bias.astype(real) for bias in biases))
    return None


def _squares(x: Array) -> Array:
    """Return the squared norms of the rows."""
    return np.einsum("ij,ij->i", x, x, dtype=np.float64)


def _transform(queries: Array, keys: Array, root: Array | None) -> tuple[Array, Array]:
    """Subtract the mean key and multiply by the root of the precision, in float64."""
    centre = keys.mean(axis=0, dtype=np.float64)
    if root is None:
        return queries - centre, keys - centre
    if root.ndim == 1:
        return (queries - centre) * root, (keys - centre) * root
    return (queries - centre) @ root, (keys - centre) @ root


def _square_root(precision: ArrayLike, n_features: int) -> Array:
    """Return R with ``P = R R^T``; for a diagonal, given as a vector, the vector of roots."""
    if np.ndim(precision) == 1:
        diagonal = check_matrix(np.reshape(precision, (1, -1)), "precision", n_features=n_features)
        if (diagonal < 0).any():
            raise ValueError(f"precision: a diagonal must be >= 0, got {diagonal.min()}")
        return np.sqrt(diagonal[0].astype(np.float64))
    P = check_matrix(precision, "precision", n_features=n_features)
    tolerance = max(1e-10, n_features * float(np.finfo(P.dtype).eps))
    P = P.astype(np.float64)
    if P.shape[0] != n_features or np.abs(P - P.T).max() > tolerance * np.abs(P).max():
        raise ValueError(
            f"precision: must be a symmetric {n_features} x {n_features} matrix, got "
            + ("one that is not symmetric" if len(P) == n_features else f"shape {P.shape}")
        )
    eigenvalues, vectors = np.linalg.eigh(P)
    if eigenvalues[0] < -tolerance * abs(eigenvalues[-1]):
        raise ValueError(
            f"precision: must be positive semidefinite, got an eigenvalue of {eigenvalues[0]:.3g}"
        )
    return vectors * np.sqrt(eigenvalues.clip(min=0))


@jit_reordered
def _exponentiate_products(tile: Array, query_bias: Array, key_bias: Array, mass: Array) -> None:
    """Turn inner products into weights in place, and fill `mass` with the sums of the rows."""
    zero = tile.dtype.type(0)
    for i in range(len(tile)):
        products, bias, total = tile[i], query_bias[i], zero
        for j in range(len(products)):
            weight = exp2(products[j] + (key_bias[j] + bias))
            products[j] = weight
            total += weight
        mass[i] = total


@jit_reordered
def _squared_distances(queries: Array, keys: Array, start: int, metric: Array, out: Array) -> None:
    """Fill `out` with the squared distances of the queries to the keys from `start` on."""
    n_rows, n_columns = out.shape
    for i in range(n_rows):
        squares = out[i]
        squares[:] = 0
        for d in range(len(keys)):
            q, m, k = queries[i, d], metric[i, d], keys[d, start : start + n_columns]
            for j in range(n_columns):
                difference = q - k[j]
                squares[j] += m * (difference * difference)


@jit_reordered
def _exponentiate_distances(
    tile: Array, scale: float, closest: Array, nearest: Array, factor: Array, mass: Array
) -> None:
    """Turn distances d into ``exp(-scale (d - nearest))`` in place.

    `nearest` becomes the least distance of this tile and earlier ones, and `factor` what the change
    of it makes of earlier weights. `closest` holds the least of this tile.
    """
    for i in range(len(tile)):
        least = min(nearest[i], closest[i])
        factor[i] = exp((least - nearest[i]) * scale)
        nearest[i] = least
        distances, total = tile[i], 0.0
        for j in range(len(distances)):
            weight = exp((least - distances[j]) * scale)
            distances[j] = weight
            total += weight
        mass[i] = total
