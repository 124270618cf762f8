"""Nearest neighbours by scikit-learn's search; ties go to the point with the smaller index."""

import numpy as np
from sklearn.neighbors import NearestNeighbors

from ..inputs import Array
from ..kernels.compiled import jit
from ..kernels.workers import spread
from ..scales import unit_under

_ROWS = 2048
_LEAST = 1e-290  # smaller squares lose digits


def nearest(
    points: Array, X: Array, n_neighbors: int, *, exclude_self: bool, n_jobs: int | None = None
) -> Array:
    """Indices of the rows of X nearest to each of `points`, ascending, shape (n, n_neighbors).

    The search finds one neighbour more than needed. If, within its rounding errors, a point that it
    leaves out may be as near as a chosen one, all of X is compared again. Coordinates below 1e-308
    of the largest count as 0.
    """
    unit = unit_under(X, points)
    X, points = (Z.astype(np.float64) / unit for Z in (X, points))
    centre = X.mean(axis=0)
    count = min(n_neighbors + exclude_self + 1, len(X))
    search = NearestNeighbors(n_neighbors=count, n_jobs=n_jobs).fit(X - centre)
    centred = points - centre
    distances, candidates = search.kneighbors(centred)
    # The search adds squares and products of rows whose lengths are at most |x| and |x| + d.
    slack = (X.shape[1] + 8) * np.finfo(np.float64).eps
    rounding = slack * 3 * (centred**2).sum(axis=1) + _LEAST
    limit = np.full(len(points), np.inf)
    if count < len(X):
        limit = (1 - 2 * slack) * distances[:, -1] ** 2 - rounding
    tasks = [
        (
            points[start : start + _ROWS],
            X,
            start if exclude_self else -len(points),
            candidates[start : start + _ROWS],
            limit[start : start + _ROWS],
            n_neighbors,
        )
        for start in range(0, len(points), _ROWS)
    ]
    return np.sort(np.concatenate(list(spread(_choose, tasks, n_jobs))), axis=1)


@jit
def _choose(
    points: Array, X: Array, first: int, candidates: Array, limit: Array, n_neighbors: int
) -> Array:
    """Choose the nearest candidates, or the nearest rows of X if candidates may not suffice.

    They suffice if their squared distances are below `limit`. Row ``first + i`` of X is not chosen
    for point i.
    """
    nearest, chosen = np.empty(n_neighbors), np.empty((len(points), n_neighbors), dtype=np.intp)
    for i in range(len(points)):
        nearest[:] = np.inf
        chosen[i] = len(X)
        for j in candidates[i]:
            if j != first + i:
                _insert(_distance(points[i], X[j], np.inf), j, nearest, chosen[i])
        if nearest[-1] ** 2 < limit[i]:
            continue
        nearest[:] = np.inf
        chosen[i] = len(X)
        for j in range(len(X)):
            if j != first + i:
                _insert(_distance(points[i], X[j], nearest[-1]), j, nearest, chosen[i])
    return chosen


@jit
def _distance(x: Array, y: Array, most: float) -> float:
    """Return the distance of x and y, or infinity if it is certainly above `most`."""
    square, stop = 0.0, max((1 + 1e-15) * most * most, _LEAST)
    for d in range(len(x)):
        square += (x[d] - y[d]) ** 2
        if square > stop:
            return np.inf
    return np.sqrt(square) if square >= _LEAST else _tiny_distance(x, y)


@jit
def _tiny_distance(x: Array, y: Array) -> float:
    """Distance of x and y, scaled so that no square vanishes."""
    largest, square = 0.0, 0.0
    for d in range(len(x)):
        largest = max(largest, abs(x[d] - y[d]))
    if largest == 0.0:
        return 0.0
    for d in range(len(x)):
        square += ((x[d] - y[d]) / largest) ** 2
    return largest * np.sqrt(square)


@jit
def _insert(distance: float, index: int, nearest: Array, chosen: Array) -> None:
    """Insert the pair into the sorted list of nearest ones if it belongs there; drop the last."""
    a = len(nearest) - 1
    if distance > nearest[a] or (distance == nearest[a] and index > chosen[a]):
        return
    while a > 0 and (
        distance < nearest[a - 1] or (distance == nearest[a - 1] and index < chosen[a - 1])
    ):
        nearest[a], chosen[a] = nearest[a - 1], chosen[a - 1]
        a -= 1
    nearest[a], chosen[a] = distance, index
