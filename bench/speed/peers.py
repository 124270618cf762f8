"""Solvers of other packages, each called as its documentation says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
from scipy.sparse import issparse

from ...solvers import sparse_code, sparse_self_expression
from ...solvers.inputs import Array
from ...solvers.solution import Solution
from ..timing import threads
from .contest import OURS, Entrant, Rounds, compete, installed

_BLOCK_ROWS = 256


@dataclass(frozen=True, eq=False)
class SparseProblem:
    """``min |y_i - c_i D|^2 + lam_i |c_i|_1`` for every row, ``c_ii = 0`` in self-expression."""

    Y: Array
    D: Array
    lam: Array

    @property
    def self_expression(self) -> bool:
        return self.Y is self.D

    @cached_property
    def gram(self) -> Array:
        return self.D @ self.D.T

    def first(self, n: int) -> "SparseProblem":
        """The problem of the first n signals; in self-expression, they are also its atoms."""
        Y = self.Y[:n]
        return SparseProblem(Y, Y if self.self_expression else self.D, self.lam[:n])

    def solve(self, *, tol: float, n_jobs: int) -> Solution:
        if self.self_expression:
            return sparse_self_expression(self.Y, lam=self.lam, tol=tol, n_jobs=n_jobs)
        return sparse_code(self.Y, self.D, lam=self.lam, tol=tol, n_jobs=n_jobs)

    def gap(self, codes: Any, rows: Array) -> Array:
        """Certified gap of the codes of some rows, from the definition.

        ``(P(c) - D(2 a r)) / |y|^2`` with ``P(c) = |r|^2 + lam |c|_1``, ``r = y - c D`` and
        ``D(nu) = nu . y - |nu|^2 / 4``, at the best multiple a for which no ``|d_j . 2 a r|``
        exceeds lam. The gap is infinite if a signal is part of its own code.
        """
        blocks = np.array_split(np.arange(len(rows)), -(-len(rows) // _BLOCK_ROWS))
        return np.concatenate([self._gap(codes[block], rows[block]) for block in blocks])

    def _gap(self, codes: Any, rows: Array) -> Array:
        C = codes.toarray() if issparse(codes) else codes
        y, lam, count = self.Y[rows], self.lam[rows], np.arange(len(rows))
        r = y - C @ self.D
        correlation = np.abs(r @ self.D.T)
        if self.self_expression:
            correlation[count, rows] = 0
        yy, ry, rr = (np.einsum("ij,ij->i", a, b) for a, b in ((y, y), (r, y), (r, r)))
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.fmax(np.fmin(lam / (2 * correlation.max(axis=1)), ry / rr), 0)
            primal, dual = rr + lam * np.abs(C).sum(axis=1), 2 * a * ry - a**2 * rr
            gap = np.where(primal > dual, (primal - dual) / yy, 0)
        if self.self_expression:
            gap[C[count, rows] != 0] = np.inf
        return gap


@dataclass(frozen=True, eq=False)
class Method:
    """A method of a `package`: ``run(*input)`` returns the result, on `n_jobs` threads."""

    name: str
    package: str
    run: Callable[..., Any]
    n_jobs: int = 1


def on_threads(run: Callable[..., Any], n_jobs: int) -> list[Method]:
    """Our method `run` on `n_jobs` threads, and also on one thread if these are more."""
    methods = [Method(OURS, OURS, partial(run, n_jobs=n_jobs), n_jobs)]
    if n_jobs > 1:
        methods.append(Method(f"{OURS}, one thread", OURS, partial(run, n_jobs=1)))
    return methods


@dataclass(frozen=True, eq=False)
class Contest:
    """Inputs, each the arguments of a call, and methods, of which ours is the first.

    ``measure(results, first)`` returns the quality of the results of all inputs and their
    difference from the first method's results, by column.
    """

    inputs: Sequence[tuple[Any, ...]]
    methods: list[Method]
    measure: Callable[[list[Any], list[Any]], dict[str, float]]


@dataclass(frozen=True)
class ContestCase:
    """A contest on numbers of a dtype; ``make(seed, n_jobs)`` prepares it.

    A case with many inputs may run `once`. With `memory`, our method runs again in a separate
    process.
    """

    about: str
    make: Callable[[int, int], Contest]
    dtype: str
    once: bool = False
    memory: bool = True


class Calls(Entrant):
    """A method that runs on all inputs; `version` is that of its package if installed."""

    def __init__(
        self, method: Method, inputs: Sequence[tuple[Any, ...]], version: str | None, note: str = ""
    ) -> None:
        self.method, self.inputs, self.n_jobs, self.note = method, inputs, method.n_jobs, note
        self.labels = {"method": method.name, "package": method.package}
        self.labels |= {"version": version, "n_jobs": method.n_jobs}
        self.results: list[Any] = []

    def prepare(self) -> None:
        self.method.run(*self.inputs[0])

    def run(self) -> None:
        self.results = [self.method.run(*arguments) for arguments in self.inputs]


def hold(case: ContestCase, peers: dict[str, str], options: Rounds) -> list[dict[str, Any]]:
    """A row for each method, in the order of the contest; `peers` maps packages to modules."""
    versions = {OURS: installed(OURS)}
    absent = {}
    for package, module in peers.items():
        versions[package] = installed(module)
        if versions[package]:
            import_module(module)  # threads can only be limited in loaded modules
        else:
            absent[package] = f"{module} is not installed"
    with threads(options.n_jobs):
        contest = case.make(options.seed, options.n_jobs)
    entrants = [
        Calls(method, contest.inputs, versions[method.package], absent.get(method.package, ""))
        for method in contest.methods
        if method.package in versions
    ]
    rounds = 1 if case.once else options.rounds
    rows = compete(entrants, rounds, options.progress, memory=case.memory)
    about = {"about": case.about, "dtype": case.dtype, "inputs": len(contest.inputs)}
    first = entrants[0]
    worth = ({} if e.note else contest.measure(e.results, first.results) for e in entrants)
    return [about | row | own for row, own in zip(rows, worth, strict=True)]


# Takes rows and a tolerance on the scale of the solver (None: its default); returns codes.
Solve = Callable[[Array, float | None], Array]

_LADDER = tuple(round(digit * 10.0**-k, 12) for k in range(3, 14) for digit in (1, 0.5, 0.2))
# scikit-learn stops by a duality gap on half our scale: looser ones miss our gap.
_LADDER_OF_GAPS = tuple(tol for tol in _LADDER if tol <= 1e-5)
_MOST_ADDED = 100


@dataclass(frozen=True)
class Peer:
    """A solver of another package.

    Attributes
    ----------
    module : str
        Module that must be installed.
    prepare : callable
        ``prepare(problem, n_jobs)`` is not timed; it returns the `Solve` that is timed.
    tolerances : tuple
        Tolerances from loose to tight.
    threads : bool
        Whether the solver can use several threads or processes.
    whole : bool
        Whether a call takes all rows and computes their Gram matrix, which is part of its time.
    gram : bool
        Whether the solver needs the Gram matrix of the dictionary, which is not part of its time.
    """

    module: str
    prepare: Callable[[SparseProblem, int], Solve]
    tolerances: tuple[float | None, ...] = (None,)
    threads: bool = False
    whole: bool = False
    gram: bool = False

    @property
    def version(self) -> str | None:
        return installed(self.module)


def _row_by_row(
    solve_with: Callable[[SparseProblem], Callable[[int, Any, Array], None]],
) -> Callable[[SparseProblem, int], Solve]:
    """Solve row by row: ``solve_with(problem)(i, tol, code)`` writes the non-zeros of row i."""

    def prepare(problem: SparseProblem, n_jobs: int) -> Solve:
        solve_row = solve_with(problem)

        def solve(rows: Array, tol: float | None) -> Array:
            codes = np.zeros((len(rows), len(problem.D)))
            for i, code in zip(rows, codes, strict=True):
                solve_row(i, tol, code)
            return codes

        return solve

    return prepare


@contextmanager
def _swap_in_last_atom(i: int, atoms: Array) -> Iterator[Array]:
    """Columns of `atoms` without the i-th; the last one takes its place, so that none is copied."""
    own = atoms[:, i].copy()
    atoms[:, i] = atoms[:, -1]
    try:
        yield atoms[:, :-1]
    finally:
        atoms[:, i] = own


@contextmanager
def _zero_row(i: int, gram: Array) -> Iterator[Array]:
    """Row i of the Gram matrix; within the context, row and column i of the matrix are zero."""
    own = gram[i].copy()
    gram[i] = gram[:, i] = 0
    try:
        yield np.where(np.arange(len(own)) == i, 0, own)
    finally:
        gram[i] = gram[:, i] = own


def _lasso(problem: SparseProblem, module: str, max_iter: int) -> Callable[..., None]:
    """Class ``Lasso`` of a package: ``|y - X c|^2 / (2 n) + alpha |c|_1``."""
    atoms = np.array(problem.D.T, order="F")
    model = partial(import_module(module).Lasso, fit_intercept=False, max_iter=max_iter)

    def solve_row(i: int, tol: Any, code: Array) -> None:
        fit = model(alpha=problem.lam[i] / (2 * len(atoms)), tol=tol).fit
        if not problem.self_expression:
            code[:] = fit(atoms, problem.Y[i]).coef_
            return
        with _swap_in_last_atom(i, atoms) as others:
            code[:-1] = fit(others, problem.Y[i]).coef_
        code[-1], code[i] = code[i], 0

    return solve_row


def _scikit_learn_gram(problem: SparseProblem) -> Callable[..., None]:
    from sklearn.linear_model import enet_path

    atoms, gram = problem.D.T, problem.gram
    path = partial(enet_path, atoms, l1_ratio=1.0, check_input=False, max_iter=100_000)

    def solve_row(i: int, tol: Any, code: Array) -> None:
        alphas = [problem.lam[i] / (2 * len(atoms))]
        with _zero_row(i, gram) as products:
            found = path(problem.Y[i], alphas=alphas, precompute=gram, Xy=products, tol=tol)
        code[:] = found[1][:, 0]

    return solve_row


def _spams_gram(problem: SparseProblem) -> Callable[..., None]:
    from spams import lasso

    gram = problem.gram

    def solve_row(i: int, tol: Any, code: Array) -> None:
        settings = {"lambda1": problem.lam[i] / 2, "mode": 2, "numThreads": 1}
        with _zero_row(i, gram) as products:
            found = lasso(problem.Y[i][:, None], Q=gram.T, q=products[:, None], **settings)
        code[found.indices] = found.data

    return solve_row


def _spams_active_support(problem: SparseProblem) -> Callable[..., None]:
    """Algorithm of You et al., "Oracle based active set algorithm" (CVPR 2016), by LARS."""
    from spams import lasso

    def solve_row(i: int, tol: Any, code: Array) -> None:
        D, y, half = problem.D, problem.Y[i], problem.lam[i] / 2
        support, residual = np.empty(0, np.intp), y
        while True:
            correlation = np.abs(D @ residual)
            correlation[i] = correlation[support] = 0
            new = np.flatnonzero(correlation > half * (1 + tol))
            if len(new) == 0:
                return
            if len(new) > _MOST_ADDED:
                new = new[np.argpartition(-correlation[new], _MOST_ADDED)[:_MOST_ADDED]]
            working = np.concatenate([support, new])
            atoms = D[working]
            found = lasso(y[:, None], D=atoms.T, lambda1=half, mode=2, numThreads=1)
            code[support] = 0
            support = working[found.indices]
            code[support] = found.data
            residual = y - found.data @ atoms[found.indices]

    return solve_row


def _spams(problem: SparseProblem, n_jobs: int) -> Solve:
    from spams import lasso

    settings = {"lambda1": problem.lam[0] / 2, "mode": 2, "numThreads": n_jobs}
    return lambda rows, tol: lasso(problem.Y[rows].T, D=problem.D.T, **settings).T.toarray()


def _sparse_encode(problem: SparseProblem, n_jobs: int, algorithm: str) -> Solve:
    from sklearn.decomposition import sparse_encode

    encode = partial(
        sparse_encode,
        dictionary=problem.D,
        gram=problem.gram,
        algorithm=algorithm,
        alpha=problem.lam[0] / 2,
        max_iter=10_000,
        n_jobs=n_jobs,
    )
    return lambda rows, tol: encode(problem.Y[rows])


def _lasso_peer(module: str, tolerances: tuple[float, ...], max_iter: int) -> Peer:
    lasso = partial(_lasso, module=module, max_iter=max_iter)
    return Peer(module.partition(".")[0], _row_by_row(lasso), tolerances)


_EVERYWHERE = {name: _lasso_peer(name, _LADDER, 1000) for name in ("celer", "skglm")}
_GRAM = _row_by_row(_scikit_learn_gram)
_CD, _LARS = (partial(_sparse_encode, algorithm=f"lasso_{name}") for name in ("cd", "lars"))
SELF_EXPRESSION_PEERS = {
    "scikit-learn": _lasso_peer("sklearn.linear_model", _LADDER_OF_GAPS, 100_000),
    "scikit-learn-gram": Peer("sklearn", _GRAM, _LADDER_OF_GAPS, gram=True),
    **_EVERYWHERE,
    "spams-active-support": Peer("spams", _row_by_row(_spams_active_support), _LADDER),
    "spams-gram": Peer("spams", _row_by_row(_spams_gram), gram=True),
}
SPARSE_CODING_PEERS = {
    "scikit-learn-cd": Peer("sklearn", _CD, threads=True, gram=True),
    "scikit-learn-lars": Peer("sklearn", _LARS, threads=True, gram=True),
    **_EVERYWHERE,
    "spams": Peer("spams", _spams, threads=True, whole=True),
}
