"""The solvers that a user would pick instead, each called as its documentation says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ...solvers.solution import Array
from .contest import by_name, installed
from .problems import SparseProblem

# Codes of some rows; tolerances are on the solver's own scale, and None is its own choice.
Solve = Callable[[Array, float | None], Array]

_LADDER = tuple(round(digit * 10.0**-k, 12) for k in range(3, 14) for digit in (1, 0.5, 0.2))
# scikit-learn stops by a duality gap, on half our scale: looser tolerances only cost tries.
_LADDER_OF_GAPS = tuple(tol for tol in _LADDER if tol <= 1e-5)
_MOST_ADDED = 100


@dataclass(frozen=True)
class Peer:
    """A solver of another package.

    Attributes
    ----------
    name : str
    module : str
        What must be installed.
    prepare : callable
        ``prepare(problem, n_jobs)``: what is not timed; returns the `Solve` that is.
    tolerances : tuple
        From loose to tight.
    threads : bool
        Whether the package offers to use several threads or processes.
    whole : bool
        One call takes all rows and makes their common Gram matrix, which is part of its time.
    gram : bool
        Whether it needs the Gram matrix of the dictionary, which is not part of its time.
    """

    name: str
    module: str
    prepare: Callable[[SparseProblem, int], Solve]
    tolerances: tuple[float | None, ...] = (None,)
    threads: bool = False
    whole: bool = False
    gram: bool = False

    @property
    def version(self) -> str | None:
        return installed(self.module)


@contextmanager
def _last_atom_for(i: int, atoms: Array) -> Iterator[Array]:
    """The columns of `atoms` but the i-th, whose place the last one takes: no copy of the rest."""
    own = atoms[:, i].copy()
    atoms[:, i] = atoms[:, -1]
    try:
        yield atoms[:, :-1]
    finally:
        atoms[:, i] = own


@contextmanager
def _without(i: int, gram: Array) -> Iterator[Array]:
    """Row i of the Gram matrix, which meanwhile has zeros in row and column i."""
    own = gram[i].copy()
    gram[i] = gram[:, i] = 0
    try:
        yield np.where(np.arange(len(own)) == i, 0, own)
    finally:
        gram[i] = gram[:, i] = own


def _row_by_row(fit: Callable[..., Array]) -> Callable[[SparseProblem, int], Solve]:
    """``fit(X, y, alpha, tol)`` solves ``|y - X c|^2 / (2 n_features) + alpha |c|_1``."""

    def prepare(problem: SparseProblem, n_jobs: int) -> Solve:
        n_features = problem.D.shape[1]
        atoms = np.array(problem.D.T, order="F")

        def solve(rows: Array, tol: float | None) -> Array:
            codes = np.zeros((len(rows), len(problem.D)))
            for code, i in zip(codes, rows, strict=True):
                y, alpha = problem.Y[i], problem.lam[i] / (2 * n_features)
                if problem.self_expression:
                    with _last_atom_for(i, atoms) as others:
                        code[:-1] = fit(others, y, alpha, tol)
                    code[-1], code[i] = code[i], 0
                else:
                    code[:] = fit(atoms, y, alpha, tol)
            return codes

        return solve

    return prepare


def _lasso(module: str, max_iter: int) -> Callable[[SparseProblem, int], Solve]:
    """The class ``Lasso`` that several packages have."""

    def fit(X: Array, y: Array, alpha: float, tol: float) -> Array:
        model = import_module(module).Lasso(
            alpha=alpha, tol=tol, fit_intercept=False, max_iter=max_iter
        )
        coef: Array = model.fit(X, y).coef_
        return coef

    return _row_by_row(fit)


def _scikit_learn_gram(problem: SparseProblem, n_jobs: int) -> Solve:
    from sklearn.linear_model import enet_path

    atoms, gram, n_features = problem.D.T, problem.gram, problem.D.shape[1]

    def solve(rows: Array, tol: float | None) -> Array:
        codes = np.empty((len(rows), len(problem.D)))
        for code, i in zip(codes, rows, strict=True):
            with _without(i, gram) as products:
                code[:] = enet_path(
                    atoms,
                    problem.Y[i],
                    l1_ratio=1.0,
                    alphas=[problem.lam[i] / (2 * n_features)],
                    precompute=gram,
                    Xy=products,
                    check_input=False,
                    tol=tol,
                    max_iter=100_000,
                )[1][:, 0]
        return codes

    return solve


def _spams_gram(problem: SparseProblem, n_jobs: int) -> Solve:
    from spams import lasso

    gram = problem.gram

    def solve(rows: Array, tol: float | None) -> Array:
        codes = np.zeros((len(rows), len(problem.D)))
        for code, i in zip(codes, rows, strict=True):
            with _without(i, gram) as products:
                found = lasso(
                    problem.Y[i][:, None],
                    Q=gram.T,
                    q=products[:, None],
                    lambda1=problem.lam[i] / 2,
                    mode=2,
                    numThreads=1,
                )
            code[found.indices] = found.data
        return codes

    return solve


def _spams_active_support(problem: SparseProblem, n_jobs: int) -> Solve:
    """You et al., "Oracle based active set algorithm" (CVPR 2016), with LARS inside."""

    def solve(rows: Array, tol: Any) -> Array:
        codes = np.zeros((len(rows), len(problem.D)))
        for code, i in zip(codes, rows, strict=True):
            _grow_support(problem, i, tol, code)
        return codes

    return solve


def _grow_support(problem: SparseProblem, i: int, tol: float, code: Array) -> None:
    from spams import lasso

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


def _spams(problem: SparseProblem, n_jobs: int) -> Solve:
    from spams import lasso

    def solve(rows: Array, tol: float | None) -> Array:
        signals, half = problem.Y[rows].T, problem.lam[0] / 2
        return lasso(signals, D=problem.D.T, lambda1=half, mode=2, numThreads=n_jobs).T.toarray()

    return solve


def _sparse_encode(problem: SparseProblem, n_jobs: int, algorithm: str) -> Solve:
    from sklearn.decomposition import sparse_encode

    gram = problem.gram

    def solve(rows: Array, tol: float | None) -> Array:
        return sparse_encode(
            problem.Y[rows],
            problem.D,
            gram=gram,
            algorithm=algorithm,
            alpha=problem.lam[0] / 2,
            max_iter=10_000,
            n_jobs=n_jobs,
        )

    return solve


_EVERYWHERE = tuple(Peer(name, name, _lasso(name, 1000), _LADDER) for name in ("celer", "skglm"))
SELF_EXPRESSION_PEERS = by_name(
    (
        Peer("scikit-learn", "sklearn", _lasso("sklearn.linear_model", 100_000), _LADDER_OF_GAPS),
        Peer("scikit-learn-gram", "sklearn", _scikit_learn_gram, _LADDER_OF_GAPS, gram=True),
        *_EVERYWHERE,
        Peer("spams-active-support", "spams", _spams_active_support, _LADDER),
        Peer("spams-gram", "spams", _spams_gram, gram=True),
    )
)
SPARSE_CODING_PEERS = by_name(
    (
        *(
            Peer(
                f"scikit-learn-{name}",
                "sklearn",
                partial(_sparse_encode, algorithm=f"lasso_{name}"),
                threads=True,
                gram=True,
            )
            for name in ("cd", "lars")
        ),
        *_EVERYWHERE,
        Peer("spams", "spams", _spams, threads=True, whole=True),
    )
)
