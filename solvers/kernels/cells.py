"""Atoms in cells of similar direction, most of which a bound rules out without touching them.

Atoms stand in spans, each with an orthonormal basis of few directions; those of a span in groups,
and those of a group in cells. With a the part of a unit atom in its span, e what is left of it, and
t and s the parts of a residual r likewise,

    |d . r| <= |d| (|t| cos(max(0, phi - alpha)) + |e| |s|),

where a lies within the angle ``alpha`` of the centre of its group or cell and ``phi`` is the angle
between that centre and t, or -t. A search multiplies a residual with the bases of all spans, with
the centres of the groups of the spans that the bound leaves, with those of the cells of the groups
that it leaves, in the span's few coordinates, and with the atoms of the cells that it leaves. This
is a small share of all products where atoms are dense around what they represent, and all of them
where residuals are long beside the penalty.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array
from .active_set import ZERO
from .compiled import jit_reordered
from .selection import bring_largest_first, smallest
from .slots import dot

_CELL = 24  # atoms of a cell, about
_MOST_SPANS = 256
_MOST_DIRECTIONS = 16  # of a basis
_LEFT = 0.001  # of the squares, outside of it
_SHARED = 0.01  # of the squares of a cluster, outside of the basis of another that holds it
_AS_WELL = 1.5  # times what the best basis leaves of an atom may another leave that holds it
_FIT = 64  # atoms a centre is fitted to
_NEAR_GROUPS, _NEAR_CELLS = 3, 4  # nearest to a signal, from which its first atoms are taken


class Cells(NamedTuple):
    """Atoms that are not zero, sorted by spans, groups and cells. The last two are caps."""

    basis: np.ndarray  # (directions of all spans, p)
    first: np.ndarray  # (spans + 1,) a span's first direction
    span_left: np.ndarray  # (spans,) the largest |e|
    span_norm: np.ndarray  # (spans,) the largest |d|
    group: np.ndarray  # (spans + 1,) a span's first group
    begin: np.ndarray  # (groups + 1,) its first cap: that of all its atoms, before its cells'
    centre: np.ndarray  # (caps, _MOST_DIRECTIONS) of unit length, in the span's coordinates
    cosine: np.ndarray  # (caps,) of the angle alpha, rounded down
    left: np.ndarray  # (caps,) the largest |e|
    norm: np.ndarray  # (caps,) the largest |d|
    start: np.ndarray  # (caps + 1,) a cap's first atom
    atom: np.ndarray  # (n,) indices of the atoms
    part: np.ndarray  # |d| a, one atom after the other
    at: np.ndarray  # (spans + 1,) where those of a span begin
    rest: np.ndarray  # (n,) |d| |e|


def make_cells(atoms: Array) -> Cells:
    """Cells of the atoms (float64), the same for the same atoms."""
    norms = np.sqrt(np.einsum("ij,ij->i", atoms, atoms))
    present = np.flatnonzero(norms)
    units, norms = atoms[present] / norms[present, None], norms[present]
    spans = [_make_span(units, norms, rows) for rows in _spans(units)]
    joined = {name: np.concatenate([span[name] for span in spans]) for name in spans[0]}
    before = _starts([span["atom"].size for span in spans])
    n_caps = [span["norm"].size for span in spans]
    joined["start"] += np.repeat(before[:-1], n_caps)
    return Cells(
        **joined
        | {
            "first": _starts([len(span["basis"]) for span in spans]),
            "group": _starts([span["begin"].size for span in spans]),
            "begin": _starts(joined["begin"]),
            "start": np.append(joined["start"], before[-1]),
            "atom": present[joined["atom"]],
            "at": _starts([span["part"].size for span in spans]),
        }
    )


def _spans(units: Array) -> list[Array]:
    """Rows of each span: what lies in a basis that clusters share, else the rest of a cluster."""
    clusters = _members(_cluster(units, min(round(len(units) ** 0.5), _MOST_SPANS)))
    found = [_basis(units[rows]) for rows in clusters]
    shared = _shared(found)
    if not shared:
        return clusters
    first = _starts(map(len, shared))[:-1]
    labels = np.empty(len(units), np.int64)
    for label, (rows, (own, _)) in enumerate(zip(clusters, found, strict=True), len(shared)):
        inside = np.square(units[rows] @ np.concatenate([*shared, own]).T)
        left = 1 - np.add.reduceat(inside, np.append(first, len(inside.T) - len(own)), axis=1)
        holds = left[:, :-1] <= _AS_WELL * left.min(axis=1, keepdims=True) + _LEFT
        labels[rows] = np.where(holds.any(axis=1), holds.argmax(axis=1), label)
    return _members(np.unique(labels, return_inverse=True)[1])


def _shared(found: list[tuple[Array, Array]]) -> list[Array]:
    """Bases, the smallest first, that hold all but little of another cluster too."""
    bases: list[Array] = []
    joined: list[bool] = []
    for basis, shares in sorted(found, key=lambda pair: len(pair[0])):
        held = [shares @ np.square(basis @ b.T).sum(axis=1) >= 1 - _SHARED for b in bases]
        if any(held):
            joined[held.index(True)] = True
        else:
            bases.append(basis)
            joined.append(False)
    return [basis for basis, shared in zip(bases, joined, strict=True) if shared]


def _make_span(units: Array, norms: Array, rows: Array) -> dict[str, Array]:
    """Basis, groups, caps and atoms of a span, the atoms counted from its own first."""
    basis, _ = _basis(units[rows])
    inside = units[rows] @ basis.T
    groups = [
        [group[cell] for cell in _members(_cluster(inside[group], len(group) // _CELL))]
        for group in _members(_cluster(inside, round((len(rows) / _CELL) ** 0.5)))
    ]
    cells = [cell for group in groups for cell in group]
    order = np.concatenate(cells)
    rows, inside = rows[order], inside[order]
    left = np.sqrt(np.square(units[rows] - inside @ basis).sum(axis=1))
    n_cells = [len(group) for group in groups]
    first_cell, start = _starts(n_cells)[:-1], _starts(map(len, cells))[:-1]

    def of_caps(measure: Callable[[Array], Array]) -> Array:
        """A measure of what begins at given atoms: for each group, then for its cells."""
        return np.insert(measure(start), first_cell, measure(start[first_cell]), axis=0)

    directions = _normalised(inside)
    return {
        "basis": basis,
        "span_left": left.max(keepdims=True),
        "span_norm": norms[rows].max(keepdims=True),
        "begin": np.array(n_cells) + 1,
        "centre": of_caps(partial(_centres, directions)),
        "cosine": of_caps(partial(_cosines, directions)),
        "left": of_caps(partial(np.maximum.reduceat, left)),
        "norm": of_caps(partial(np.maximum.reduceat, norms[rows])),
        "start": of_caps(np.copy),
        "atom": rows,
        "part": (inside * norms[rows, None]).ravel(),
        "rest": left * norms[rows],
    }


def _starts(counts: Iterable[int]) -> Array:
    return np.append(0, np.cumsum(np.fromiter(counts, np.int64)))


def _members(labels: Array) -> list[Array]:
    """Indices by label; the labels 0, 1, ... are all in use."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


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


def _basis(units: Array) -> tuple[Array, Array]:
    """Leading right singular vectors, and their shares of the squares: but for little, of all."""
    values, vectors = np.linalg.eigh(units.T @ units)
    shares = values[::-1] / len(units)
    n_directions = min(
        int((np.cumsum(shares) < 1 - _LEFT).sum()) + 1, _MOST_DIRECTIONS, len(values)
    )
    return np.ascontiguousarray(vectors.T[::-1][:n_directions]), shares[:n_directions]


def _centres(directions: Array, starts: Array) -> Array:
    centres = _normalised(np.add.reduceat(directions, starts))
    return np.pad(centres, ((0, 0), (0, _MOST_DIRECTIONS - centres.shape[1])))


def _cosines(directions: Array, starts: Array) -> Array:
    """Of the largest angle of a direction with the centre of its cap, rounded down."""
    n_directions = directions.shape[1]
    centres = _centres(directions, starts)[:, :n_directions]
    sizes = np.diff(np.append(starts, len(directions)))
    cosines = (directions * np.repeat(centres, sizes, axis=0)).sum(axis=1)
    return np.maximum(np.minimum.reduceat(cosines, starts) - _slack(n_directions), -1)


def _normalised(rows: Array) -> Array:
    """Unit rows; a row of zeros stays, and is at a right angle to all others."""
    size = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)


@jit_reordered
def _slack(p):
    """More than the error of a product of unit vectors of p numbers that were rounded."""
    return (p + 16) * 2.0**-49


@jit_reordered
def _along(c, first, q, inner, nonneg, cells):
    """Product of a cap's centre with t, in size."""
    u = 0.0
    for b in range(q):
        u += cells.centre[c, b] * inner[first + b]
    return u if nonneg else abs(u)


@jit_reordered
def _bound(c, first, q, inner, inside, outside, margin, nonneg, cells):
    """Bound on ``|d . r|`` of the atoms in a cap, of a span of q directions from `first` on."""
    u = _along(c, first, q, inner, nonneg, cells) + margin
    cosine = cells.cosine[c]
    if u < inside * cosine:
        across = max(inside * inside - u * u, 0.0) * (1.0 - cosine * cosine)
        inside = max(u * cosine + np.sqrt(across), 0.0)
    return cells.norm[c] * (inside + cells.left[c] * outside + margin)


@jit_reordered
def _measure(r, cells, lengths):
    """Coordinates of r in all spans, its length in each, and the span in which most of it lies."""
    inner, best = np.dot(cells.basis, r), ZERO
    for s in range(lengths.size):
        square = 0.0
        for b in range(cells.first[s], cells.first[s + 1]):
            square += inner[b] * inner[b]
        lengths[s] = np.sqrt(square)
        if lengths[s] > lengths[best]:
            best = s
    return inner, best


@jit_reordered
def nearby(r, most, own, nonneg, cells, lengths, key, index):
    """Atoms of about the direction of r, at most `most` and without `own`: of a few cells.

    ``index[:n]`` become the atoms. Returns n.
    """
    inner, s = _measure(r, cells, lengths)
    first, q = cells.first[s], cells.first[s + 1] - cells.first[s]
    n, size = ZERO, key.size
    for g in range(cells.group[s], min(cells.group[s + 1], cells.group[s] + size)):
        key[n], index[n] = _along(cells.begin[g], first, q, inner, nonneg, cells), g
        n += 1
    groups = index[: _keep_largest(key, index, n, _NEAR_GROUPS)].copy()
    n = ZERO
    for g in groups:
        for c in range(cells.begin[g] + 1, min(cells.begin[g + 1], cells.begin[g] + 1 + size - n)):
            key[n], index[n] = _along(c, first, q, inner, nonneg, cells), c
            n += 1
    near = index[: _keep_largest(key, index, n, _NEAR_CELLS)].copy()
    n = ZERO
    for c in near:
        for place in range(cells.start[c], min(cells.start[c + 1], cells.start[c] + size - n)):
            if cells.atom[place] != own:
                v = _product(place, s, first, q, inner, cells)
                key[n], index[n] = v if nonneg else abs(v), cells.atom[place]
                n += 1
    return _keep_largest(key, index, n, most)


@jit_reordered
def _product(place, s, first, q, inner, cells):
    """Product with t of the atom at a place, of the span s of q directions from `first` on."""
    v, at = 0.0, cells.at[s] + (place - cells.start[cells.begin[cells.group[s]]]) * q
    for b in range(q):
        v += cells.part[at + b] * inner[first + b]
    return v


@jit_reordered
def violators(r, low, share, most, own, support, nonneg, atoms, cells, lengths, key, index):
    """Atoms whose correlation with r exceeds `low` and `share` of the largest, at most `most`.

    ``key[:n]`` and ``index[:n]`` become the correlations (of either sign) in size, and the atoms,
    without `own` and `support`. Atoms left out are no larger than those. The span in which most of
    r lies is searched first.

    Returns n, and the number of atoms looked at.
    """
    norm = np.sqrt(dot(r, r))
    margin = _slack(r.size) * norm
    n, looked, size = ZERO, ZERO, key.size
    if norm == 0.0:
        return n, looked
    inner, best = _measure(r, cells, lengths)
    for step in range(-1, lengths.size):
        s = best if step < 0 else step
        if step == best:
            continue
        first, inside = cells.first[s], lengths[s]
        q = cells.first[s + 1] - first
        outside = np.sqrt(max(norm * norm - inside * inside, 0.0) + margin * norm)
        if cells.span_norm[s] * (inside + cells.span_left[s] * outside + margin) <= low:
            continue
        for g in range(cells.group[s], cells.group[s + 1]):
            whole = cells.begin[g]
            if _bound(whole, first, q, inner, inside, outside, margin, nonneg, cells) <= low:
                continue
            for c in range(whole + 1, cells.begin[g + 1]):
                if _bound(c, first, q, inner, inside, outside, margin, nonneg, cells) <= low:
                    continue
                looked += cells.start[c + 1] - cells.start[c]
                for place in range(cells.start[c], cells.start[c + 1]):
                    v = _product(place, s, first, q, inner, cells)
                    v = v if nonneg else abs(v)
                    if v + cells.rest[place] * outside + cells.norm[c] * margin <= low:
                        continue
                    j = cells.atom[place]
                    if j == own or _holds(support, j):
                        continue
                    v = dot(atoms[j], r)
                    v = v if nonneg else abs(v)
                    if v <= low:
                        continue
                    if n == size:
                        n = _keep_largest(key, index, n, most)
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
    return _keep_largest(key, index, kept, most)


@jit_reordered
def _keep_largest(key, index, n, most):
    if n > most:
        bring_largest_first(key, index, n, most)
        n = np.int64(most)
    return n
