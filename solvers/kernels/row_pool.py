"""Many Lassos that share one dictionary, solved together to a certificate.

Every row is a problem of its own (rows of ``D`` are the atoms)::

    min over c   |y - c D|^2 + lam (r |c|_1 + (1 - r)/2 |c|^2),      r = l1_ratio in (0, 1]

In what follows ``h = lam r / 2``, ``ridge = lam (1 - r) / 2``, ``q = (y - c D) D^T - ridge c``. A
pool of rows is solved together. Each round

1. multiplies all residuals of the pool by all atoms (float32 GEMMs, one for each part of the atoms,
   with a rigorous bound on their rounding);
2. per row, certifies, or collects the atoms that violate optimality: exact float64 products for
   those that matter;
3. per row, solves the Lasso on the support and the worst violators by the active-set method. If
   the atoms are many, it goes on with those whose correlations were largest in step 1.

Certified rows leave the pool, and new rows take their place. Memory is O(pool * part + nnz) besides
the atoms, which may lie in a file. With a stored Gram matrix, it is O(n_atoms^2).
"""

from typing import NamedTuple

import numpy as np

from .active_set import ZERO, Work, active_set, new_work
from .compiled import jit_counted, jit_uncounted
from .selection import add_largest, holds, keep_largest_keys
from .slots import (
    KEPT,
    Pool,
    Problem,
    compact,
    copy,
    dot,
    dot32,
    fill_slots,
    keep_factor,
    new_pool,
    recall_factor,
    residual,
    rounding32,
    scaled,
    triangle,
    widen,
)

_EPS32 = 2.0**-23
_TINY32 = 2.0**-126  # smaller numbers have larger relative rounding errors
_SLOTS = 256  # rows in a pool
_PART = 2048  # atoms that it multiplies at a time
_ROUGH = 10.0  # multiple of the tolerance above which correlations need not be exact
# These four affect only the speed: the number of atoms that join a working set in the first round
# and in later rounds; the tolerance of early rounds; the share of the worst correlation from which
# atoms join; and supports of at most n_features / _LOCAL atoms are multiplied by the stored Gram
# matrix at once.
_ADD = (40, 30)
_LOOSE = 0.003
_SPREAD = 0.35
_LOCAL = 8
# So do these: atoms are near if their correlation is at least this share of h, and a row stays with
# those of one search for so many rounds at most.
_REACH = 0.9
_ROUNDS = 20


class Codes(NamedTuple):
    """Codes of a block of rows, with counts and bounds."""

    atom: np.ndarray  # (nnz of the block,) row after row
    value: np.ndarray
    nnz: np.ndarray  # (rows,)
    n_iter: np.ndarray  # (rows,) steps of the active set
    n_passes: np.ndarray  # (rows,) products with all atoms, or searches in their cells
    n_looked: np.ndarray  # (rows,) atoms that these looked at
    correlation: np.ndarray  # (rows,) an upper bound on max_j |q_j|, at least h


class _Rule(NamedTuple):
    tol: float
    rounding: float  # bound on the error of P, which is at most 1 in size
    max_rounds: int
    first_add: int  # atoms that may join a working set in the first round, and later
    add: int
    spread: float  # atoms join if their correlation is at least this share of the worst
    # A round need not solve its working set to less than this share of the present gap.
    loose: float
    local: int  # largest support that is multiplied by the stored Gram matrix at once
    near: int  # atoms that are kept from a search, or 0


class _Found(NamedTuple):
    """Coefficients of the finished rows, in the order of completion."""

    atom: np.ndarray
    value: np.ndarray


class _Search(NamedTuple):
    """For each slot: what the parts of the atoms searched so far hold, in units of its `scale`."""

    key: np.ndarray  # (slots, room) float32, absolute correlations that may be among the largest
    atom: np.ndarray  # (slots, room)
    n: np.ndarray  # (slots,) their number
    low: np.ndarray  # (slots,) float32, a bound on the others
    top: np.ndarray  # (slots,) float32, the largest


class _Out(NamedTuple):
    """For each row of the block: the counts of `Codes`, and the start of its codes in `found`."""

    first: int  # row 0 of the block
    start: np.ndarray
    nnz: np.ndarray
    n_iter: np.ndarray
    n_passes: np.ndarray
    correlation: np.ndarray


class _State(NamedTuple):
    """State of the solution of a block of rows.

    ::

        rows of the block   start .. | solved | in the pool  | to come | .. stop
        pool, P, search                       | slot 0 .. live |          a row a slot
        out                          | start, nnz, ... |                  a row a row
        found               | codes, in the order of completion | fill .. room |
    """

    problem: Problem
    rule: _Rule
    pool: Pool
    work: Work  # of the row that is being solved
    P: np.ndarray  # (slots, part) float32 correlations of the residuals, to within rounding
    search: _Search
    out: _Out
    found: _Found


@jit_uncounted
def _advance(first, stop, fresh, row, B, fill, state):
    """Run one or more rounds for the slots first .. stop - 1, which have searched all atoms.

    If `fresh`, run only new slots. B then holds the exact correlations of the signals row, row + 1,
    ..., and the Gram matrix is stored. A small support is multiplied by it at once; other rows wait
    for the next product of the whole pool.
    Returns (next slot, fill, capacity that the next slot needs).
    """
    problem, rule, pool, work, P, search, out, found = state
    D, G = problem.atoms, problem.gram
    for slot in range(first, stop):
        i = pool.row[slot]
        if i < 0 or (fresh and (pool.rounds[slot] > 0 or pool.nnz[slot] > rule.local)):
            continue
        if found.atom.size - fill < work.x.size:
            return slot, fill, 0
        q, y = work.q_all[:0], problem.signals[i]
        scale, slack = pool.scale[slot], rule.rounding
        if fresh:
            scale, slack = np.sqrt(dot(y, y)) * problem.largest, _TINY32
            q = B[i - row]
        while True:
            if fresh:
                if pool.nnz[slot] > 0:
                    q = work.q_all
                    _minus_rows(B[i - row], G, pool.atom[slot], pool.value[slot], pool.nnz[slot], q)
                scaled(q, scale, P[slot])
                _begin_search(i, scale, slack, problem, rule, slot, search)
                _search_part(P[slot], 0, i, problem, rule, pool, slot, search)
            n, rest = _violators(i, scale, slack, problem, rule, pool, slot, search, work)
            k = pool.nnz[slot]
            if k + n >= work.x.size:  # room for one more atom, which may tie with others
                return slot, fill, k + n + 1
            gap, inner, n, top = _certify(
                P[slot], q, i, n, rest, scale, rule, problem, pool, slot, work
            )
            pool.passes[slot] += not fresh or (pool.rounds[slot] == 0 and not problem.own_signals)
            pool.rounds[slot] += 1
            note_progress(i, gap, rule, problem, pool, slot)
            # Initial codes take one step first, so that they are stationary on their support.
            done = gap <= rule.tol and (k == 0 or pool.rounds[slot] > 1)
            if done or pool.stall[slot] > 10 or pool.rounds[slot] >= rule.max_rounds:
                fill = finish(i, slot, top, pool, out, found, fill)
                break
            k = improve(i, n, inner, problem, rule, pool, slot, work)
            norm = residual(y, D, pool, slot)
            if rule.near:
                norm = _improve_on_near(i, inner, norm, problem, rule, pool, slot, search, work)
            if not fresh or k > rule.local or k + rule.add >= work.x.size:
                pool.scale[slot] = norm * problem.largest
                scaled(pool.residual[slot], norm, pool.probe[slot])
                break
    return stop, fill, 0


@jit_uncounted
def _improve_on_near(i, gap, norm, problem, rule, pool, slot, search, work):
    """Repeat the round on the atoms that the last search kept; returns the norm of the residual."""
    h, probe, near = problem.half[i], pool.probe[slot], search.atom[slot]
    goal = max(0.3 * rule.tol, rule.loose * gap)
    for _ in range(_ROUNDS):
        k, n, scale = pool.nnz[slot], ZERO, norm * problem.largest
        if k + rule.add >= work.x.size:
            break
        scaled(pool.residual[slot], norm, probe)
        for a in range(search.n[slot]):
            v = dot32(problem.atoms32[near[a]], probe) * scale
            v = v if problem.nonneg else abs(v)
            if v > h and not holds(pool.atom[slot], k, near[a]):
                work.key[n], work.candidate[n] = v, near[a]
                n += 1
        if n == 0:
            break
        n, _ = keep_largest_keys(work.key, work.candidate, n, np.float32(0.0), rule.add)
        top = work.key[0]
        for a in range(n):
            top = max(top, work.key[a])
        inner = gap_at(i, top, problem, pool, slot)
        if inner <= goal:
            break
        for a in range(k):
            work.support[a] = a
        _load_roughly(search.key[slot, :0], i, n, 1.0, problem, pool, slot, work)
        improve(i, n, inner, problem, rule, pool, slot, work)
        norm = residual(problem.signals[i], problem.atoms, pool, slot)
    return norm


@jit_uncounted
def finish(i, slot, top, pool, out, found, fill):
    """Append the codes of the row to `found`, free its slot, and return the new fill."""
    at, k = i - out.first, pool.nnz[slot]
    out.start[at], out.nnz[at] = fill, k
    out.n_iter[at], out.n_passes[at] = pool.pivots[slot], pool.passes[slot]
    out.correlation[at] = top
    copy(pool.atom[slot], found.atom[fill:], k)
    copy(pool.value[slot], found.value[fill:], k)
    pool.row[slot] = -1
    return fill + k


@jit_uncounted
def _minus_rows(b, G, index, value, k, q):
    """q <- b - sum_a value[a] G[index[a]], four rows at a time."""
    copy(b, q, q.size)
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


@jit_counted
def _search_all(live, P, problem, rule, pool, search):
    """Search all atoms for the first slots, a part at a time: P holds its correlations."""
    atoms, width = problem.atoms32, P.shape[1]
    for slot in range(live):
        _begin_search(pool.row[slot], pool.scale[slot], rule.rounding, problem, rule, slot, search)
    for start in range(0, len(atoms), width):
        part = atoms[start : start + width]
        Q = P.reshape(-1)[: live * len(part)].reshape(live, len(part))
        np.dot(pool.probe[:live], part.T, Q)
        for slot in range(live):
            _search_part(Q[slot], start, pool.row[slot], problem, rule, pool, slot, search)


@jit_uncounted
def _begin_search(i, scale, slack, problem, rule, slot, search):
    search.n[slot] = 0
    search.top[slot] = 0.0
    least = _least_violation(i, scale, slack, problem) if scale > 0.0 else np.inf
    search.low[slot] = least * (_REACH if rule.near else 1.0)


@jit_uncounted
def _search_part(p, start, i, problem, rule, pool, slot, search):
    """Search the atoms start, start + 1, ... outside the support; p holds their correlations."""
    own = problem.own[i] - start
    if 0 <= own < p.size:
        p[own] = 0.0
    if problem.hidden.size:
        for j in range(p.size):
            if problem.hidden[i, start + j]:
                p[j] = 0.0
    for a in range(pool.nnz[slot]):
        j = pool.atom[slot, a] - start
        if 0 <= j < p.size:
            p[j] = 0.0
    search.n[slot], search.low[slot], search.top[slot] = add_largest(
        p,
        start,
        search.n[slot],
        search.low[slot],
        search.top[slot],
        problem.nonneg,
        max(_most_added(rule, pool, slot), rule.near),
        rule.spread,
        search.key[slot],
        search.atom[slot],
    )


@jit_uncounted
def _most_added(rule, pool, slot):
    """Number of atoms that may join the working set of a slot."""
    return rule.first_add if pool.rounds[slot] == 0 and pool.nnz[slot] == 0 else rule.add


@jit_uncounted
def _violators(i, scale, slack, problem, rule, pool, slot, search, work):
    """Write the worst atoms outside the support to work.candidate.

    Returns their number, and a bound on |q| for all other atoms.
    """
    if scale <= 0.0:
        return 0, 0.0
    least = np.float32(_least_violation(i, scale, slack, problem))
    low = max(search.low[slot], np.float32(rule.spread * search.top[slot]))
    key, atom, most = search.key[slot], search.atom[slot], _most_added(rule, pool, slot)
    n, bound = keep_largest_keys(key, atom, search.n[slot], low, max(most, rule.near))
    search.n[slot], search.low[slot] = n, bound
    copy(key, work.key, n)
    copy(atom, work.candidate, n)
    if rule.near:
        n, bound = keep_largest_keys(work.key, work.candidate, n, max(bound, least), most)
    return n, (bound * (1.0 + _EPS32) + slack) * scale if bound > least else 0.0


@jit_uncounted
def _least_violation(i, scale, slack, problem):
    """Largest correlation that cannot violate optimality for any rounding error."""
    return (problem.half[i] / scale - slack) * (1.0 - _EPS32)


@jit_uncounted
def load(a, j, c, v, i, problem, work):
    """Put atom j, with coefficient c and correlation v, at position `a` of the working set.

    Returns the absolute value of q_j.
    """
    v -= problem.ridge[i] * c
    work.atoms[a] = j
    work.x[a] = c
    work.q[a] = v
    work.sign[a] = np.sign(c)
    work.known[a] = False
    return v if problem.nonneg else abs(v)


@jit_uncounted
def _load_roughly(p, i, n, scale, problem, pool, slot, work):
    """Load the candidates, by P if it holds all atoms, and the support as if it were stationary."""
    h, ridge = problem.half[i], problem.ridge[i]
    for a in range(pool.nnz[slot]):
        c = pool.value[slot, a]
        load(a, pool.atom[slot, a], c, h * np.sign(c) + ridge * c, i, problem, work)
    for a in range(n):
        j = work.candidate[a]
        whole = p.size == len(problem.atoms)
        v = p[j] * scale if whole else dot(problem.atoms[j], pool.residual[slot])
        load(pool.nnz[slot] + a, j, 0.0, v, i, problem, work)


@jit_uncounted
def _certify(p, q, i, n, rest, scale, rule, problem, pool, slot, work):
    """Load support and candidates; q holds the exact correlations, or is empty.

    Far from the optimum rounded correlations suffice, which certify nothing.
    Returns (gap, the gap if all other atoms were within bounds, number of candidates, bound on the
    largest correlation).
    """
    k, r, tol = pool.nnz[slot], pool.residual[slot], rule.tol
    for a in range(k):
        work.support[a] = a
    if q.size == 0 and pool.stall[slot] == 0 and 0 < pool.rounds[slot] < rule.max_rounds - 1:
        top = problem.half[i]
        for a in range(n):
            top = max(top, work.key[a] * scale)
        inner = gap_at(i, top, problem, pool, slot)
        if inner > _ROUGH * tol:
            _load_roughly(p, i, n, scale, problem, pool, slot, work)
            return gap_at(i, max(top, rest), problem, pool, slot), inner, n, np.inf
    top = problem.half[i]
    for a in range(k):
        j = pool.atom[slot, a]
        v = q[j] if q.size else dot(problem.atoms[j], r)
        top = max(top, load(a, j, pool.value[slot, a], v, i, problem, work))
    for a in range(n):
        j = work.candidate[a]
        v = q[j] if q.size else dot(problem.atoms[j], r)
        top = max(top, load(k + a, j, 0.0, v, i, problem, work))
    bound, inner = max(top, rest), gap_at(i, top, problem, pool, slot)
    gap = gap_at(i, bound, problem, pool, slot) if bound > top else inner
    if inner <= tol < gap:
        # Only the bound on the other atoms (ties at the bound) prevents the certificate: compute
        # their correlations, and load the worst.
        j, worst = _worst_left_out(i, k + n, problem, r, work)
        bound = max(top, worst)
        gap = gap_at(i, bound, problem, pool, slot)
        if gap > tol:
            load(k + n, j, 0.0, dot(problem.atoms[j], r), i, problem, work)
            n, inner = n + 1, gap
    return gap, inner, n, bound


@jit_uncounted
def note_progress(i, gap, rule, problem, pool, slot):
    """Count rounds in which neither gap nor objective decreases by an amount relevant at `tol`."""
    y = problem.signals[i]
    objective = _objective(i, problem, pool, slot)
    pool.stall[slot] += 1
    if gap < 0.9 * pool.best[slot]:
        pool.best[slot] = gap
        pool.stall[slot] = 0
    if objective < pool.lowest[slot] - 1e-3 * rule.tol * dot(y, y):
        pool.lowest[slot] = objective
        pool.stall[slot] = 0


@jit_uncounted
def _worst_left_out(i, w, problem, r, work):
    """The atom outside the working set with the largest correlation, and this correlation."""
    worst, at = 0.0, ZERO
    for j in range(len(problem.atoms)):
        v = dot(problem.atoms[j], r)
        v = v if problem.nonneg else abs(v)
        absent = j == problem.own[i] or (problem.hidden.size and problem.hidden[i, j])
        if v > worst and not absent and not holds(work.atoms, w, j):
            worst, at = v, j
    return at, worst


@jit_uncounted
def _objective(i, problem, pool, slot):
    l1 = 0.0
    for a in range(pool.nnz[slot]):
        l1 += abs(pool.value[slot, a])
    return _energy(i, problem, pool, slot) + 2.0 * problem.half[i] * l1


@jit_uncounted
def _energy(i, problem, pool, slot):
    """``|r|^2 + ridge |c|^2``; without a ridge, c is not squared, as that might overflow."""
    r, l2 = pool.residual[slot], 0.0
    if problem.ridge[i] > 0.0:
        for a in range(pool.nnz[slot]):
            l2 += pool.value[slot, a] ** 2
    return dot(r, r) + problem.ridge[i] * l2


@jit_uncounted
def gap_at(i, top, problem, pool, slot):
    """Gap at the best feasible multiple of the residual, if no correlation exceeds `top`."""
    y, r = problem.signals[i], pool.residual[slot]
    rr, ry, yy = _energy(i, problem, pool, slot), dot(r, y), dot(y, y)
    alpha = min(problem.half[i] / top, max(ry / rr, 0.0)) if rr > 0.0 else 1.0
    dual = alpha * (2.0 * ry - alpha * rr)
    return (_objective(i, problem, pool, slot) - dual) / yy if yy > 0.0 else 0.0


@jit_uncounted
def improve(i, n, gap, problem, rule, pool, slot, work):
    """Solve the Lasso on the working set that _certify loaded; returns the size of the support."""
    y, k = problem.signals[i], pool.nnz[slot]
    kept = pool.factored[slot]
    if kept:
        recall_factor(work, pool, slot, k)
    _small_gram(work, problem, k if kept else 0, k + n, problem.ridge[i])
    tol = max(0.1 * rule.tol, rule.loose * gap)
    k, pivots = active_set(
        work,
        problem.gram,
        k,
        kept,
        k + n,
        problem.half[i],
        problem.ridge[i],
        dot(y, y),
        tol,
        problem.nonneg,
    )
    pool.pivots[slot] += pivots
    pool.nnz[slot] = k
    for a in range(k):
        pos = work.support[a]
        pool.atom[slot, a] = work.atoms[pos]
        pool.value[slot, a] = work.x[pos]
    keep_factor(work, pool, slot, k)
    return k


@jit_counted
def _small_gram(work, problem, kept, w, ridge):
    """Complete the Gram matrix of the working set, whose first `kept` rows and columns are known.

    From a stored Gram matrix, only the rows of the support are read; the row of another atom is
    read when the atom joins the support.
    """
    D, G = problem.atoms, problem.gram
    if G.shape[0] == D.shape[0]:
        for a in range(kept):
            source, g = G[work.atoms[a]], work.gram[a]
            for b in range(kept, w):
                g[b] = source[work.atoms[b]]
            work.known[a] = True
    else:
        rows = D[work.atoms[:w]]
        products = np.dot(rows[kept:], rows.T)
        for a in range(kept, w):
            copy(products[a - kept], work.gram[a], w)
            for b in range(kept):
                work.gram[b, a] = work.gram[a, b]
            work.gram[a, a] += ridge
        for a in range(w):
            work.known[a] = True


class Block:
    """Memory for the rows start .. stop - 1, of which `slots` are solved at a time."""

    def __init__(
        self,
        start: int,
        stop: int,
        problem: Problem,
        tol: float,
        max_rounds: int,
        slots: int,
        near: int = 0,
    ) -> None:
        (m, p), n = problem.atoms.shape, stop - start
        self.rule = _Rule(
            tol,
            rounding32(p),
            max_rounds,
            *_ADD,
            _SPREAD,
            _LOOSE,
            p // _LOCAL,
            near,
        )
        self.start, self.stop, self.problem = start, stop, problem
        largest_start = int(np.diff(problem.start_at[start : stop + 1]).max())
        self.cap, self.room = 128 + largest_start, max(8 * max(_ADD), 2 * near) + 128
        self.slots = min(slots, n)
        self.n_all = m if problem.gram.size else 0
        self.pool = new_pool(self.slots, self.cap, p)
        self.work = new_work(self.cap, self.n_all, self.room)
        self.out = _Out(
            first=start,
            start=np.zeros(n, np.int64),
            nnz=np.zeros(n, np.int64),
            n_iter=np.zeros(n, np.int64),
            n_passes=np.zeros(n, np.int64),
            correlation=np.zeros(n),
        )
        size = 16 * n + self.cap
        self.found, self.fill = _Found(np.empty(size, np.int64), np.empty(size)), 0

    def make_room(self, need: int) -> None:
        """Enlarge the working sets to `need` atoms or, if these fit already, the room for codes."""
        if need > self.cap:
            self.cap = need + need // 2
            self.work = new_work(self.cap, self.n_all, self.room)
            self.pool = self.pool._replace(
                atom=widen(self.pool.atom, self.cap), value=widen(self.pool.value, self.cap)
            )
        else:
            self.found = _Found(
                *(np.concatenate([a, np.empty(a.size + self.cap, a.dtype)]) for a in self.found)
            )

    def widen_factors(self, live: int) -> None:
        """Enlarge the stored factors to fit supports in the first `live` slots, up to a limit."""
        size = triangle(min(int(self.pool.nnz[:live].max()), KEPT[1]))
        if size > self.pool.factor.shape[1]:
            size += size // 2
            self.pool = self.pool._replace(
                gram=widen(self.pool.gram, size), factor=widen(self.pool.factor, size)
            )

    def codes(self) -> Codes:
        """Codes sorted by row, not by completion."""
        out = self.out
        row_start = np.cumsum(out.nnz) - out.nnz
        take = np.arange(self.fill) + np.repeat(out.start - row_start, out.nnz)
        atom, value = self.found.atom[take], self.found.value[take]
        return Codes(atom, value, out.nnz, out.n_iter, out.n_passes, self.looked(), out.correlation)

    def looked(self) -> np.ndarray:
        """Number of atoms that the passes of each row looked at."""
        return self.out.n_passes * len(self.problem.atoms)


class PoolBlock(Block):
    """The rows start .. stop - 1, which one thread solves with one pool.

    A row is finished if its gap is at most `tol` or no longer decreases, or after `max_rounds`
    products with all atoms. Each of these leaves up to `near` atoms, on which the row goes on.
    """

    def __init__(
        self, start: int, stop: int, problem: Problem, tol: float, max_rounds: int, near: int = 0
    ) -> None:
        super().__init__(start, stop, problem, tol, max_rounds, _SLOTS, near)
        # With a stored Gram matrix, all correlations of a row are wanted at once.
        width = len(problem.atoms) if problem.gram.size else min(len(problem.atoms), _PART)
        self.P = np.empty((self.slots, width), np.float32)
        self.search = _Search(
            np.empty((self.slots, self.room + 1), np.float32),
            np.empty((self.slots, self.room + 1), np.int64),
            np.zeros(self.slots, np.int64),
            np.empty(self.slots, np.float32),
            np.empty(self.slots, np.float32),
        )

    def solve(self) -> Codes:
        problem = self.problem
        taken, live = self.start, self.slots
        while live:
            taken = self._refill(live, taken)
            live = compact(self.pool, live)
            if live:
                _search_all(live, self.P, problem, self.rule, self.pool, self.search)
                self._advance(live, False, 0, problem.gram)
        return self.codes()

    def _refill(self, live: int, taken: int) -> int:
        """Put the next rows into the free slots.

        With a stored Gram matrix, new rows are advanced at once, and the slots of rows that finish
        are filled again. In self-expression the first correlations of row i are row i of the Gram
        matrix.
        """
        problem = self.problem
        while taken < self.stop and (self.pool.row[:live] < 0).any():
            first, taken = taken, fill_slots(self.pool, live, taken, self.stop, problem)
            if problem.gram.size == 0:
                break
            if problem.own_signals:
                B = problem.gram[first:taken]
            else:
                B = problem.signals[first:taken] @ problem.atoms.T
                B.flags.writeable = False  # like the Gram matrix, so that one kernel serves both
            self._advance(live, True, first, B)
        return taken

    def _advance(self, live: int, fresh: bool, row: int, B: np.ndarray) -> None:
        slot = 0
        while True:
            state = _State(
                self.problem, self.rule, self.pool, self.work, self.P, self.search, self.out,
                self.found,
            )  # fmt: skip
            slot, self.fill, need = _advance(slot, live, fresh, row, B, self.fill, state)
            if slot == live:
                break
            self.make_room(need)
        self.widen_factors(live)
