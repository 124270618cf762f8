"""Many Lassos that share one dictionary, solved together to a certificate.

Every row is a problem of its own (rows of ``D`` are the atoms)::

    min over c   |y - c D|^2 + lam (r |c|_1 + (1 - r)/2 |c|^2),      r = l1_ratio in (0, 1]

In what follows ``h = lam r / 2``, ``ridge = lam (1 - r) / 2``, ``q = (y - c D) D^T - ridge c``. A
pool of rows is solved together. Each round

1. multiplies all residuals of the pool by all atoms (one float32 GEMM, with a rigorous bound on
   its rounding);
2. per row, certifies, or collects the atoms that violate optimality: exact float64 products for
   those that matter;
3. per row, solves the Lasso on the support and the worst violators by the active-set method.

Rows that are certified leave, and new ones take their place. Memory is O(pool * n_atoms + nnz).
"""

from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from scipy import sparse
from threadpoolctl import threadpool_limits

from .active_set import active_set, jit, new_work
from .selection import largest

_EPS32 = 2.0**-23
_SLOTS = 256  # rows in a pool
_MOST_STORED = 15_000  # atoms whose Gram matrix is stored
# These four steer speed alone. Atoms that join a working set in the first round and later; how
# loosely early rounds are solved; from which share of the worst correlation atoms join; supports of
# at most n_features / _LOCAL atoms are multiplied with the stored Gram matrix on the spot.
_ADD = (40, 30)
_LOOSE = 0.003
_SPREAD = 0.35
_LOCAL = 12


class _Problem(NamedTuple):
    signals: np.ndarray  # (n, p)
    atoms: np.ndarray  # (m, p)
    gram: np.ndarray  # (m, m), or (0, 0): not stored
    half: np.ndarray  # (n,) h
    ridge: np.ndarray  # (n,)
    largest: float  # norm of the largest atom
    exclude_self: bool
    nonneg: bool


class _Rule(NamedTuple):
    tol: float
    rounding: float  # bound on the error of P, which is at most 1 in size
    max_rounds: int
    first_add: int  # atoms that may join a working set in the first round, and later
    add: int
    spread: float  # ... if their correlation is at least this share of the worst one
    loose: (
        float  # a round need not solve its working set to less than this share of the present gap
    )
    local: int  # largest support that is multiplied with the stored Gram matrix alone


class _Found(NamedTuple):
    """Coefficients of the finished rows, in the order of completion."""

    atom: np.ndarray
    value: np.ndarray


class _Pool(NamedTuple):
    """State of the rows in progress, one slot each."""

    row: np.ndarray  # (slots,) row index, -1 when free
    nnz: np.ndarray  # (slots,)
    rounds: np.ndarray  # (slots,)
    pivots: np.ndarray  # (slots,)
    best: np.ndarray  # (slots,) best certified gap so far
    stall: np.ndarray  # (slots,) certified rounds without progress
    atom: np.ndarray  # (slots, cap)
    value: np.ndarray  # (slots, cap)
    residual: np.ndarray  # (slots, p)
    scale: np.ndarray  # (slots,) |residual| |largest atom|
    probe: np.ndarray  # (slots, p) float32, residual / |residual|


class _Out(NamedTuple):
    """By row: steps of the active set, and where its coefficients stand among those found."""

    n_iter: np.ndarray
    start: np.ndarray
    nnz: np.ndarray


@jit
def _dot(a, b):
    v = 0.0
    for j in range(a.size):
        v += a[j] * b[j]
    return v


@jit
def _residual(y, D, pool, slot):
    """Residual of a slot in float64; returns its norm."""
    r = pool.residual[slot]
    for j in range(y.size):
        r[j] = y[j]
    for a in range(pool.nnz[slot]):
        c = pool.value[slot, a]
        d = D[pool.atom[slot, a]]
        for j in range(y.size):
            r[j] -= c * d[j]
    return np.sqrt(_dot(r, r))


@jit
def _advance(first, stop, fresh, P, problem, rule, pool, work, out, found, fill):
    """One or more rounds for the slots first .. stop - 1, whose correlations stand in P.

    With a stored Gram matrix, a support that is small enough is multiplied with it on the spot and
    goes on at once; the other rows wait for the next product of the whole pool. Fresh slots of a
    self-expression take row i of the Gram matrix itself.
    Returns (next slot, fill, capacity that the next slot needs).
    """
    D, G = problem.atoms, problem.gram
    m = D.shape[0]
    for slot in range(first, stop):
        i = pool.row[slot]
        if i < 0 or (fresh and pool.rounds[slot] > 0):
            continue
        if found.atom.size - fill < work.x.size:
            return slot, fill, 0
        p, b = P[slot], work.b
        y = problem.signals[i]
        size = np.sqrt(_dot(y, y)) * problem.largest
        scale, slack = pool.scale[slot], rule.rounding
        own = 0.0 if fresh else rule.rounding  # error of the signal's correlations
        local = (
            G.shape[0] == m
            and pool.rounds[slot] == 0
            and (own + _EPS32) * size < 0.01 * problem.half[i]
        )
        if fresh:
            b, slack = G[i], _EPS32
            _scaled(b, scale, p)
        elif local:
            for j in range(m):
                b[j] = p[j] * scale
        while True:
            n, rest = _violators(p, i, scale, slack, problem, rule, pool, slot, work)
            k = pool.nnz[slot]
            if k + n > work.x.size:
                return slot, fill, k + n
            gap, n = _certify(p, i, n, rest, scale, slack, rule.tol, problem, pool, slot, work)
            pool.rounds[slot] += 1
            if gap < 0.9 * pool.best[slot]:
                pool.best[slot] = gap
                pool.stall[slot] = 0
            else:
                pool.stall[slot] += 1
            if gap <= rule.tol or pool.stall[slot] > 10 or pool.rounds[slot] >= rule.max_rounds:
                out.n_iter[i] = pool.pivots[slot]
                out.start[i], out.nnz[i] = fill, k
                for a in range(k):
                    found.atom[fill + a] = pool.atom[slot, a]
                    found.value[fill + a] = pool.value[slot, a]
                fill += k
                pool.row[slot] = -1
                break
            k = _improve(i, n, gap, problem, rule, pool, slot, work)
            norm = _residual(y, D, pool, slot)
            local = local and k <= rule.local and k + rule.add <= work.x.size
            if not local:
                pool.scale[slot] = norm * problem.largest
                _scaled(pool.residual[slot], norm, pool.probe[slot])
                break
            _minus_rows(b, G, pool.atom[slot], pool.value[slot], k, work.full)
            scale = size
            slack = own + _EPS32
            _scaled(work.full, scale, p)
    return stop, fill, 0


@jit
def _minus_rows(b, G, index, value, k, q):
    """q <- b - sum_a value[a] G[index[a]], four rows at a time."""
    q[:] = b
    a = 0
    while a + 4 <= k:
        g0, g1, g2, g3 = G[index[a]], G[index[a + 1]], G[index[a + 2]], G[index[a + 3]]
        c0, c1, c2, c3 = value[a], value[a + 1], value[a + 2], value[a + 3]
        for j in range(q.size):
            q[j] -= c0 * g0[j] + c1 * g1[j] + c2 * g2[j] + c3 * g3[j]
        a += 4
    while a < k:
        c0, g0 = value[a], G[index[a]]
        for j in range(q.size):
            q[j] -= c0 * g0[j]
        a += 1


@jit
def _scaled(a, by, out):
    """out <- a / by, in float32."""
    inv = 1.0 / by if by > 0.0 else 0.0
    for j in range(a.size):
        out[j] = a[j] * inv


@jit
def _violators(p, i, scale, slack, problem, rule, pool, slot, work):
    """Worst atoms off the support, into work.candidate.

    Returns their number, and a bound on |q| for those left out.
    """
    if scale <= 0.0:
        return 0, 0.0
    if problem.exclude_self:
        p[i] = 0.0
    for a in range(pool.nnz[slot]):
        p[pool.atom[slot, a]] = 0.0
    add = rule.first_add if pool.rounds[slot] == 0 else rule.add
    low = np.float32(
        (problem.half[i] / scale - slack) * (1.0 - _EPS32)
    )  # not above the float64 value once rounded
    n, bound = largest(p, low, problem.nonneg, add, rule.spread, work.key, work.candidate)
    return n, (bound + slack) * scale if bound > low else 0.0


@jit
def _load(a, j, c, i, problem, r, work):
    """Put atom j, at coefficient c, into place `a` of the working set; returns |q_j|, exact."""
    v = _dot(problem.atoms[j], r) - problem.ridge[i] * c
    work.atoms[a] = j
    work.x[a] = c
    work.q[a] = v
    work.sign[a] = np.sign(c)
    work.known[a] = False
    return v if problem.nonneg else abs(v)


@jit
def _certify(p, i, n, rest, scale, slack, tol, problem, pool, slot, work):
    """Load support and candidates; returns (gap, number of candidates)."""
    k, r = pool.nnz[slot], pool.residual[slot]
    top = problem.half[i]
    for a in range(k):
        work.support[a] = a
        top = max(top, _load(a, pool.atom[slot, a], pool.value[slot, a], i, problem, r, work))
    for a in range(n):
        top = max(top, _load(k + a, work.candidate[a], 0.0, i, problem, r, work))
    gap = _gap(i, max(top, rest), problem, pool, slot)
    if (
        gap > tol
        and rest > top
        and _gap(i, top, problem, pool, slot) <= tol
        and k + n < work.x.size
    ):
        # Only the bound on the atoms left out is in the way (ties at the bound): look at each, take
        # in the worst.
        j, worst = _worst_left_out(p, i, k + n, scale, slack, problem, r, work)
        gap = _gap(i, max(top, worst), problem, pool, slot)
        if gap > tol:
            _load(k + n, j, 0.0, i, problem, r, work)
            n += 1
    return gap, n


@jit
def _worst_left_out(p, i, w, scale, slack, problem, r, work):
    for a in range(w):
        p[work.atoms[a]] = np.nan
    low, worst, at = problem.half[i] / scale - slack, 0.0, 0
    for j in range(p.size):
        if abs(p[j]) >= low and not (problem.exclude_self and j == i):
            v = _dot(problem.atoms[j], r)
            v = v if problem.nonneg else abs(v)
            if v > worst:
                worst, at = v, j
    return at, worst


@jit
def _gap(i, top, problem, pool, slot):
    """Gap at the best feasible multiple of the residual, if no correlation exceeds `top`."""
    y, r = problem.signals[i], pool.residual[slot]
    h, ridge = problem.half[i], problem.ridge[i]
    l1, l2 = 0.0, 0.0
    for a in range(pool.nnz[slot]):
        c = pool.value[slot, a]
        l1 += abs(c)
        l2 += c * c
    rr, ry, yy = _dot(r, r) + ridge * l2, _dot(r, y), _dot(y, y)
    alpha = min(h / top, max(ry / rr, 0.0)) if rr > 0.0 else 1.0
    dual = alpha * (2.0 * ry - alpha * rr)
    return (rr + 2.0 * h * l1 - dual) / yy if yy > 0.0 else 0.0


@jit
def _improve(i, n, gap, problem, rule, pool, slot, work):
    """Solve on the working set that _certify loaded; returns the size of the support."""
    y, k = problem.signals[i], pool.nnz[slot]
    if problem.gram.shape[0] != problem.atoms.shape[0]:
        _small_gram(work, problem.atoms, k + n, problem.ridge[i])
    tol = max(0.1 * rule.tol, rule.loose * gap)
    k, pivots = active_set(
        work,
        problem.gram,
        k,
        k + n,
        problem.half[i],
        problem.ridge[i],
        _dot(y, y),
        tol,
        problem.nonneg,
    )
    pool.pivots[slot] += pivots
    pool.nnz[slot] = k
    for a in range(k):
        pos = work.support[a]
        pool.atom[slot, a] = work.atoms[pos]
        pool.value[slot, a] = work.x[pos]
    return k


@jit
def _small_gram(work, D, w, ridge):
    rows = D[work.atoms[:w]]
    work.gram[:w, :w] = np.dot(rows, rows.T)
    for a in range(w):
        work.gram[a, a] += ridge
        work.known[a] = True


@jit
def _admit(pool, slot, i, problem):
    pool.row[slot] = i
    pool.nnz[slot] = 0
    pool.rounds[slot] = 0
    pool.pivots[slot] = 0
    pool.best[slot] = np.inf
    pool.stall[slot] = 0
    norm = _residual(problem.signals[i], problem.atoms, pool, slot)
    pool.scale[slot] = norm * problem.largest
    _scaled(pool.residual[slot], norm, pool.probe[slot])


@jit
def _refill(pool, live, rows, taken, problem):
    """Give the free slots the next rows; returns how many rows were given in all."""
    for slot in range(live):
        if pool.row[slot] < 0 and taken < rows.size:
            _admit(pool, slot, rows[taken], problem)
            taken += 1
    return taken


def _new_out(n: int) -> _Out:
    return _Out(*np.zeros((3, n), np.int64))


def _new_pool(slots: int, cap: int, p: int) -> _Pool:
    return _Pool(
        row=np.full(slots, -1),
        nnz=np.zeros(slots, np.int64),
        rounds=np.zeros(slots, np.int64),
        pivots=np.zeros(slots, np.int64),
        best=np.empty(slots),
        stall=np.zeros(slots, np.int64),
        atom=np.empty((slots, cap), np.int64),
        value=np.empty((slots, cap)),
        residual=np.empty((slots, p)),
        scale=np.empty(slots),
        probe=np.empty((slots, p), np.float32),
    )


class _Chunk:
    """Solves some rows with one pool, in one thread."""

    def __init__(
        self, rows: np.ndarray, problem: _Problem, rule: _Rule, out: _Out, own_atoms: bool
    ) -> None:
        m, p = problem.atoms.shape
        self.rows, self.problem, self.rule, self.out = rows, problem, rule, out
        self.cap, self.room = 128, 8 * max(rule.first_add, rule.add) + 128
        self.slots = min(_SLOTS, len(rows))
        # In self-expression the first correlations of row i are row i of the Gram matrix.
        self.from_gram = own_atoms and problem.exclude_self and problem.gram.size > 0
        self.pool, self.work = _new_pool(self.slots, self.cap, p), new_work(self.cap, m, self.room)
        size = 16 * len(rows) + self.cap
        self.found, self.fill = _Found(np.empty(size, np.int64), np.empty(size)), 0
        self.P = np.empty((self.slots, m), np.float32)

    def solve(self, atoms32) -> tuple[np.ndarray, np.ndarray]:
        taken, live, n = 0, self.slots, len(self.rows)
        while live:
            taken = _refill(self.pool, live, self.rows, taken, self.problem)
            if self.from_gram:
                self.advance(live, True)
                while taken < n and (self.pool.row[:live] < 0).any():
                    taken = _refill(self.pool, live, self.rows, taken, self.problem)
                    self.advance(live, True)
            live = _compact(self.pool, live)
            if live:
                np.matmul(self.pool.probe[:live], atoms32.T, out=self.P[:live])
                self.advance(live, False)
        return self.found.atom[: self.fill], self.found.value[: self.fill]

    def advance(self, live: int, fresh: bool) -> None:
        slot = 0
        while True:
            slot, self.fill, need = _advance(
                slot,
                live,
                fresh,
                self.P,
                self.problem,
                self.rule,
                self.pool,
                self.work,
                self.out,
                self.found,
                self.fill,
            )
            if slot == live:
                return
            if need > self.cap:
                self.cap = need + need // 2
                self.work = new_work(self.cap, len(self.problem.atoms), self.room)
                self.pool = self.pool._replace(
                    atom=_widen(self.pool.atom, self.cap), value=_widen(self.pool.value, self.cap)
                )
            else:
                self.found = _Found(
                    *(np.concatenate([a, np.empty(a.size + self.cap, a.dtype)]) for a in self.found)
                )


def _widen(a: np.ndarray, cap: int) -> np.ndarray:
    b = np.empty((a.shape[0], cap), a.dtype)
    b[:, : a.shape[1]] = a
    return b


@jit
def _copy_slot(pool, a, b):
    pool.row[b] = pool.row[a]
    pool.nnz[b] = pool.nnz[a]
    pool.rounds[b] = pool.rounds[a]
    pool.pivots[b] = pool.pivots[a]
    pool.best[b] = pool.best[a]
    pool.stall[b] = pool.stall[a]
    pool.scale[b] = pool.scale[a]
    pool.atom[b] = pool.atom[a]
    pool.value[b] = pool.value[a]
    pool.residual[b] = pool.residual[a]
    pool.probe[b] = pool.probe[a]
    pool.row[a] = -1


@jit
def _compact(pool, live):
    """Move the occupied slots to the front; returns their number."""
    n = 0
    for slot in range(live):
        if pool.row[slot] >= 0:
            if slot != n:
                _copy_slot(pool, slot, n)
            n += 1
    return n


def solve_rows(
    Y: np.ndarray,
    D: np.ndarray,
    lam: np.ndarray,
    *,
    exclude_self: bool = False,
    l1_ratio: float = 1.0,
    nonneg: bool = False,
    tol: float = 1e-6,
    max_rounds: int = 100,
    n_jobs: int | None = None,
) -> tuple[sparse.csr_array, np.ndarray]:
    """Codes of the rows of Y (n, p) in the rows of D (m, p), with c_ii = 0 if `exclude_self`.

    Returns the codes and the number of steps of the active set for each row. A row is left when its
    gap is at most `tol`, or no longer falls, or after `max_rounds` working sets.
    """
    same = Y is D
    D = np.ascontiguousarray(D, dtype=np.float64)
    Y = D if same else np.ascontiguousarray(Y, dtype=np.float64)
    (n, p), m = Y.shape, len(D)
    norm = float(np.sqrt(np.einsum("ij,ij->i", D, D).max())) or 1.0
    n_jobs = effective_n_jobs(n_jobs)
    out = _new_out(n)
    rule = _Rule(tol, 1.02 * (p + 4) * 2.0**-24, max_rounds, *_ADD, _SPREAD, _LOOSE, p // _LOCAL)
    stored = m <= _MOST_STORED and n >= m // 4
    # A small product would only wait for the other threads.
    with threadpool_limits(n_jobs if m * m * p > 4e9 else 1, user_api="blas"):
        G = D @ D.T if stored else np.empty((0, 0))
    with threadpool_limits(1, user_api="blas"):
        half, ridge = lam * l1_ratio / 2, lam * (1 - l1_ratio) / 2
        problem = _Problem(Y, D, G, half, ridge, norm, exclude_self, nonneg)
        atoms32 = (D / norm).astype(np.float32)
        chunks = np.array_split(np.arange(n), max(1, min(n_jobs, n)))
        parts = Parallel(n_jobs=n_jobs, prefer="threads")(
            delayed(_Chunk(rows, problem, rule, out, same).solve)(atoms32) for rows in chunks
        )
    return _collect(chunks, parts, out, m), out.n_iter


def _collect(chunks, parts, out: _Out, m: int) -> sparse.csr_array:
    offset = 0
    for rows, (index, _) in zip(chunks, parts, strict=True):
        out.start[rows] += offset
        offset += index.size
    index, value = (np.concatenate([part[a] for part in parts]) for a in (0, 1))
    indptr = np.concatenate([[0], np.cumsum(out.nnz)])
    take = np.arange(indptr[-1]) + np.repeat(out.start - indptr[:-1], out.nnz)
    coef = sparse.csr_array((value[take], index[take], indptr), shape=(out.nnz.size, m))
    coef.sort_indices()
    return coef
