"""Orthogonal matching pursuit of many rows at once, on orthogonalised supports."""

import numpy as np
from scipy.sparse import csr_array

from ..inputs import Array, narrow
from ..kernels.compiled import jit_reordered, jit_uncounted
from ..kernels.slots import copy, dot, scaled
from ..kernels.workers import one_blas_thread, spread
from .row_blocks import MOST_STORED

_BLOCK_ROWS = 256
_BLOCK_ENTRIES = 2**22
# Relative size up to which a correlation, or an atom's distance to the span of the support, is 0.
_NO_CORRELATION = 1e-13
_DEPENDENT = 1e-10
_UNIT = 2.0**-24  # half the spacing of float32 at 1
_TINY = 2.0**-60  # relative length from which on float32 may lose an atom's products
_MOST_ERROR = 1 / 8  # share of the largest correlation; beyond, all are computed anew
_PART, _LANES = 512, 64  # correlations updated at a time, and compared at a time


def pursue_rows(
    Y: Array,
    D: Array,
    n_nonzero: int,
    tol: float,
    *,
    exclude_self: bool = False,
    n_jobs: int | None = None,
) -> csr_array:
    """Codes of the rows of Y in the atoms D, by orthogonal matching pursuit.

    A row takes atoms until its residual has ``|r| <= tol``, and at most `n_nonzero`. Y and D are
    contiguous float64. With `exclude_self`, row i may not use atom i.

    Where it pays, the Gram matrix of the atoms updates the correlations ``D r``, as in Batch-OMP
    (Rubinstein, Zibulevsky and Elad, 2008). Atoms that rounding of the updates could confuse are
    multiplied with the residual, so that the answer is that of products with all atoms.
    """
    n, m = len(Y), len(D)
    own_atom = np.arange(n) if exclude_self else np.full(n, -1)
    max_nonzero = min(n_nonzero, m - exclude_self, D.shape[1])
    size = max(1, min(_BLOCK_ROWS, _BLOCK_ENTRIES // (m + (max_nonzero + 1) * D.shape[1])))
    blocks = [slice(start, start + size) for start in range(0, n, size)]
    pays = m <= MOST_STORED and n * (max_nonzero - 1) >= m
    with one_blas_thread:
        norms = np.linalg.norm(D, axis=1)
        atoms32 = _scale(D if pays else D[:0], norms.max())
        shared = D, norms, atoms32, atoms32 @ atoms32.T, max_nonzero, tol
        tasks = [(Y[rows], own_atom[rows], *shared) for rows in blocks]
        by_block = list(spread(_pursue, tasks, n_jobs))
    support, values, counts = (np.concatenate(parts) for parts in zip(*by_block, strict=True))
    stored = np.arange(max_nonzero) < counts[:, None]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    coef = narrow(csr_array((values[stored], support[stored], indptr), shape=(n, m)))
    coef.sort_indices()
    return coef


def _scale(rows: Array, lengths: Array | float) -> Array:
    """Rows divided by lengths, in float32."""
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _pursue(
    Y: Array,
    own: Array,
    D: Array,
    norms: Array,
    atoms32: Array,
    gram: Array,
    most: int,
    tol: float,
) -> tuple[Array, Array, Array]:
    """Return support, coefficients and number of atoms of each row; row i avoids atom own[i]."""
    sizes = np.linalg.norm(Y, axis=1)
    support = np.empty((len(Y), most), dtype=np.intp)
    counts = np.zeros(len(Y), dtype=np.intp)
    values = np.zeros((len(Y), most))
    active = np.flatnonzero(sizes > tol)
    if gram.size:
        first = _scale(Y[active], sizes[active, None]) @ atoms32.T
        _grow_to_end(D, gram, active, first, norms, sizes, own, tol, Y, support, counts, values)
        return support, values, counts
    basis = np.empty((len(Y), most, D.shape[1]))
    triangle = np.empty((len(Y), most, most))
    residual = Y.copy()
    for _ in range(most):
        if len(active) == 0:
            break
        scores = np.abs(residual[active] @ D.T)
        state = norms, sizes, own, tol, residual, basis, triangle, support, counts
        active = active[_grow(D, active, scores, *state)]
    _coefficients(Y, basis, triangle, counts, values)
    return support, values, counts


@jit_reordered
def _grow(
    D: Array,
    active: Array,
    all_scores: Array,
    norms: Array,
    sizes: Array,
    own: Array,
    tol: float,
    residual: Array,
    basis: Array,
    triangle: Array,
    support: Array,
    counts: Array,
) -> Array:
    """Add one atom to each active row; return which rows continue."""
    go_on = np.zeros(active.size, np.bool_)
    for a in range(active.size):
        b = active[a]
        scores = all_scores[a]
        if own[b] >= 0:
            scores[own[b]] = -1.0
        for i in range(counts[b]):
            scores[support[b, i]] = -1.0
        new = np.argmax(scores)
        if scores[new] <= _NO_CORRELATION * norms[new] * sizes[b]:
            continue
        added, _ = _add(D[new], norms[new], residual[b], basis[b], triangle[b], counts[b])
        if added:
            support[b, counts[b]] = new
            counts[b] += 1
            go_on[a] = np.sqrt(dot(residual[b], residual[b])) > tol
    return go_on


@jit_uncounted
def _add(
    d: Array, norm: float, r: Array, basis: Array, triangle: Array, k: int
) -> tuple[bool, float]:
    """Make atom d, less its part in the basis, vector q of the basis, and project r off q.

    Returns whether anything of d was left, and ``q . r``.
    """
    q = basis[k]
    copy(d, q, d.size)
    for i in range(k):
        triangle[i, k] = dot(basis[i], q)
        _subtract(triangle[i, k], basis[i], q)
    distance = np.sqrt(dot(q, q))
    if distance <= _DEPENDENT * norm:
        return False, 0.0
    triangle[k, k] = distance
    for j in range(q.size):
        q[j] /= distance
    taken = dot(q, r)
    _subtract(taken, q, r)
    return True, taken


@jit_reordered
def _grow_to_end(
    D: Array,
    gram: Array,
    active: Array,
    correlations: Array,
    norms: Array,
    sizes: Array,
    own: Array,
    tol: float,
    signals: Array,
    support: Array,
    counts: Array,
    values: Array,
) -> None:
    """Find the codes of the active rows, whose signals have these correlations with the atoms.

    The products ``D q`` with the basis follow from the Gram matrix as q does from the atoms, and
    ``D r`` from them. Both are in float32. The longest atom and the signal count as one there.
    `unsure` and `error` bound what rounding does to ``D q`` and ``D r``.
    """
    most, largest = values.shape[1], norms.max()
    r, basis, T = np.empty(D.shape[1]), np.empty((most, D.shape[1])), np.empty((most, most))
    products, unsure = np.empty((most, len(D)), np.float32), np.empty(most)
    tops = np.empty(_LANES, np.float32)
    rounding = (D.shape[1] + 6 * most + 8) * _UNIT
    for a in range(active.size):
        b, alpha = active[a], correlations[a]
        size, left, error = sizes[b], sizes[b], rounding
        copy(signals[b], r, r.size)
        least = max(tol, _NO_CORRELATION / 2 * size)  # what is less has no correlation
        _exclude(alpha, own[b], support[b, :0])
        for k in range(most):
            top = _top(alpha, tops)
            if not error <= _MOST_ERROR * top:
                _correlate(D, r, 1 / (largest * size), alpha)
                _exclude(alpha, own[b], support[b, :k])
                error = rounding * left / size
                top = _top(alpha, tops)
            new, score = _strongest(D, r, alpha, top - 3 * error)
            if new < 0 or score <= _NO_CORRELATION * norms[new] * size:
                break
            added, taken = _add(D[new], norms[new], r, basis, T, k)
            if not added:
                break
            support[b, k], alpha[new] = new, np.nan
            counts[b] = k + 1
            left = np.sqrt(dot(r, r))
            if k + 1 == most or left <= least:
                break
            unsure[k] = rounding * norms[new] if norms[new] > _TINY * largest else np.inf
            for i in range(k):
                unsure[k] += abs(T[i, k]) * unsure[i]
            unsure[k] /= T[k, k]
            error += (abs(taken) * (unsure[k] + rounding) + left * rounding) / size
            _update(alpha, products, gram[new], largest, T, k, taken / size)
        _solve(signals[b], basis, T, counts[b], values[b])


@jit_uncounted
def _correlate(D: Array, r: Array, scale: float, alpha: Array) -> None:
    for j in range(alpha.size):
        alpha[j] = dot(D[j], r) * scale


@jit_uncounted
def _update(
    alpha: Array, products: Array, own: Array, largest: float, T: Array, k: int, c: float
) -> None:
    """Find the products with vector k of the basis, and take c times them from alpha."""
    for start in range(0, alpha.size, _PART):
        end = min(start + _PART, alpha.size)
        p = products[k, start:end]
        scaled(own[start:end], T[k, k] / largest, p)
        for i in range(k):
            _subtract(np.float32(T[i, k] / T[k, k]), products[i, start:end], p)
        _subtract(np.float32(c), p, alpha[start:end])


@jit_uncounted
def _exclude(alpha: Array, own: int, support: Array) -> None:
    """Set alpha to NaN, which no search finds, at `own` and `support`."""
    if own >= 0:
        alpha[own] = np.nan
    for i in support:
        alpha[i] = np.nan


@jit_uncounted
def _top(alpha: Array, tops: Array) -> float:
    """``max_j |alpha_j|``, by running maxima, which the compiler vectorises."""
    for j in range(_LANES):
        tops[j] = 0.0
    for start in range(0, alpha.size, _LANES):
        _raise(tops, alpha[start : start + _LANES])
    half = _LANES // 2
    while half:
        _raise(tops, tops[half : 2 * half])
        half //= 2
    return tops[0]


@jit_uncounted
def _raise(tops: Array, values: Array) -> None:
    for j in range(values.size):
        v = abs(values[j])
        tops[j] = v if v > tops[j] else tops[j]


@jit_uncounted
def _strongest(D: Array, r: Array, alpha: Array, low: float) -> tuple[int, float]:
    """Return the atom of largest ``|d_j . r|`` among those with ``|alpha_j| >= low``, and this."""
    new, score, least = -1, -1.0, np.float32(low)
    for start in range(0, alpha.size, _LANES):
        part, hits = alpha[start : start + _LANES], 0
        for j in range(part.size):
            hits += abs(part[j]) >= least
        for j in range(part.size if hits else 0):
            if abs(part[j]) >= least:
                found = abs(dot(D[start + j], r))
                if found > score:
                    new, score = start + j, found
    return new, score


@jit_uncounted
def _subtract(c: float, b: Array, out: Array) -> None:
    """out <- out - c b; as a loop it compiles much faster than on arrays."""
    for j in range(out.size):
        out[j] -= c * b[j]


@jit_reordered
def _coefficients(
    signals: Array, basis: Array, triangle: Array, counts: Array, values: Array
) -> None:
    for b in range(len(signals)):
        _solve(signals[b], basis[b], triangle[b], counts[b], values[b])


@jit_uncounted
def _solve(signal: Array, basis: Array, triangle: Array, count: int, out: Array) -> None:
    """Find the c with ``triangle c = basis signal``, by back substitution."""
    for i in range(count - 1, -1, -1):
        value = dot(basis[i], signal)
        for j in range(i + 1, count):
            value -= triangle[i, j] * out[j]
        out[i] = value / triangle[i, i]
