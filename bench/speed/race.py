"""Solvers on the same problem, timed one after another in rounds."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from ... import __version__
from ...solvers.solution import Array
from .alone import describe, solve_alone
from .peers import Peer
from .problems import Case, SparseProblem
from .rounds import in_turns, timing

Progress = Callable[[Iterable, int], Iterable]

_TARGET = 1e-6
_FEWEST_ROWS = 16
_SECONDS = 2.0  # what a peer may take in a round, unless the fewest rows take longer
_MOST_SECONDS = 60.0  # for the fewest rows
_WARM_UP = 64
_LARGEST_GRAM = 4 * 2**30  # bytes
COLUMNS = [
    "case", "lam", "dtype", "n_rows", "n_features", "solver", "version", "n_jobs", "rows_timed",
    "tol", "ms_per_row", "ms_lowest", "ms_highest", "ratio", "ratio_lowest", "ratio_highest", "gap",
    "nonzeros", "passes", "seconds", "memory_mib", "note",
]  # fmt: skip


def race(
    case: Case,
    peers: Iterable[Peer],
    *,
    rounds: int,
    n_jobs: int,
    seed: int,
    progress: Progress | None,
) -> pd.DataFrame:
    """A row for each solver: ours first, whose time per row is what the ratios are of."""
    problem = case.make(seed)
    with _quiet(n_jobs):
        if case.alone:
            rows = [_alone(problem, case.tol, n_jobs)]
        else:
            rows = _rounds(problem, case.tol, peers, rounds, n_jobs, seed, progress)
    n_rows, n_features = problem.Y.shape
    about = {"case": case.name, "lam": case.lam, "dtype": str(problem.Y.dtype)}
    about |= {"n_rows": n_rows, "n_features": n_features}
    return pd.DataFrame([about | row for row in rows]).reindex(columns=COLUMNS)


@contextmanager
def _quiet(n_jobs: int) -> Iterator[None]:
    """Gaps are certified and reported, so that warnings of the solvers add nothing."""
    with threadpool_limits(n_jobs), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _rounds(
    problem: SparseProblem,
    tol: float,
    peers: Iterable[Peer],
    rounds: int,
    n_jobs: int,
    seed: int,
    progress: Progress | None,
) -> list[dict[str, Any]]:
    order = np.random.default_rng(seed).permutation(len(problem.Y))
    ours = _Ours(problem, tol, n_jobs)
    racers: list[_Ours | _Theirs] = [ours]
    if n_jobs > 1:
        racers.append(_Ours(problem, tol, 1))
    absent = []
    for peer in peers:
        if reason := _hindrance(peer, problem, n_jobs):
            absent.append({"solver": peer.name, "note": reason})
        else:
            racers.append(_Theirs(peer, problem, n_jobs, order))
    facts: dict[str, Any] = {}
    steps: list[Callable[[], None]] = [
        lambda: facts.update(solve_alone(problem, tol=tol, n_jobs=n_jobs)),
        *(racer.prepare for racer in racers),
        *(partial(racer.run, last=last) for racer, last in in_turns(racers, rounds)),
    ]
    for step in progress(steps, len(steps)) if progress else steps:
        step()
    memory = {"memory_mib": facts["memory_mib"]}
    return [ours.row(ours) | memory, *(racer.row(ours) for racer in racers[1:]), *absent]


def _alone(problem: SparseProblem, tol: float, n_jobs: int) -> dict[str, Any]:
    facts = solve_alone(problem, tol=tol, n_jobs=n_jobs)
    n = len(problem.Y)
    time_per_row = {"ms_per_row": 1000 * facts["seconds"] / n}
    return _about_ours(tol, n_jobs, n) | facts | time_per_row | _missed(facts["gap"], tol)


def _about_ours(tol: float, n_jobs: int, n: int) -> dict[str, Any]:
    name = "twinsolve" if n_jobs == 1 else f"twinsolve, n_jobs={n_jobs}"
    return {
        "solver": name,
        "version": __version__,
        "n_jobs": n_jobs,
        "rows_timed": n,
        "tol": tol,
    }


def _missed(gap: float, target: float) -> dict[str, str]:
    return {"note": f"gap above {target:.0e}" if gap > target else ""}


def _hindrance(peer: Peer, problem: SparseProblem, n_jobs: int) -> str | None:
    if peer.version is None:
        return f"{peer.module} is not installed"
    if n_jobs > 1 and not peer.threads:
        return "works on one thread only"
    if peer.gram and (size := 8 * len(problem.D) ** 2) > _LARGEST_GRAM:
        return f"the Gram matrix would take {size / 2**30:.0f} GiB"
    return None


class _Racer:
    """One solver; `run` times it on its rows."""

    rows: Array

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def _timing(self, ours: "_Racer") -> dict[str, Any]:
        ms = 1000 * np.array(self.seconds) / len(self.rows)
        facts = timing(ms, 1000 * np.array(ours.seconds) / len(ours.rows))
        return facts | {"ms_per_row": facts.pop("ms"), "seconds": np.median(self.seconds)}


class _Ours(_Racer):
    """Always the whole problem, and its time is that of everything."""

    def __init__(self, problem: SparseProblem, tol: float, n_jobs: int) -> None:
        super().__init__()
        self.problem, self.tol, self.n_jobs = problem, tol, n_jobs
        self.rows = np.arange(len(problem.Y))

    def prepare(self) -> None:
        """Have everything compiled."""
        self.problem.first(_WARM_UP).solve(tol=self.tol, n_jobs=self.n_jobs)

    def run(self, last: bool) -> None:
        start = time.perf_counter()
        solution = self.problem.solve(tol=self.tol, n_jobs=self.n_jobs)
        self.seconds.append(time.perf_counter() - start)
        if last:
            self.facts = describe(self.problem, solution)

    def row(self, ours: _Racer) -> dict[str, Any]:
        about = _about_ours(self.tol, self.n_jobs, len(self.rows))
        return about | self._timing(ours) | self.facts | _missed(self.facts["gap"], self.tol)


class _Theirs(_Racer):
    """A peer at the loosest of its tolerances that reaches the target, on some rows."""

    def __init__(self, peer: Peer, problem: SparseProblem, n_jobs: int, order: Array) -> None:
        super().__init__()
        self.peer, self.problem, self.n_jobs, self.order = peer, problem, n_jobs, order
        self.too_slow = False

    def prepare(self) -> None:
        self.solve = self.peer.prepare(self.problem, self.n_jobs)
        self.solve(self.order[:1], self.peer.tolerances[0])  # compiles
        start = time.perf_counter()
        self.solve(self.order[:1], self.peer.tolerances[0])
        if not self.peer.whole and time.perf_counter() - start > _MOST_SECONDS / _FEWEST_ROWS:
            self.too_slow = True
            return
        for tol in self.peer.tolerances:
            self.tol = tol
            if self._reaches_target():
                return

    def _reaches_target(self) -> bool:
        self.rows = self.order if self.peer.whole else self.order[:_FEWEST_ROWS]
        if self.peer.whole:
            return self._gap(self.rows) <= _TARGET
        seconds = 0.0
        for i in self.rows:
            start = time.perf_counter()
            codes = self.solve(np.array([i]), self.tol)
            seconds += time.perf_counter() - start
            if self.problem.gap(codes, np.array([i])).max() > _TARGET:
                return False
        affordable = int(_SECONDS / seconds * len(self.rows))
        if affordable > len(self.rows):
            self.rows = self.order[:affordable]
            return self._gap(self.rows) <= _TARGET
        return True

    def _gap(self, rows: Array) -> float:
        return self.problem.gap(self.solve(rows, self.tol), rows).max()

    def run(self, last: bool) -> None:
        if self.too_slow:
            return
        start = time.perf_counter()
        codes = self.solve(self.rows, self.tol)
        self.seconds.append(time.perf_counter() - start)
        if last:
            self.gap = float(self.problem.gap(codes, self.rows).max())
            self.nonzeros = np.count_nonzero(codes) / len(self.rows)

    def row(self, ours: _Racer) -> dict[str, Any]:
        if self.too_slow:
            note = f"takes more than {_MOST_SECONDS / _FEWEST_ROWS:.1f} s a row"
            return {"solver": self.peer.name, "note": note}
        about = {
            "solver": self.peer.name,
            "version": self.peer.version,
            "n_jobs": self.n_jobs,
            "rows_timed": len(self.rows),
            "tol": self.tol,
            "gap": self.gap,
            "nonzeros": self.nonzeros,
        }
        return about | self._timing(ours) | _missed(self.gap, _TARGET)
