"""The Lassos of `row_pool`, solved one row after another, with searches for atoms in cells.

Each round finds exactly the atoms that violate optimality, and solves the Lasso on the support and
the worst of these atoms. Memory is O(n_atoms + nnz).
"""

from typing import NamedTuple

import numpy as np

from .active_set import ZERO
from .cells import Cells, nearby, violators
from .compiled import jit_reordered
from .row_pool import Block, Codes, finish, gap_at, improve, load, note_progress
from .slots import Problem, admit, dot, residual


class _Search(NamedTuple):
    """Scratch memory of one thread."""

    lengths: np.ndarray  # (groups,)
    key: np.ndarray
    atom: np.ndarray
    looked: np.ndarray  # (rows,) atoms that searches looked at


@jit_reordered
def _begin_row(i, problem, rule, cells, search, pool, work):
    """Solve the row of the only slot, which has no codes yet, on atoms of similar direction."""
    y = problem.signals[i]
    n = nearby(
        y, rule.first_add, problem.own[i], problem.nonneg, cells, search.lengths, search.key,
        search.atom,
    )  # fmt: skip
    for a in range(n):
        j = search.atom[a]
        load(a, j, 0.0, dot(problem.atoms[j], y), i, problem, work)
    improve(i, n, 1.0, problem, rule, pool, ZERO, work)
    residual(y, problem.atoms, pool, 0)
    pool.rounds[0] += 1


@jit_reordered
def _solve_row(i, problem, rule, cells, search, pool, work, out, found, fill):
    """Continue to solve the row of the only slot.

    Returns (fill, whether the row is finished, capacity that it needs).
    """
    while True:
        k, r, h = pool.nnz[0], pool.residual[0], problem.half[i]
        if found.atom.size - fill < work.x.size:
            return fill, False, 0
        if k + rule.add >= work.x.size:
            return fill, False, k + rule.add + 1
        n, looked = violators(
            r, h, rule.spread, rule.add, problem.own[i], pool.atom[0, :k], problem.nonneg,
            problem.atoms, cells, search.lengths, search.key, search.atom,
        )  # fmt: skip
        search.looked[i - out.first] += looked
        top = h
        for a in range(k + n):
            j = pool.atom[0, a] if a < k else search.atom[a - k]
            c = pool.value[0, a] if a < k else 0.0
            top = max(top, load(a, j, c, dot(problem.atoms[j], r), i, problem, work))
            if a < k:
                work.support[a] = a
        gap = gap_at(i, top, problem, pool, 0)
        pool.passes[0] += 1
        pool.rounds[0] += 1
        note_progress(i, gap, rule, problem, pool, 0)
        # Initial codes take one step first, so that they are stationary on their support.
        done = gap <= rule.tol and (k == 0 or pool.rounds[0] > 1)
        if done or pool.stall[0] > 10 or pool.rounds[0] >= rule.max_rounds:
            return finish(i, 0, top, pool, out, found, fill), True, 0
        improve(i, n, gap, problem, rule, pool, ZERO, work)
        residual(problem.signals[i], problem.atoms, pool, 0)


class CellBlock(Block):
    """Solves the rows start .. stop - 1, in one thread."""

    def __init__(
        self, start: int, stop: int, problem: Problem, cells: Cells, tol: float, max_rounds: int
    ) -> None:
        super().__init__(start, stop, problem, tol, max_rounds, slots=1)
        self.cells = cells
        lengths, key = np.empty(len(cells.first) - 1), np.empty(self.room)
        self.search = _Search(
            lengths, key, np.empty(self.room, np.int64), np.zeros(stop - start, np.int64)
        )

    def looked(self) -> np.ndarray:
        return self.search.looked

    def solve(self) -> Codes:
        for i in range(self.start, self.stop):
            admit(self.pool, 0, i, self.problem)
            if self.pool.nnz[0] == 0:
                _begin_row(
                    i, self.problem, self.rule, self.cells, self.search, self.pool, self.work
                )
            done = False
            while not done:
                self.fill, done, need = _solve_row(
                    i,
                    self.problem,
                    self.rule,
                    self.cells,
                    self.search,
                    self.pool,
                    self.work,
                    self.out,
                    self.found,
                    self.fill,
                )
                if not done:
                    self.make_room(need)
            self.widen_factors(1)
        return self.codes()
