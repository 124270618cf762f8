"""Spans of few directions near which many atoms lie."""

import warnings
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from ..inputs import Array

MOST_DIRECTIONS = 16  # largest number of directions in a basis
_MOST_SPANS = 256
_LEFT = 0.001  # share of the squares that may lie outside a basis
# A basis may leave more, at most _NOISE, if that is noise: the squares along the last direction are
# _GAP times those along the next, and these at most _EVEN times what noise of independent entries
# has along its first direction.
_NOISE = 0.0125
_GAP = 20.0
_EVEN = 2.0
_SAMPLE = 32_768  # atoms among which those near a seed are sought
_SEEDS = 4096  # atoms that may be seeds, and that bases are fitted to
_NEAR = 16  # atoms near a seed that give a first basis
_FITS = 10  # of a basis, each to the atoms near the one before
_PATIENCE = 48  # seeds in a row without a basis that others share, until the search ends
_TINY = 1e-300
_FIT = 64  # number of atoms to which a centre is fitted


def find_spans(units: Array) -> list[Array]:
    """Rows of each span: unit atoms near a basis that many share, or a cluster of the others."""
    labels, least = np.full(len(units), -1), np.full(len(units), np.inf)
    for label, (basis, most) in enumerate(_shared_bases(units)):
        outside = _outside(units, basis)
        nearer = outside <= np.minimum(most, least)
        labels[nearer], least[nearer] = label, outside[nearer]
    others = np.flatnonzero(labels < 0)
    if others.size:
        n_clusters = min(round(len(others) ** 0.5), _MOST_SPANS)
        labels[others] = labels.max() + 1 + cluster(units[others], n_clusters)
    return members_of(np.unique(labels, return_inverse=True)[1])


def _shared_bases(units: Array) -> list[tuple[Array, float]]:
    """Bases near which many atoms lie, and the largest share of an atom's squares outside.

    Atoms that lie near no basis so far are seeds, one after the other.
    """
    sample = units[_evenly(len(units), _SAMPLE)]
    seeds = np.random.default_rng(0).permutation(sample)[:_SEEDS]
    open_, found, failures = np.ones(len(seeds), np.bool_), list[tuple[Array, float]](), 0
    while open_.any() and failures < _PATIENCE and len(found) < _MOST_SPANS:
        seed = open_.argmax()
        open_[seed] = False
        along = np.abs(sample @ seeds[seed])
        held = sample[np.argpartition(-along, min(_NEAR, len(sample)) - 1)[:_NEAR]]
        near = np.zeros(len(seeds), np.bool_)
        for _ in range(_FITS):
            basis, most = fit_basis(held)
            before, near = near, _outside(seeds, basis) <= most
            if not near.any() or (near == before).all():
                break
            held = _without_outliers(seeds[near], basis)
        failures += 1
        if (near & open_).sum() >= 2 * len(basis):
            found.append((basis, most))
            open_ &= ~near
            failures = 0
    return found


def _without_outliers(units: Array, basis: Array) -> Array:
    """Leave out vectors that one direction of a basis owes most of its squares to."""
    squares = np.square(units @ basis.T)
    leverage = (squares / np.maximum(squares.sum(axis=0), _TINY)).sum(axis=1)
    return units[leverage <= 1 / 2] if len(units) >= 4 * len(basis) else units


def _evenly(n: int, most: int) -> Array:
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


def _outside(units: Array, basis: Array) -> Array:
    """Share of the squares of each unit vector outside a basis."""
    return np.asarray(1 - np.square(units @ basis.T).sum(axis=1))


def fit_basis(units: Array) -> tuple[Array, float]:
    """Few orthonormal directions with nearly all of the squares of unit vectors.

    Returns these, and the share outside up to which a vector is near them: 0 if too much is outside
    of this many directions.
    """
    few = len(units) < units.shape[1]
    values, vectors = np.linalg.eigh(units @ units.T if few else units.T @ units)
    shares = np.maximum(values[::-1] / len(units), 0)
    left = 1 - np.cumsum(shares)
    n_directions = min(int((left > _LEFT).sum()) + 1, MOST_DIRECTIONS, len(values))
    n_left = np.arange(len(values) - 1, 0, -1)
    spread = np.minimum(n_left, len(units)) / np.maximum(n_left, len(units))
    most_even = _EVEN * (1 + np.sqrt(spread)) ** 2 * left[:-1] / n_left
    noise = (left[:-1] <= _NOISE) & (shares[1:] <= np.minimum(shares[:-1] / _GAP, most_even))
    if noise[:n_directions].any():
        n_directions = int(noise.argmax()) + 1
    outside = max(left[n_directions - 1], 0.0)
    fits = outside <= _LEFT or (n_directions <= len(noise) and noise[n_directions - 1])
    directions = vectors.T[::-1][:n_directions]
    if few:
        directions = np.linalg.qr((directions @ units).T)[0].T
    return np.ascontiguousarray(directions), float(4 * outside + _LEFT if fits else 0)


def members_of(labels: Array) -> list[Array]:
    """Indices of each label; the labels are 0, 1, ... without gaps."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def cluster(points: Array, n_cells: int) -> Array:
    """Cluster directions; the labels are 0, 1, ... without gaps."""
    if n_cells <= 1:
        return np.zeros(len(points), np.int64)
    settings: dict[str, Any] = {"n_init": 1, "max_iter": 10, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than cells
        if len(points) > _FIT * n_cells:
            model = MiniBatchKMeans(n_cells, batch_size=4096, **settings)
            chosen = np.random.default_rng(0).choice(len(points), _FIT * n_cells, replace=False)
            labels = model.fit(points[chosen]).predict(points)
        else:
            labels = KMeans(n_cells, **settings).fit_predict(points)
    return np.unique(labels, return_inverse=True)[1]
