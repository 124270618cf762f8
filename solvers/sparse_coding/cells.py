"""Atoms in cells of similar direction, most of which a bound rules out without touching them.

Atoms stand in groups, each with an orthonormal basis of few directions, and in a group in cells.
With a the part of a unit atom in the span of its group, e what is left of it, and t and s the parts
of a residual r likewise,

    |d . r| <= |d| (|t| cos(max(0, phi - alpha)) + |e| |s|),

where a lies within the angle ``alpha`` of the cell's centre and ``phi`` is the angle between that
centre and t, or -t. A search multiplies a residual with the bases of all groups, with the centres
of the cells of the groups that the bound leaves, in the group's few coordinates, and with the atoms
of the cells that it leaves. This is a small share of all products where atoms are dense around what
they represent, and all of them where residuals are long beside the penalty.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from ..compiled import jit_reordered
from ..solution import Array
from .active_set import ZERO
from .selection import bring_largest_first, smallest
from .slots import dot

_CELL = 24  # atoms of a cell, about
_MOST_GROUPS = 256
_MOST_DIRECTIONS = 16  # of a basis
_LEFT = 0.001  # of the squares, outside of it
_FIT = 64  # atoms a centre is fitted to


class Cells(NamedTuple):
    """Atoms that are not zero, sorted by groups, and in these by cells: caps of the sphere."""

    basis: np.ndarray  # (directions of all groups, p)
    first: np.ndarray  # (groups + 1,) a group's first direction
    begin: np.ndarray  # (groups + 1,) its first cap: that of all its atoms, before its cells'
    centre: np.ndarray  # (caps, _MOST_DIRECTIONS) of unit length, in the group's coordinates
    cosine: np.ndarray  # (caps,) of the angle alpha, rounded down
    left: np.ndarray  # (caps,) the largest |e|
    norm: np.ndarray  # (caps,) the largest |d|
    start: np.ndarray  # (caps + 1,) a cap's first atom
    atom: np.ndarray  # (n,) indices of the atoms
    part: np.ndarray  # |d| a, one atom after the other
    at: np.ndarray  # (groups + 1,) where those of a group begin
    rest: np.ndarray  # (n,) |d| |e|


def make_cells(atoms: Array) -> Cells:
    """Cells of the atoms (float64), the same for the same atoms."""
    norms = np.sqrt(np.einsum("ij,ij->i", atoms, atoms))
    present = np.flatnonzero(norms)
    units = atoms[present] / norms[present, None]
    labels = _cluster(units, min(round(len(units) ** 0.5), _MOST_GROUPS))
    order = np.argsort(labels, kind="stable")
    groups = [
        _make_group(units, norms[present], rows)
        for rows in np.split(order, np.cumsum(np.bincount(labels))[:-1])
    ]
    joined = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
    n_caps = [group["norm"].size for group in groups]
    first_atom = _starts([group["atom"].size for group in groups])[:-1]
    return Cells(
        **joined
        | {
            "first": _starts([len(group["basis"]) for group in groups]),
            "begin": _starts(n_caps),
            "start": np.append(joined["start"] + np.repeat(first_atom, n_caps), order.size),
            "atom": present[joined["atom"]],
            "at": _starts([group["part"].size for group in groups]),
        }
    )


def _make_group(units: Array, norms: Array, rows: Array) -> dict[str, Array]:
    """Basis, caps and atoms of a group, the atoms counted from its own first."""
    basis = _basis(units[rows])
    cells = _cluster(units[rows] @ basis.T, len(rows) // _CELL)
    rows = rows[np.argsort(cells, kind="stable")]
    inside, norms = units[rows] @ basis.T, norms[rows]
    left = np.sqrt(np.square(units[rows] - inside @ basis).sum(axis=1))
    starts = _starts(np.bincount(cells))
    caps = [_caps(inside, at[:-1]) for at in (starts[[0, -1]], starts)]
    return {
        "basis": basis,
        "centre": np.concatenate([centre for centre, _ in caps]),
        "cosine": np.concatenate([cosine for _, cosine in caps]),
        "left": np.append(left.max(), np.maximum.reduceat(left, starts[:-1])),
        "norm": np.append(norms.max(), np.maximum.reduceat(norms, starts[:-1])),
        "start": np.append(0, starts[:-1]),
        "atom": rows,
        "part": (inside * norms[:, None]).ravel(),
        "rest": left * norms,
    }


def _starts(counts: Any) -> Array:
    return np.append(0, np.cumsum(counts))


def _cluster(points: Array, n_cells: int) -> Array:
    """Labels 0, 1, ..., all of them in use."""
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


def _basis(units: Array) -> Array:
    """Leading right singular vectors, as many as leave little of the rows."""
    values, vectors = np.linalg.eigh(units.T @ units)
    kept = np.cumsum(values[::-1]) < (1 - _LEFT) * len(units)
    n_directions = min(int(kept.sum()) + 1, _MOST_DIRECTIONS, len(values))
    return np.ascontiguousarray(vectors.T[::-1][:n_directions])


def _caps(inside: Array, starts: Array) -> tuple[Array, Array]:
    """Centres and cosines of the caps that begin at `starts`."""
    directions = _normalised(inside)
    centre = _normalised(np.add.reduceat(directions, starts))
    sizes = np.diff(np.append(starts, len(inside)))
    cosines = (directions * np.repeat(centre, sizes, axis=0)).sum(axis=1)
    cosine = np.minimum.reduceat(cosines, starts) - _slack(inside.shape[1])
    missing = _MOST_DIRECTIONS - inside.shape[1]
    return np.pad(centre, ((0, 0), (0, missing))), np.maximum(cosine, -1)


def _normalised(rows: Array) -> Array:
    """Unit rows; a row of zeros stays, and is at a right angle to all others."""
    size = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)


@jit_reordered
def _slack(p):
    """More than the error of a product of unit vectors of p numbers that were rounded."""
    return (p + 16) * 2.0**-51


@jit_reordered
def _bound(c, first, q, inner, inside, outside, margin, nonneg, cells):
    """Bound on ``|d . r|`` of the atoms in a cap, of a group of q directions from `first` on."""
    u = 0.0
    for b in range(q):
        u += cells.centre[c, b] * inner[first + b]
    u = (u if nonneg else abs(u)) + margin
    cosine = cells.cosine[c]
    if u < inside * cosine:
        across = max(inside * inside - u * u, 0.0) * (1.0 - cosine * cosine)
        inside = max(u * cosine + np.sqrt(across), 0.0)
    return cells.norm[c] * (inside + cells.left[c] * outside + margin)


@jit_reordered
def violators(r, low, share, most, own, support, nonneg, atoms, cells, lengths, key, index):
    """Atoms whose correlation with r exceeds `low` and `share` of the largest, at most `most`.

    ``key[:n]`` and ``index[:n]`` become the correlations (of either sign) in size, and the atoms,
    without `own` and `support`. Atoms left out are no larger than those. The group in whose span
    most of r lies is searched first.

    Returns n, and the number of atoms looked at.
    """
    norm = np.sqrt(dot(r, r))
    margin = _slack(r.size) * norm
    n, looked, size = ZERO, ZERO, key.size
    if norm == 0.0:
        return n, looked
    inner, best = np.dot(cells.basis, r), ZERO
    for g in range(lengths.size):
        square = 0.0
        for b in range(cells.first[g], cells.first[g + 1]):
            square += inner[b] * inner[b]
        lengths[g] = np.sqrt(square)
        if lengths[g] > lengths[best]:
            best = g
    for step in range(-1, lengths.size):
        g = best if step < 0 else step
        if step == best:
            continue
        first, inside = cells.first[g], lengths[g]
        q = cells.first[g + 1] - first
        outside = np.sqrt(max(norm * norm - inside * inside, 0.0) + margin * norm)
        whole = cells.begin[g]
        if _bound(whole, first, q, inner, inside, outside, margin, nonneg, cells) <= low:
            continue
        for c in range(whole + 1, cells.begin[g + 1]):
            if _bound(c, first, q, inner, inside, outside, margin, nonneg, cells) <= low:
                continue
            looked += cells.start[c + 1] - cells.start[c]
            for place in range(cells.start[c], cells.start[c + 1]):
                at, v = cells.at[g] + (place - cells.start[whole]) * q, 0.0
                for b in range(q):
                    v += cells.part[at + b] * inner[first + b]
                v = v if nonneg else abs(v)
                if v + cells.rest[place] * outside + cells.norm[c] * margin <= low:
                    continue
                j = cells.atom[place]
                if j == own or _holds(support, j):
                    continue
                v = 0.0
                for b in range(r.size):
                    v += atoms[j, b] * r[b]
                v = v if nonneg else abs(v)
                if v <= low:
                    continue
                if n == size:
                    bring_largest_first(key, index, n, most)
                    n = most
                    low = max(low, smallest(key, n))
                key[n], index[n] = v, j
                n += 1
                low = max(low, share * v)
    return _kept(key, index, n, low, most), looked


@jit_reordered
def _holds(support, j):
    for a in range(support.size):  # noqa: SIM110
        if support[a] == j:
            return True
    return False


@jit_reordered
def _kept(key, index, n, low, most):
    """Those of at least `low`, which rose since the first came, and at most `most`."""
    kept = ZERO
    for a in range(n):
        if key[a] >= low:
            key[kept], index[kept] = key[a], index[a]
            kept += 1
    if kept > most:
        bring_largest_first(key, index, kept, most)
        kept = most
    return kept
