"""The Lassos of `row_pool` with few products with all atoms, where these are many.

Rows start from their codes in a sample of the atoms. After each product with all atoms they go on
with those of large correlations.
"""

from functools import partial

import numpy as np

from .row_pool import Codes, PoolBlock
from .slots import Problem, read_only

# All of these affect only the speed. The sample has every step-th of at least _FEWEST atoms with
# _ENTRIES entries: some _SAMPLE, with a step of at least _STEP. Its codes are solved to _COARSE
# times the tolerance.
_FEWEST = 16_384
_ENTRIES = 2_000_000  # with fewer, products cost too little to be worth a sample
_STEP = 8
_SAMPLE = 32_768
_COARSE = 10.0
# A product with all atoms leaves so many, or fewer, so that the cache holds all their entries.
_NEAR = 384
_CACHED = 98_304
# Fewer products do not pay if the active set takes longer: if a row has k nonzeros, by the mean of
# the first _TRIED rows, and k^3 times _COSTLY exceeds the number of entries of the atoms.
_TRIED = 16
_COSTLY = 20.0


def solve_block(start: int, stop: int, problem: Problem, tol: float, max_rounds: int) -> Codes:
    """Codes of the rows start .. stop - 1, by `PoolBlock`."""
    plain = partial(PoolBlock, start, stop, problem, tol, max_rounds)
    others = problem.gram, problem.hidden, problem.start_atom
    m, p = problem.atoms.shape
    if m < _FEWEST or m * p < _ENTRIES or any(array.size for array in others):
        return plain().solve()
    step, rule = max(_STEP, m // _SAMPLE), (_COARSE * tol, max_rounds)
    sample = _sample(problem, step)
    tried = PoolBlock(start, min(start + _TRIED, stop), sample, *rule).solve()
    if _COSTLY * tried.nnz.mean() ** 3 > m * p:
        return plain().solve()
    rough = PoolBlock(start, stop, sample, *rule).solve()
    started = _start_from(rough, start, step, problem)
    near = min(_NEAR, max(_CACHED // p, 1))
    codes = PoolBlock(start, stop, started, tol, max_rounds, near).solve()
    return codes._replace(n_iter=codes.n_iter + rough.n_iter)


def _sample(problem: Problem, step: int) -> Problem:
    """The problem with every `step`-th atom."""
    own = problem.own
    return problem._replace(
        atoms=read_only(np.ascontiguousarray(problem.atoms[::step])),
        atoms32=read_only(np.ascontiguousarray(problem.atoms32[::step])),
        own=read_only(np.where((own >= 0) & (own % step == 0), own // step, -1)),
        own_signals=False,
    )


def _start_from(codes: Codes, first: int, step: int, problem: Problem) -> Problem:
    """The problem whose rows `first`, `first` + 1, ... start from codes in the sample."""
    counts = np.zeros(len(problem.signals) + 1, np.int64)
    counts[first + 1 : first + 1 + len(codes.nnz)] = codes.nnz
    return problem._replace(
        start_at=read_only(np.cumsum(counts)),
        start_atom=read_only(codes.atom * step),
        start_value=read_only(codes.value),
    )
