"""The Lasso problems that are timed, and an independent certificate of their codes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.preprocessing import normalize

from ...datasets import (
    fetch_coil20,
    fetch_extended_yale_b,
    make_union_of_subspaces,
    project_trajectories,
)
from ...solvers import Solution, sparse_code, sparse_self_expression
from ...solvers.solution import Array
from ...solvers.sparse_coding import lam_max
from ..clustering.features import features_of
from ..clustering.problems import make_problem

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
        """The problem of the first n signals, among themselves in self-expression."""
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
        exceeds lam. Infinite where a signal takes part in its own code.
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


@dataclass(frozen=True)
class Case:
    """A problem; ``lam`` says how its penalty was chosen.

    Where it is `alone`, ours is solved once, without rounds and without peers.
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
    """A random part of MNIST, by the scattering features of `twinsolve cluster --preset mnist`."""
    digits = make_problem(f"mnist:subset=all,n_points={n_points}", seed=seed)
    return _self_expression(features_of("relative-scattering-500", digits), 200)


def _random_dictionary(seed: int, share: int) -> SparseProblem:
    """1,000 signals of 12 atoms each and 5 % noise, in 1,024 atoms of 256 features."""
    rng = np.random.default_rng(seed)
    D = normalize(rng.standard_normal((1024, 256)))
    C = np.zeros((1000, 1024))
    for code in C:
        code[rng.choice(1024, 12, replace=False)] = rng.standard_normal(12)
    Y = normalize(C @ D)
    Y = normalize(Y + 0.05 / np.sqrt(256) * rng.standard_normal(Y.shape))
    return SparseProblem(Y, D, np.full(len(Y), lam_max(Y, D).mean() / share))


def _synthetic(n_samples: int, n_features: int = 200, **settings: Any) -> Case:
    make = partial(_subspaces, n_samples=n_samples, n_features=n_features)
    return Case("lam_max / 50", make, **settings)


SELF_EXPRESSION = {
    **{f"synthetic-{n}": _synthetic(n) for n in (500, 1000, 2000, 5000, 10_000, 20_000)},
    "synthetic-40000": _synthetic(40_000, alone=True),
    "yale-b": Case("lam_max / 50", _yale_b),
    "coil-20": Case("lam_max / 50", partial(_coil20, share=50)),
    "coil-20-dense": Case("lam_max / 800", partial(_coil20, share=800)),
    "mnist-5000": Case("lam_max / 200", partial(_mnist, n_points=5000)),
    "large": _synthetic(70_000, 500, tol=1e-4, alone=True),
}
SPARSE_CODING = {
    f"dictionary-{n}": Case(f"mean lam_max / {n}", partial(_random_dictionary, share=n))
    for n in (10, 50)
}
