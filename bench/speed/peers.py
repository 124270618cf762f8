"""The solvers that a user would pick instead, each called as its documentation says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ...solvers.solution import Array
from .contest import installed
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
    """``solve_with(problem)(i, tol, code)`` writes the non-zeros of row i into its code."""

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


def _lasso(problem: SparseProblem, module: str, max_iter: int) -> Callable[..., None]:
    """The class ``Lasso`` that several packages have: ``|y - X c|^2 / (2 n) + alpha |c|_1``."""
    atoms = np.array(problem.D.T, order="F")
    model = partial(import_module(module).Lasso, fit_intercept=False, max_iter=max_iter)

    def solve_row(i: int, tol: Any, code: Array) -> None:
        fit = model(alpha=problem.lam[i] / (2 * len(atoms)), tol=tol).fit
        if not problem.self_expression:
            code[:] = fit(atoms, problem.Y[i]).coef_
            return
        with _last_atom_for(i, atoms) as others:
            code[:-1] = fit(others, problem.Y[i]).coef_
        code[-1], code[i] = code[i], 0

    return solve_row


def _scikit_learn_gram(problem: SparseProblem) -> Callable[..., None]:
    from sklearn.linear_model import enet_path

    atoms, gram = problem.D.T, problem.gram
    path = partial(enet_path, atoms, l1_ratio=1.0, check_input=False, max_iter=100_000)

    def solve_row(i: int, tol: Any, code: Array) -> None:
        alphas = [problem.lam[i] / (2 * len(atoms))]
        with _without(i, gram) as products:
            found = path(problem.Y[i], alphas=alphas, precompute=gram, Xy=products, tol=tol)
        code[:] = found[1][:, 0]

    return solve_row


def _spams_gram(problem: SparseProblem) -> Callable[..., None]:
    from spams import lasso

    gram = problem.gram

    def solve_row(i: int, tol: Any, code: Array) -> None:
        settings = {"lambda1": problem.lam[i] / 2, "mode": 2, "numThreads": 1}
        with _without(i, gram) as products:
            found = lasso(problem.Y[i][:, None], Q=gram.T, q=products[:, None], **settings)
        code[found.indices] = found.data

    return solve_row


def _spams_active_support(problem: SparseProblem) -> Callable[..., None]:
    """You et al., "Oracle based active set algorithm" (CVPR 2016), with LARS inside."""
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
