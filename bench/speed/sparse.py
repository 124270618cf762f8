"""Timings of `twinsolve speed self-expression` and `twinsolve speed sparse-coding`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.preprocessing import normalize

from ... import __version__
from ...datasets import (
    fetch_coil20,
    fetch_extended_yale_b,
    make_union_of_subspaces,
    project_trajectories,
)
from ...solvers.inputs import Array
from ...solvers.sparse_coding import lam_max
from ...validation import check_folder
from ..clustering.data import find_data
from ..clustering.features import features_of
from ..timing import Progress, seconds_of
from .contest import OURS, Entrant, Rounds, alone, chosen, compete, run_cases
from .peers import SELF_EXPRESSION_PEERS, SPARSE_CODING_PEERS, Peer, SparseProblem


@dataclass(frozen=True)
class SparseCase:
    """A problem by its maker; ``lam`` says in words how the penalty is chosen.

    If it is `alone`, our solver runs once, without rounds and without peers.
    """

    lam: str
    make: Callable[[int], SparseProblem]
    tol: float = 1e-6
    alone: bool = False


def _self_expression(X: Array, share: int) -> SparseProblem:
    X = normalize(X)
    return SparseProblem(X, X, lam_max(X, X, zero_diagonal=True) / share)


def _subspaces(seed: int, n_samples: int, n_features: int) -> SparseProblem:
    X, _ = make_union_of_subspaces(
        n_samples // 10,
        n_subspaces=10,
        n_features=n_features,
        dimension=3,
        noise=0.26,
        random_state=seed,
    )
    return _self_expression(X, 50)


def _yale_b(seed: int) -> SparseProblem:
    return _self_expression(project_trajectories(fetch_extended_yale_b().data, 500), 50)


def _coil20(seed: int, share: int) -> SparseProblem:
    return _self_expression(project_trajectories(fetch_coil20().data, 300), share)


def _mnist(seed: int, n_points: int) -> SparseProblem:
    """A random part of MNIST, with the features of `twinsolve cluster --preset mnist`."""
    digits = find_data(f"mnist:subset=all,n_points={n_points}").problem(seed=seed)
    return _self_expression(features_of("relative-scattering-500", digits), 200)


def _random_dictionary(
    seed: int, share: int, n_signals: int, n_atoms: int, n_features: int, n_used: int
) -> SparseProblem:
    """Signals of some atoms each, and 5 % noise."""
    rng = np.random.default_rng(seed)
    D = normalize(rng.standard_normal((n_atoms, n_features)))
    C = np.zeros((n_signals, n_atoms))
    for code in C:
        code[rng.choice(n_atoms, n_used, replace=False)] = rng.standard_normal(n_used)
    Y = normalize(C @ D)
    Y = normalize(Y + 0.05 / np.sqrt(n_features) * rng.standard_normal(Y.shape))
    return SparseProblem(Y, D, np.full(len(Y), lam_max(Y, D).mean() / share))


def _synthetic(n_samples: int, n_features: int = 200, **settings: Any) -> SparseCase:
    make = partial(_subspaces, n_samples=n_samples, n_features=n_features)
    return SparseCase("lam_max / 50", make, **settings)


SELF_EXPRESSION = {
    **{f"synthetic-{n}": _synthetic(n) for n in (500, 1000, 2000, 5000, 10_000, 20_000)},
    "synthetic-40000": _synthetic(40_000, alone=True),
    "yale-b": SparseCase("lam_max / 50", _yale_b),
    "coil-20": SparseCase("lam_max / 50", partial(_coil20, share=50)),
    "coil-20-dense": SparseCase("lam_max / 800", partial(_coil20, share=800)),
    "mnist-5000": SparseCase("lam_max / 200", partial(_mnist, n_points=5000)),
    "large": _synthetic(70_000, 500, tol=1e-4, alone=True),
}
_DICTIONARY = {"n_signals": 1000, "n_atoms": 1024, "n_features": 256, "n_used": 12}
_PATCHES = {"n_signals": 5000, "n_atoms": 256, "n_features": 64, "n_used": 4}
SPARSE_CODING = {
    f"{name}-{n}": SparseCase(f"mean lam_max / {n}", partial(_random_dictionary, share=n, **sizes))
    for name, n, sizes in (
        ("dictionary", 10, _DICTIONARY), ("dictionary", 50, _DICTIONARY), ("patches", 5, _PATCHES),
    )
}  # fmt: skip


_TARGET = 1e-6
_FEWEST_ROWS = 16
_SECONDS = 2.0  # for the rows of a peer in a round, unless the fewest rows take longer
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
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse self-expression beside its peers, at equal certified gap.

    Every row i of a data set is expressed by the others: ``min |x_i - c X|^2 + lam_i |c|_1`` with
    ``c_i = 0``. Our solver solves all rows; its time includes the Gram matrix and the certificate.
    A peer solves a random sample of the rows, the same in all rounds, with the loosest tolerance
    whose worst certified gap on the sample is at most 1e-6. In each round all solvers run once, one
    after another. Gaps are certified from the codes alone, at the best multiple of the residual;
    celer extrapolates a better dual point and would stop somewhat earlier by its own certificate.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``synthetic-500`` to ``synthetic-20000``, ``yale-b``, ``coil-20``,
        ``coil-20-dense`` and ``mnist-5000``; and, without peers, ``synthetic-40000`` and ``large``
        (70,000 rows, gap 1e-4). None is all but the last two.
    peers : iterable of str, optional
        Among ``scikit-learn``, ``scikit-learn-gram``, ``celer``, ``skglm``,
        ``spams-active-support`` and ``spams-gram``. None is all peers.
    rounds : int, default=3
    n_jobs : int, default=1
        Threads of our solver and of the peers that can use several. If it is not 1, other peers are
        left out, and our solver also runs on one thread.
    seed : int, default=0
        Seed of the generated data and the samples.
    directory : str or Path, optional
        Folder that keeps finished cases. A case is read instead of run if processor, settings,
        versions of the peers and source are the same.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and solver. Times are ``ms_per_row``, and ``ratio`` to our time in the
        same round: medians over the rounds, with the lowest and highest. ``gap`` is the worst
        certified gap; ``nonzeros`` and ``passes`` (products with all atoms) are means over rows;
        ``memory_mib`` is the peak resident memory of our solver beyond the input. ``note`` says why
        a solver or a case was left out.

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
    options = Rounds(rounds, n_jobs, seed, check_folder(directory, "directory"), progress)
    listed = chosen(cases, SELF_EXPRESSION, "cases"), chosen(peers, SELF_EXPRESSION_PEERS, "peers")
    return _time("self-expression", *listed, options)


def time_sparse_coding(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse coding in a random dictionary beside its peers, at equal certified gap.

    Signals of unit norm are sums of atoms and 5 % noise: 1,000 signals of 12 out of 1,024 atoms in
    256 dimensions, or as many as patches have, 5,000 signals of 4 out of 256 atoms in 64. All share
    one penalty. Rounds, samples and tolerances are as in `time_self_expression`.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``dictionary-10``, ``dictionary-50`` and ``patches-5``, whose penalty is the mean of
        `lam_max` over the signals, divided by that number. None is all.
    peers : iterable of str, optional
        Among ``scikit-learn-cd``, ``scikit-learn-lars``, ``celer``, ``skglm`` and ``spams``. None
        is all peers.
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
    options = Rounds(rounds, n_jobs, seed, check_folder(directory, "directory"), progress)
    listed = chosen(cases, SPARSE_CODING, "cases"), chosen(peers, SPARSE_CODING_PEERS, "peers")
    return _time("sparse-coding", *listed, options)


def _time(
    command: str, cases: dict[str, SparseCase], peers: dict[str, Peer], options: Rounds
) -> pd.DataFrame:
    run = partial(race, peers=peers, options=options)
    versions = {name: peer.version for name, peer in peers.items()}
    return run_cases(command, cases, run, options, peers=versions, columns=COLUMNS)


def race(case: SparseCase, peers: dict[str, Peer], options: Rounds) -> list[dict[str, Any]]:
    """A row for each solver; ours comes first, and ratios are to our time per row."""
    problem, n_jobs = case.make(options.seed), options.n_jobs
    ours = _OurSolver(problem, case.tol, n_jobs)
    if case.alone:
        rows = [alone(ours)]
    else:
        order = np.random.default_rng(options.seed).permutation(len(problem.Y))
        entrants: list[Entrant] = [
            ours,
            *([_OurSolver(problem, case.tol, 1)] if n_jobs > 1 else []),
        ]
        entrants += [_PeerSolver(*named, problem, n_jobs, order) for named in peers.items()]
        rows = compete(entrants, options.rounds, options.progress, memory=True)
    n_rows, n_features = problem.Y.shape
    about = {"lam": case.lam, "dtype": str(problem.Y.dtype)}
    about |= {"n_rows": n_rows, "n_features": n_features}
    return [about | _per_row(row) for row in rows]


def _per_row(row: dict[str, Any]) -> dict[str, Any]:
    if "ms" not in row:
        return row
    ms = row.pop("ms")
    return row | {"ms_per_row": ms, "seconds": ms * row["rows_timed"] / 1000}


class _Solver(Entrant):
    """A solver of some rows, which may miss the target gap."""

    def __init__(self, name: str, version: str | None, problem: SparseProblem, n_jobs: int) -> None:
        self.labels = {"solver": name}
        self.version, self.problem, self.n_jobs = version, problem, n_jobs

    def judged(self, codes: Any, rows: Array, tol: float | None, target: float) -> dict[str, Any]:
        gap = float(self.problem.gap(codes, rows).max())
        return {
            "version": self.version,
            "n_jobs": self.n_jobs,
            "rows_timed": self.count,
            "tol": tol,
            "gap": gap,
            "nonzeros": (codes != 0).sum() / self.count,
            "note": f"gap above {target:.0e}" if gap > target else "",
        }


class _OurSolver(_Solver):
    """Our solver on the whole problem; its time includes everything."""

    def __init__(self, problem: SparseProblem, tol: float, n_jobs: int) -> None:
        name = OURS if n_jobs == 1 else f"{OURS}, n_jobs={n_jobs}"
        super().__init__(name, __version__, problem, n_jobs)
        self.tol, self.count = tol, len(problem.Y)

    def prepare(self) -> None:
        self.problem.first(_WARM_UP).solve(tol=self.tol, n_jobs=self.n_jobs)

    def run(self) -> None:
        self.solution = self.problem.solve(tol=self.tol, n_jobs=self.n_jobs)

    def facts(self) -> dict[str, Any]:
        passes = float(np.asarray(self.solution.n_passes).mean())
        rows = np.arange(self.count)
        return self.judged(self.solution.coef, rows, self.tol, self.tol) | {"passes": passes}


class _PeerSolver(_Solver):
    """A peer on some rows, at its loosest tolerance that reaches the target gap."""

    def __init__(
        self, name: str, peer: Peer, problem: SparseProblem, n_jobs: int, order: Array
    ) -> None:
        super().__init__(name, peer.version, problem, n_jobs)
        self.peer, self.order, self.note = peer, order, _find_hindrance(peer, problem, n_jobs)

    def prepare(self) -> None:
        self.solve = self.peer.prepare(self.problem, self.n_jobs)
        first = partial(self.solve, self.order[:1], self.peer.tolerances[0])
        first()  # compiles
        most = _MOST_SECONDS / _FEWEST_ROWS
        if not self.peer.whole and seconds_of(first) > most:
            self.note = f"takes more than {most:.1f} s a row"
            return
        for tol in self.peer.tolerances:
            self.tol = tol
            if self._reaches_target():
                break
        self.count = len(self.rows)

    def _reaches_target(self) -> bool:
        """Whether the gap is reached on the rows to time; the first ones are tested one by one."""
        self.rows = self.order
        if not self.peer.whole:
            self.rows = self.order[:_FEWEST_ROWS]
            seconds = 0.0
            for i in range(len(self.rows)):
                row = self.rows[i : i + 1]
                seconds += seconds_of(partial(self._solve, row))
                if self.problem.gap(self.codes, row).max() > _TARGET:
                    return False
            affordable = int(_SECONDS / seconds * len(self.rows))
            if affordable <= len(self.rows):
                return True
            self.rows = self.order[:affordable]
        self.run()
        return self.problem.gap(self.codes, self.rows).max() <= _TARGET

    def _solve(self, rows: Array) -> None:
        self.codes = self.solve(rows, self.tol)

    def run(self) -> None:
        self._solve(self.rows)

    def facts(self) -> dict[str, Any]:
        return self.judged(self.codes, self.rows, self.tol, _TARGET)


def _find_hindrance(peer: Peer, problem: SparseProblem, n_jobs: int) -> str:
    if peer.version is None:
        return f"{peer.module} is not installed"
    if n_jobs > 1 and not peer.threads:
        return "works on one thread only"
    if peer.gram and (size := 8 * len(problem.D) ** 2) > _LARGEST_GRAM:
        return f"the Gram matrix would take {size / 2**30:.0f} GiB"
    return ""
