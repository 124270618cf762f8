"""The rows in progress: one slot each, with its codes, residual and factor."""

from typing import Any, NamedTuple

import numpy as np

from .active_set import ZERO
from .compiled import jit_uncounted

KEPT = (48, 256)  # largest support whose factor is stored in its slot: at first, and at most


def rounding32(p: int) -> float:
    """Bound on the float32 error of an inner product of vectors of p entries and length at most 1.

    It includes the error of rounding the vectors to float32.
    """
    return 1.02 * (p + 4) * 2.0**-24


class Problem(NamedTuple):
    """Rows to be solved, which share their atoms."""

    signals: np.ndarray  # (n, p)
    atoms: np.ndarray  # (m, p)
    atoms32: np.ndarray  # (m, p) float32, atoms / largest
    gram: np.ndarray  # (m, m), or (0, 0): not stored
    half: np.ndarray  # (n,) h
    ridge: np.ndarray  # (n,)
    own: np.ndarray  # (n,) the atom whose coefficient is zero, or -1
    hidden: np.ndarray  # (n, m) bool, further such atoms, or (0, 0): none
    start_at: np.ndarray  # (n + 1,) the codes to start from, as in a csr_array
    start_atom: np.ndarray
    start_value: np.ndarray
    largest: float  # norm of the largest atom
    own_signals: bool  # signals are atoms, own[i] = i
    nonneg: bool


class Pool(NamedTuple):
    """State of the rows in progress, one slot each."""

    row: np.ndarray  # (slots,) row index, -1 when free
    nnz: np.ndarray  # (slots,)
    rounds: np.ndarray  # (slots,)
    pivots: np.ndarray  # (slots,)
    passes: np.ndarray  # (slots,)
    best: np.ndarray  # (slots,) smallest gap so far
    lowest: np.ndarray  # (slots,) smallest objective so far
    stall: np.ndarray  # (slots,) rounds without progress
    atom: np.ndarray  # (slots, cap)
    value: np.ndarray  # (slots, cap)
    residual: np.ndarray  # (slots, p)
    scale: np.ndarray  # (slots,) |residual| |largest atom|
    probe: np.ndarray  # (slots, p) float32, residual / |residual|
    factored: np.ndarray  # (slots,) whether `gram` and `factor` are those of the support
    gram: np.ndarray  # (slots, size) lower triangle, row after row
    factor: np.ndarray  # (slots, size) likewise


@jit_uncounted
def dot(a, b):
    v = 0.0
    for j in range(a.size):
        v += a[j] * b[j]
    return v


@jit_uncounted
def dot32(a, b):
    v = np.float32(0.0)
    for j in range(a.size):
        v += a[j] * b[j]
    return v


@jit_uncounted
def copy(source, out, n):
    """Copy the first n entries; this compiles much faster than an assignment of slices."""
    for j in range(n):
        out[j] = source[j]


@jit_uncounted
def residual(y, D, pool, slot):
    """Residual of a slot in float64; returns its norm."""
    r = pool.residual[slot]
    copy(y, r, y.size)
    for a in range(pool.nnz[slot]):
        c = pool.value[slot, a]
        d = D[pool.atom[slot, a]]
        for j in range(y.size):
            r[j] -= c * d[j]
    return np.sqrt(dot(r, r))


@jit_uncounted
def scaled(a, by, out):
    """out <- a / by, in float32."""
    inv = 1.0 / by if by > 0.0 else 0.0
    for j in range(a.size):
        out[j] = a[j] * inv


@jit_uncounted
def triangle(k):
    return k * (k + 1) // 2


@jit_uncounted
def keep_factor(work, pool, slot, k):
    pool.factored[slot] = triangle(k) <= pool.factor.shape[1]
    if pool.factored[slot]:
        t = 0
        for a in range(k):
            source = work.gram[work.support[a]]
            for b in range(a + 1):
                pool.gram[slot, t] = source[work.support[b]]
                pool.factor[slot, t] = work.factor[a, b]
                t += 1


@jit_uncounted
def recall_factor(work, pool, slot, k):
    t = 0
    for a in range(k):
        for b in range(a + 1):
            work.gram[a, b] = work.gram[b, a] = pool.gram[slot, t]
            work.factor[a, b] = pool.factor[slot, t]
            t += 1


def new_pool(slots: int, cap: int, p: int) -> Pool:
    return Pool(
        row=np.full(slots, -1),
        nnz=np.zeros(slots, np.int64),
        rounds=np.zeros(slots, np.int64),
        pivots=np.zeros(slots, np.int64),
        passes=np.zeros(slots, np.int64),
        best=np.empty(slots),
        lowest=np.empty(slots),
        stall=np.zeros(slots, np.int64),
        atom=np.empty((slots, cap), np.int64),
        value=np.empty((slots, cap)),
        residual=np.empty((slots, p)),
        scale=np.empty(slots),
        probe=np.empty((slots, p), np.float32),
        factored=np.zeros(slots, np.bool_),
        gram=np.empty((slots, triangle(KEPT[0]))),
        factor=np.empty((slots, triangle(KEPT[0]))),
    )


@jit_uncounted
def admit(pool, slot, i, problem):
    pool.row[slot] = i
    first = problem.start_at[i]
    k = problem.start_at[i + 1] - first
    pool.nnz[slot] = k
    copy(problem.start_atom[first:], pool.atom[slot], k)
    copy(problem.start_value[first:], pool.value[slot], k)
    pool.rounds[slot] = 0
    pool.pivots[slot] = 0
    pool.passes[slot] = 0
    pool.factored[slot] = False
    pool.best[slot] = np.inf
    pool.lowest[slot] = np.inf
    pool.stall[slot] = 0
    norm = residual(problem.signals[i], problem.atoms, pool, slot)
    pool.scale[slot] = norm * problem.largest
    scaled(pool.residual[slot], norm, pool.probe[slot])


@jit_uncounted
def fill_slots(pool, live, taken, stop, problem):
    """Put the next rows into the free slots; return the row after the last of these."""
    for slot in range(live):
        if pool.row[slot] < 0 and taken < stop:
            admit(pool, slot, taken, problem)
            taken += 1
    return taken


@jit_uncounted
def _copy_slot(pool, a, b):
    pool.row[b] = pool.row[a]
    pool.nnz[b] = pool.nnz[a]
    pool.rounds[b] = pool.rounds[a]
    pool.pivots[b] = pool.pivots[a]
    pool.passes[b] = pool.passes[a]
    pool.best[b] = pool.best[a]
    pool.lowest[b] = pool.lowest[a]
    pool.stall[b] = pool.stall[a]
    pool.scale[b] = pool.scale[a]
    copy(pool.atom[a], pool.atom[b], pool.nnz[a])
    copy(pool.value[a], pool.value[b], pool.nnz[a])
    copy(pool.residual[a], pool.residual[b], pool.residual.shape[1])
    copy(pool.probe[a], pool.probe[b], pool.probe.shape[1])
    pool.factored[b] = pool.factored[a]
    if pool.factored[a]:
        size = triangle(pool.nnz[a])
        copy(pool.gram[a], pool.gram[b], size)
        copy(pool.factor[a], pool.factor[b], size)
    pool.row[a] = -1


@jit_uncounted
def compact(pool, live):
    """Move the occupied slots to the front; return their number."""
    n = ZERO
    for slot in range(live):
        if pool.row[slot] >= 0:
            if slot != n:
                _copy_slot(pool, slot, n)
            n += 1
    return n


def widen(a: np.ndarray, cap: int) -> np.ndarray:
    b = np.empty((a.shape[0], cap), a.dtype)
    b[:, : a.shape[1]] = a
    return b


def freeze_arrays(fields: Any) -> Any:
    """Return the named tuple with read-only arrays."""
    return fields._make(read_only(x) if isinstance(x, np.ndarray) else x for x in fields)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view, as shared memory gives, so that kernels compile only once."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
