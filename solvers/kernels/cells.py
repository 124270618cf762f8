"""Atoms in cells of similar direction; a bound excludes most cells without looking at their atoms.

The atoms are divided into spans, each with an orthonormal basis of few directions, the atoms of a
span into groups, and the atoms of a group into cells. A unit atom has a part a in its span and a
remainder e; a residual r has a part t in this span and a remainder s. Then

    |d . r| <= |d| (|t| cos(max(0, phi - alpha)) + |e| |s|),

where a lies within the angle ``alpha`` of the centre of its group or cell, and ``phi`` is the angle
between this centre and t, or -t. A search multiplies the residual by the bases of all spans. Then
it multiplies, in the few coordinates of a span, by the centres of the groups of spans that the
bound does not exclude, and by the centres of the cells of groups that it does not exclude; last, by
the atoms of cells that it does not exclude. This is a small share of all products if many atoms are
close to the signals that they represent, and nearly all products if residuals are long compared
with the penalty.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..inputs import Array
from .active_set import ZERO
from .compiled import jit_reordered
from .selection import beyond_rounding, bring_largest_first, holds, smallest
from .slots import dot
from .spans import MOST_DIRECTIONS, cluster, find_spans, fit_basis, members_of

_CELL = 24  # approximate number of atoms in a cell
_ROOM = 512  # atoms that a search for the strongest holds
_NEAR_GROUPS, _NEAR_CELLS = 3, 4  # numbers of the nearest, which give a signal its first atoms


class Cells(NamedTuple):
    """Nonzero atoms, sorted by spans, groups and cells. Groups and cells are called caps."""

    basis: np.ndarray  # (directions of all spans, p)
    first: np.ndarray  # (spans + 1,) a span's first direction
    span_left: np.ndarray  # (spans,) the largest |e|
    span_norm: np.ndarray  # (spans,) the largest |d|
    group: np.ndarray  # (spans + 1,) a span's first group
    begin: np.ndarray  # (groups + 1,) its first cap: that of all its atoms, before its cells'
    centre: np.ndarray  # (caps, MOST_DIRECTIONS) of unit length, in the span's coordinates
    cosine: np.ndarray  # (caps,) of the angle alpha, rounded down
    left: np.ndarray  # (caps,) the largest |e|
    norm: np.ndarray  # (caps,) the largest |d|
    start: np.ndarray  # (caps + 1,) a cap's first atom
    atom: np.ndarray  # (n,) indices of the atoms
    part: np.ndarray  # |d| a, one atom after the other
    at: np.ndarray  # (spans + 1,) where those of a span begin
    rest: np.ndarray  # (n,) |d| |e|


def make_cells(atoms: Array) -> Cells:
    """Divide atoms (float64) into cells, deterministically."""
    norms = np.sqrt(np.einsum("ij,ij->i", atoms, atoms))
    present = np.flatnonzero(norms)
    units, norms = atoms[present] / norms[present, None], norms[present]
    spans = [_make_span(units, norms, rows) for rows in find_spans(units)]
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


def _make_span(units: Array, norms: Array, rows: Array) -> dict[str, Array]:
    """Basis, groups, caps and atoms of a span; atoms are numbered from the first of the span."""
    basis, _ = fit_basis(units[rows])
    inside = units[rows] @ basis.T
    groups = [
        [group[cell] for cell in members_of(cluster(inside[group], len(group) // _CELL))]
        for group in members_of(cluster(inside, round((len(rows) / _CELL) ** 0.5)))
    ]
    cells = [cell for group in groups for cell in group]
    order = np.concatenate(cells)
    rows, inside = rows[order], inside[order]
    left = np.sqrt(np.square(units[rows] - inside @ basis).sum(axis=1))
    n_cells = [len(group) for group in groups]
    first_cell, start = _starts(n_cells)[:-1], _starts(map(len, cells))[:-1]

    def of_caps(measure: Callable[[Array], Array]) -> Array:
        """A measure of each group, followed by those of its cells, from their first atoms."""
        return np.insert(measure(start), first_cell, measure(start[first_cell]), axis=0)

    directions = _normalize_rows(inside)
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


def _centres(directions: Array, starts: Array) -> Array:
    centres = _normalize_rows(np.add.reduceat(directions, starts))
    return np.pad(centres, ((0, 0), (0, MOST_DIRECTIONS - centres.shape[1])))


def _cosines(directions: Array, starts: Array) -> Array:
    """Cosine of the largest angle between the directions of a cap and its centre, rounded down."""
    n_directions = directions.shape[1]
    centres = _centres(directions, starts)[:, :n_directions]
    sizes = np.diff(np.append(starts, len(directions)))
    cosines = (directions * np.repeat(centres, sizes, axis=0)).sum(axis=1)
    return np.maximum(np.minimum.reduceat(cosines, starts) - _slack(n_directions), -1)


def _normalize_rows(rows: Array) -> Array:
    """Scale rows to unit length; zero rows stay zero."""
    size = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)


@jit_reordered
def _slack(p):
    """Bound the error of a product of two rounded unit vectors of p numbers."""
    return (p + 16) * 2.0**-49


@jit_reordered
def _along(c, first, q, inner, nonneg, cells):
    """Inner product of the centre of a cap with t; its absolute value unless nonneg."""
    u = 0.0
    for b in range(q):
        u += cells.centre[c, b] * inner[first + b]
    return u if nonneg else abs(u)


@jit_reordered
def _bound(c, first, q, inner, inside, outside, margin, nonneg, cells):
    """Bound on ``|d . r|`` for atoms in a cap; their span has q directions from `first` on."""
    u = _along(c, first, q, inner, nonneg, cells) + margin
    cosine = cells.cosine[c]
    if u < inside * cosine:
        across = max(inside * inside - u * u, 0.0) * (1.0 - cosine * cosine)
        inside = max(u * cosine + np.sqrt(across), 0.0)
    return cells.norm[c] * (inside + cells.left[c] * outside + margin)


@jit_reordered
def _measure(r, cells, lengths):
    """Coordinates of r in all spans, its length in each, and the span where this is largest."""
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
    """Find at most `most` atoms of a direction similar to r, other than `own`, in a few cells.

    They are written to ``index[:n]``. Returns n.
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
    """Inner product with t of the atom at `place`; its span s has q directions from `first` on."""
    v, at = 0.0, cells.at[s] + (place - cells.start[cells.begin[cells.group[s]]]) * q
    for b in range(q):
        v += cells.part[at + b] * inner[first + b]
    return v


@jit_reordered
def violators(r, low, share, most, own, support, nonneg, atoms, cells, lengths, key, index):
    """Find atoms whose correlation with r exceeds `low` and `share` of the largest correlation.

    At most `most` atoms are written to ``index[:n]``, and their absolute correlations to
    ``key[:n]``. Atoms in `support`, and `own`, are excluded. Other atoms that exceed the limits
    have no larger correlation than those found. The span with the largest part of r is searched
    first.

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
                    if j == own or holds(support, support.size, j):
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
    return _drop_below(key, index, n, low, most), looked


@jit_reordered
def strongest_in_cells(Y, own, atoms, cells, found, looked):
    """Write ``max_j |y_i . d_j|`` over j != own[i], and the number of atoms looked at, by row.

    The maximum is zero where it is at the level of rounding, as in `selection.strongest`; then
    another atom may be beyond it.
    """
    lengths, key = np.empty(cells.first.size - 1), np.empty(_ROOM)
    index, support = np.empty(_ROOM, np.int64), np.empty(0, np.int64)
    for i in range(len(Y)):
        y, best = Y[i], -1
        if nearby(y, 1, own[i], False, cells, lengths, key, index):
            best = index[0]
        low = abs(dot(y, atoms[best])) if best >= 0 else 0.0
        n, looked[i] = violators(
            y, low, 1.0, 1, own[i], support, False, atoms, cells, lengths, key, index
        )
        best = index[0] if n else best
        found[i] = beyond_rounding(y, atoms[best]) if best >= 0 else 0.0


@jit_reordered
def _drop_below(key, index, n, low, most):
    """Drop keys below `low`, which has risen since the first were found; keep at most `most`."""
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
