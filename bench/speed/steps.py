"""Timings of `twinsolve speed steps`: steps of clustering and of dictionary learning."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans
from sklearn.decomposition import sparse_encode
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize

from ...datasets import make_union_of_subspaces
from ...solvers import omp_self_expression, robust_low_rank_self_expression
from ...solvers.clustering import spectral_labels, symmetric_affinity
from ...solvers.inputs import Array
from ...solvers.sparse_coding.lasso import Lasso
from ...solvers.sparse_coding.matching_pursuit import pursue_rows
from ...validation import check_folder
from ..timing import Progress
from .contest import OURS, Rounds, chosen, installed, run_cases
from .peers import Contest, ContestCase, Method, hold, on_threads

MODULES = {"numpy": "numpy", "scikit-learn": "sklearn", "spams": "spams"}
COLUMNS = [
    "case", "about", "dtype", "method", "package", "version", "n_jobs", "ms", "ms_lowest",
    "ms_highest", "ratio", "ratio_lowest", "ratio_highest", "difference", "memory_mib", "note",
]  # fmt: skip
_BLOCK_ROWS = 256
_LAM = 0.15  # of the low-rank representation


def make_pursuit(
    seed: int, n_jobs: int, *, n_signals: int, n_atoms: int, n_features: int, n_nonzero: int
) -> Contest:
    """Orthogonal matching pursuit of noisy signals in a random dictionary.

    SPAMS takes the atom that leaves the smallest residual, which is not always the one of the
    largest correlation.
    """
    rng = np.random.default_rng(seed)
    D = normalize(rng.standard_normal((n_atoms, n_features)))
    C = np.zeros((n_signals, n_atoms))
    for code in C:
        code[rng.choice(n_atoms, n_nonzero, replace=False)] = rng.standard_normal(n_nonzero)
    Y = normalize(C @ D)
    Y = Y + 0.05 / np.sqrt(n_features) * rng.standard_normal(Y.shape)
    by_spams = partial(_pursue_by_spams, n_nonzero=n_nonzero, n_jobs=n_jobs)
    by_gram = partial(sparse_encode, algorithm="omp", n_nonzero_coefs=n_nonzero)
    methods = [
        *on_threads(partial(pursue_rows, n_nonzero=n_nonzero, tol=0.0), n_jobs),
        Method("SPAMS, order-recursive", "spams", by_spams, n_jobs),
        Method("scikit-learn", "scikit-learn", by_gram),
    ]
    return Contest([(Y, D)], methods, _largest_difference)


def _pursue_by_spams(Y: Array, D: Array, n_nonzero: int, n_jobs: int) -> Any:
    from spams import omp

    return omp(Y.T, D.T, L=n_nonzero, eps=0.0, numThreads=n_jobs).T


def _largest_difference(results: list[Any], first: list[Any]) -> dict[str, float]:
    (found,), (expected,) = results, first
    return {"difference": float(np.abs(found - expected).max())}


def make_spectral(seed: int, n_jobs: int, *, n_points: int, noise: float) -> Contest:
    """The spectral step of a graph of noisy points in 20 subspaces."""
    points = _draw_points(seed, n_points, noise)
    affinity = csr_array(symmetric_affinity(omp_self_expression(points, n_nonzero=6)))
    methods = [
        Method(OURS, OURS, partial(spectral_labels, n_clusters=20, random_state=seed)),
        Method("eigsh and KMeans", "scikit-learn", partial(_label_by_eigsh, seed=seed)),
    ]
    return Contest([(affinity,)], methods, _difference_of_labels)


def _label_by_eigsh(affinity: csr_array, seed: int, n_clusters: int = 20) -> Array:
    scale = diags_array(1 / np.sqrt(affinity.sum(axis=1)))
    start = np.random.default_rng(seed).standard_normal(affinity.shape[0])
    _, vectors = eigsh(scale @ affinity @ scale, n_clusters, which="LA", v0=start)
    model = KMeans(n_clusters, n_init=20, random_state=seed)
    return np.asarray(model.fit_predict(normalize(vectors)))


def _difference_of_labels(results: list[Any], first: list[Any]) -> dict[str, float]:
    return {"difference": 1 - float(adjusted_rand_score(first[0], results[0]))}


def make_lam_max(seed: int, n_jobs: int, *, n_points: int) -> Contest:
    """The penalties at which all codes are zero, of points in 20 subspaces."""
    points = _draw_points(seed, n_points, 0.0)
    products = Method("NumPy, blocks of 256", "numpy", _all_products, n_jobs)
    return Contest([(points,)], [*on_threads(_lam_max, n_jobs), products], _largest_difference)


def _lam_max(X: Array, n_jobs: int) -> Array:
    return Lasso(X, X, 1e-4, 100).lam_max(n_jobs, zero_diagonal=True)


def _all_products(X: Array) -> Array:
    largest = np.empty(len(X))
    for start in range(0, len(X), _BLOCK_ROWS):
        rows = np.arange(start, min(start + _BLOCK_ROWS, len(X)))
        products = np.abs(X[rows] @ X.T)
        products[np.arange(len(rows)), rows] = 0
        largest[rows] = 2 * products.max(axis=1)
    return largest


def make_robust_low_rank(seed: int, n_jobs: int, *, n_subspaces: int, n_points: int) -> Contest:
    """Low-rank representation of noisy points, of which a tenth are moved far away."""
    rng = np.random.default_rng(seed)
    X, _ = make_union_of_subspaces(
        n_points // n_subspaces,
        n_subspaces=n_subspaces,
        n_features=100,
        noise=0.05,
        random_state=seed,
    )
    far = rng.choice(len(X), len(X) // 10, replace=False)
    X[far] += 0.5 * rng.standard_normal((len(far), X.shape[1]))
    methods = [
        Method(OURS, OURS, partial(_represent, lam=_LAM)),
        Method("inexact ALM", "numpy", partial(_represent_by_alm, lam=_LAM)),
    ]
    return Contest([(X,)], methods, partial(_excess_of_objective, X=X))


def _represent(X: Array, lam: float) -> Array:
    return np.asarray(robust_low_rank_self_expression(X, lam=lam).coef)


def _represent_by_alm(X: Array, lam: float) -> Array:
    """The method of Liu, Lin and Yu (2010) as it is mostly written, in the row space of X."""
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    A, penalty = s[:, None] * Rt, 1e-6
    inverse = np.linalg.inv(A @ A.T + np.eye(len(s)))
    C, W, E, Y = np.zeros_like(U), np.zeros_like(U), np.zeros_like(X), np.zeros_like(X)
    while True:
        P, t, Q = np.linalg.svd(C + W / penalty, full_matrices=False)
        J = (P * np.maximum(t - 1 / penalty, 0)) @ Q
        C = ((X - E) @ A.T + J + (Y @ A.T - W) / penalty) @ inverse
        E = X - C @ A + Y / penalty
        E *= np.maximum(1 - lam / penalty / np.linalg.norm(E, axis=1, keepdims=True), 0)
        fit, copy = X - C @ A - E, C - J
        if max(np.abs(fit).max(), np.abs(copy).max()) < 1e-6:
            return np.asarray(C @ U.T)
        Y, W, penalty = Y + penalty * fit, W + penalty * copy, min(1.1 * penalty, 1e10)


def _excess_of_objective(results: list[Any], first: list[Any], X: Array) -> dict[str, float]:
    found, best = (
        np.linalg.norm(C, "nuc") + _LAM * np.linalg.norm(X - C @ X, axis=1).sum()
        for (C,) in (results, first)
    )
    return {"difference": float(found / best - 1)}


def _draw_points(seed: int, n_points: int, noise: float) -> Array:
    X, _ = make_union_of_subspaces(
        n_points // 20,
        n_subspaces=20,
        n_features=50,
        dimension=6,
        noise=noise,
        random_state=seed,
    )
    return np.asarray(normalize(X))


def _pursuit(n_signals: int, n_atoms: int, n_features: int, n_nonzero: int) -> ContestCase:
    sizes = {"n_signals": n_signals, "n_atoms": n_atoms, "n_features": n_features}
    return ContestCase(
        f"{n_signals:,} signals, {n_atoms:,} atoms of {n_features} features, {n_nonzero} non-zeros",
        partial(make_pursuit, **sizes, n_nonzero=n_nonzero),
        "float64",
    )


CASES = {
    "omp-1000": _pursuit(1000, 1000, 100, 10),
    "omp-2000": _pursuit(2000, 2000, 200, 10),
    "omp-patches": _pursuit(2000, 256, 64, 5),
    **{
        f"spectral-{n}": ContestCase(
            f"{n:,} noisy points in 20 subspaces, codes of 6 non-zeros",
            partial(make_spectral, n_points=n, noise=0.1),
            "float64",
        )
        for n in (3000, 15_000)
    },
    "robust-low-rank": ContestCase(
        "300 noisy points in 5 subspaces, 30 of them far away",
        partial(make_robust_low_rank, n_subspaces=5, n_points=300),
        "float64",
    ),
    "lam-max": ContestCase(
        "100,000 points in 20 subspaces; ours makes the cells, which a solve shares",
        partial(make_lam_max, n_points=100_000),
        "float64",
    ),
}


def time_steps(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time steps of clustering and of dictionary learning beside those of other packages.

    Parameters
    ----------
    cases : iterable of str, optional
        Keys of `CASES`; None is all.
    peers : iterable of str, optional
        Keys of `MODULES`; None is all. Those that are not installed are named in the table.
    rounds, n_jobs, seed, directory, progress
        As in `twinsolve.bench.time_filters`.

    Returns
    -------
    DataFrame
        A row for each case and method. ``difference`` is the largest from the first method's
        result; of labels, 1 less the adjusted Rand index; of a representation, by how much its
        objective is larger, as a share.

    Raises
    ------
    ValueError
        If a name is unknown or a number out of range.

    Examples
    --------
    >>> from twinsolve.bench.speed.steps import time_steps
    >>> table = time_steps(cases=["omp-patches"], peers=["spams"])  # doctest: +SKIP
    """
    options = Rounds(rounds, n_jobs, seed, check_folder(directory, "directory"), progress)
    packages = chosen(peers, MODULES, "peers")
    versions = {package: installed(module) for package, module in packages.items()}
    run = partial(hold, peers=packages, options=options)
    listed = chosen(cases, CASES, "cases")
    return run_cases("steps", listed, run, options, peers=versions, columns=COLUMNS)
