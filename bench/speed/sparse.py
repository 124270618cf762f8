"""`twinsolve speed self-expression` and `twinsolve speed sparse-coding`."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ... import __version__
from ...solvers.solution import Array
from ..timing import Progress
from .contest import OURS, Entrant, Rounds, alone, chosen, compete, run_cases
from .peers import SELF_EXPRESSION_PEERS, SPARSE_CODING_PEERS, Peer
from .problems import SELF_EXPRESSION, SPARSE_CODING, Case, SparseProblem

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


def time_self_expression(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse self-expression beside its peers, at equal certified gap.

    Every row i of a data set is expressed by the others: ``min |x_i - c X|^2 + lam_i |c|_1`` with
    ``c_i = 0``. Ours solves all rows, and its time includes its Gram matrix and its certificate. A
    peer solves a random sample of the rows, the same in all rounds, with the loosest tolerance
    whose worst certified gap on them is at most 1e-6. In each round all run once, one after
    another. Gaps are certified from the codes alone, at the best multiple of the residual: celer,
    which extrapolates a better dual point, would by its own certificate stop somewhat earlier.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``synthetic-500`` to ``synthetic-20000``, ``yale-b``, ``coil-20`` and
        ``coil-20-dense``; and, ours alone, ``synthetic-40000`` and ``large`` (70,000 rows, gap
        1e-4). None is all but the last two.
    peers : iterable of str, optional
        Among ``scikit-learn``, ``scikit-learn-gram``, ``celer``, ``skglm``,
        ``spams-active-support`` and ``spams-gram``. None is all of them.
    rounds : int, default=3
    n_jobs : int, default=1
        Threads of ours, and of the peers that offer them; the others are left out if it is not 1,
        and ours on one thread joins.
    seed : int, default=0
        Of the generated data and the samples.
    directory : Path, optional
        Folder that keeps the finished cases: one that ran before on this processor, with the same
        settings, versions of the peers and source, is read instead of run.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and solver. Times are ``ms_per_row``, and ``ratio`` to ours in the same
        round: medians over the rounds, with the lowest and highest. ``gap`` is the worst certified
        one, ``nonzeros`` and ``passes`` (products with all atoms) are means over rows,
        ``memory_mib`` is the peak resident memory of ours beyond the input. ``note`` says why a
        solver or a case was left out.

    Raises
    ------
    ValueError
        If a case or peer is unknown, ``rounds < 1``, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_self_expression
    >>> table = time_self_expression(cases=["synthetic-500"], peers=["celer"])  # doctest: +SKIP
    >>> table[["solver", "ms_per_row", "ratio"]]  # doctest: +SKIP
    """
    options = Rounds(rounds, n_jobs, seed, directory, progress)
    listed = chosen(cases, SELF_EXPRESSION, "cases"), chosen(peers, SELF_EXPRESSION_PEERS, "peers")
    return _time("self-expression", *listed, options)


def time_sparse_coding(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse coding in a random dictionary beside its peers, at equal certified gap.

    1,000 unit-norm signals, each of 12 among 1,024 atoms and 5 % noise, in 256 dimensions, with one
    penalty for all. Rounds, samples and tolerances are those of `time_self_expression`.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``dictionary-10`` and ``dictionary-50``: the mean of `lam_max` over the signals,
        divided by that number, is the penalty. None is both.
    peers : iterable of str, optional
        Among ``scikit-learn-cd``, ``scikit-learn-lars``, ``celer``, ``skglm`` and ``spams``. None
        is all of them.
    rounds, n_jobs, seed, directory, progress
        As in `time_self_expression`.

    Returns
    -------
    DataFrame
        As in `time_self_expression`.

    Raises
    ------
    ValueError
        If a case or peer is unknown, ``rounds < 1``, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_sparse_coding
    >>> table = time_sparse_coding(peers=["spams"])  # doctest: +SKIP
    """
    options = Rounds(rounds, n_jobs, seed, directory, progress)
    listed = chosen(cases, SPARSE_CODING, "cases"), chosen(peers, SPARSE_CODING_PEERS, "peers")
    return _time("sparse-coding", *listed, options)


def _time(command: str, cases: list[Case], peers: list[Peer], options: Rounds) -> pd.DataFrame:
    def run(case: Case) -> pd.DataFrame:
        return race(case, peers, options)

    versions = {peer.name: peer.version for peer in peers}
    return run_cases(command, cases, run, options, peers=versions, columns=COLUMNS)


def race(case: Case, peers: Iterable[Peer], options: Rounds) -> pd.DataFrame:
    """A row for each solver: ours first, whose time per row is what the ratios are of."""
    problem = case.make(options.seed)
    ours = _Ours(problem, case.tol, options.n_jobs)
    rows = [_by_row(ours, alone(ours))] if case.alone else _rounds(ours, peers, options)
    n_rows, n_features = problem.Y.shape
    about = {"case": case.name, "lam": case.lam, "dtype": str(problem.Y.dtype)}
    about |= {"n_rows": n_rows, "n_features": n_features}
    return pd.DataFrame([about | row for row in rows]).reindex(columns=COLUMNS)


def _rounds(ours: "_Ours", peers: Iterable[Peer], options: Rounds) -> list[dict[str, Any]]:
    problem, n_jobs = ours.problem, options.n_jobs
    order = np.random.default_rng(options.seed).permutation(len(problem.Y))
    entrants: list[_Ours | _Theirs] = [ours]
    if n_jobs > 1:
        entrants.append(_Ours(problem, ours.tol, 1))
    absent = []
    for peer in peers:
        if reason := _hindrance(peer, problem, n_jobs):
            absent.append({"solver": peer.name, "note": reason})
        else:
            entrants.append(_Theirs(peer, problem, n_jobs, order))
    memory: dict[str, float] = {}

    def measure() -> None:
        memory["memory_mib"] = alone(ours)["memory_mib"]

    times = compete(entrants, options.rounds, options.progress, before=[measure])
    rows = [
        {"solver": e.name} | own if e.note else _by_row(e, own | e.facts())
        for e, own in zip(entrants, times, strict=True)
    ]
    return [rows[0] | memory, *rows[1:], *absent]


def _by_row(entrant: "_Ours | _Theirs", found: dict[str, Any]) -> dict[str, Any]:
    """The row of an entrant: its times by the rows that it solved, and whether it met its gap."""
    n = entrant.count
    seconds = found["seconds"] if "seconds" in found else found.pop("ms") * n / 1000
    missed = found["gap"] > entrant.target
    about: dict[str, Any] = {
        "solver": entrant.name,
        "version": entrant.version,
        "n_jobs": entrant.n_jobs,
    }
    about |= {"rows_timed": n, "tol": entrant.tol, "seconds": seconds}
    note = {"note": f"gap above {entrant.target:.0e}" if missed else ""}
    return about | {"ms_per_row": 1000 * seconds / n} | found | note


def _hindrance(peer: Peer, problem: SparseProblem, n_jobs: int) -> str | None:
    if peer.version is None:
        return f"{peer.module} is not installed"
    if n_jobs > 1 and not peer.threads:
        return "works on one thread only"
    if peer.gram and (size := 8 * len(problem.D) ** 2) > _LARGEST_GRAM:
        return f"the Gram matrix would take {size / 2**30:.0f} GiB"
    return None


class _Ours(Entrant):
    """Always the whole problem, and its time is that of everything."""

    version = __version__

    def __init__(self, problem: SparseProblem, tol: float, n_jobs: int) -> None:
        self.problem, self.n_jobs = problem, n_jobs
        self.tol = self.target = tol
        self.count = len(problem.Y)
        self.name = OURS if n_jobs == 1 else f"{OURS}, n_jobs={n_jobs}"

    def prepare(self) -> None:
        self.problem.first(_WARM_UP).solve(tol=self.tol, n_jobs=self.n_jobs)

    def run(self) -> None:
        self.solution = self.problem.solve(tol=self.tol, n_jobs=self.n_jobs)

    def facts(self) -> dict[str, float]:
        """Certificate, non-zeros and products with all atoms; the latter two are means."""
        solution = self.solution
        return {
            "gap": float(self.problem.gap(solution.coef, np.arange(self.count)).max()),
            "nonzeros": solution.coef.nnz / self.count,
            "passes": float(np.asarray(solution.n_passes).mean()),
        }


class _Theirs(Entrant):
    """A peer at the loosest of its tolerances that reaches the target, on some rows."""

    def __init__(self, peer: Peer, problem: SparseProblem, n_jobs: int, order: Array) -> None:
        self.peer, self.problem, self.n_jobs, self.order = peer, problem, n_jobs, order
        self.name, self.version, self.target = peer.name, peer.version, _TARGET

    def prepare(self) -> None:
        self.solve = self.peer.prepare(self.problem, self.n_jobs)
        self.solve(self.order[:1], self.peer.tolerances[0])  # compiles
        start = time.perf_counter()
        self.solve(self.order[:1], self.peer.tolerances[0])
        most = _MOST_SECONDS / _FEWEST_ROWS
        if not self.peer.whole and time.perf_counter() - start > most:
            self.note = f"takes more than {most:.1f} s a row"
            return
        for tol in self.peer.tolerances:
            self.tol = tol
            if self._reaches_target():
                break
        self.count = len(self.rows)

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
        return float(self.problem.gap(self.solve(rows, self.tol), rows).max())

    def run(self) -> None:
        self.codes = self.solve(self.rows, self.tol)

    def facts(self) -> dict[str, float]:
        gap = float(self.problem.gap(self.codes, self.rows).max())
        return {"gap": gap, "nonzeros": np.count_nonzero(self.codes) / self.count}
