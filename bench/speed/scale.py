"""Timings of `twinsolve speed scale`: our solver by number of rows."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.preprocessing import normalize

from ...datasets import fetch_mnist, make_union_of_subspaces, pca_features, scattering_features
from ...solvers import sparse_self_expression
from ...solvers.inputs import Array
from ...solvers.sparse_coding.row_blocks import MOST_STORED
from ...validation import check_folder
from ..timing import Progress, resident
from .contest import OURS, Entrant, Rounds, alone, chosen, run_cases

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_LAM, _TOL = 0.1, 1e-4
COLUMNS = [
    "case", "solver", "points", "lam", "tol", "dtype", "n_rows", "n_features", "n_jobs", "seconds",
    "processor_seconds", "growth", "passes", "skipped", "nonzeros", "gap", "certified",
    "memory_mib", "peak_mib", "note",
]  # fmt: skip


@dataclass(frozen=True)
class Points:
    """Maker of any number of points; more than `most` are only made if the case is named."""

    make: Callable[[int, int], Array]
    most: int
    files: Callable[[], Any] | None = None  # called before the separate process starts


def time_scale(
    *,
    cases: Iterable[str] | None = None,
    sizes: Sequence[int] | None = None,
    n_jobs: int = 1,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse self-expression against the number of rows, each solved to a gap of 1e-4.

    The problem is ``min |x_i - c X|^2 + 0.1 |c|_1`` with ``c_i = 0`` for every row i, of unit norm.
    Each number of rows is solved once, in a separate process.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``subspaces-50``, ``subspaces-200`` and ``noisy-50`` (20 subspaces of dimension 6 in
        50 or 200 dimensions; ``noisy-50`` has noise of 0.05 times their norm), ``many-50`` and
        ``many-200`` (100 subspaces of dimension 5), and ``mnist`` (scattering features on 200
        principal directions). None is all cases: subspaces-50 up to 1,000,000 rows, subspaces-200
        up to 300,000, mnist up to 30,000, the others up to 100,000.
    sizes : sequence of int, optional
        Numbers of rows; None is 10,000 to 1,000,000.
    n_jobs : int, default=1
        Threads.
    seed : int, default=0
        Seed of the generated data and of the choice of digits.
    directory : str or Path, optional
        Folder that keeps the result of each finished number of rows.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and number of rows. ``gap`` is the worst certified gap of all rows;
        ``certified`` the share of rows at or under the tolerance; ``passes`` the mean number of
        searches or products with all atoms per row; ``skipped`` the share of the products of these
        passes that were not computed, missing if the Gram matrix is stored. ``growth`` is the
        exponent of N by which processor seconds grew from the case's previous number of rows.
        ``memory_mib`` is the peak resident memory beyond the input, ``peak_mib`` that of the whole
        process.

    Raises
    ------
    ValueError
        If a case is unknown, a size is under 100, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_scale
    >>> table = time_scale(cases=["subspaces-50"], sizes=[1000])  # doctest: +SKIP
    """
    sizes = SIZES if sizes is None else sizes
    if min(sizes, default=0) < 100:
        raise ValueError(f"sizes: must be one or more numbers, each 100 or more, got {list(sizes)}")
    folder = check_folder(directory, "directory")
    named, options = cases is not None, Rounds(1, n_jobs, seed, folder, progress)
    entrants = {
        f"{name}-{n}": _Ours(name, points, n, n_jobs, seed)
        for name, points in chosen(cases, POINTS, "cases").items()
        for n in sorted(set(sizes))
        if named or n <= points.most
    }
    run = partial(_time_entrant, progress=progress)
    table = run_cases("scale", entrants, run, options, peers={}, columns=COLUMNS)
    return table.assign(growth=_growth_exponents(table))


def _time_entrant(entrant: "_Ours", progress: Progress | None) -> list[dict[str, Any]]:
    if entrant.files:
        entrant.files()
    steps = (alone(entrant) for _ in range(1))
    rows = list(progress(steps, 1) if progress else steps)
    return [row | {"seconds": row.pop("ms") / 1000} for row in rows]


def _growth_exponents(table: pd.DataFrame) -> pd.Series:
    """Exponents of growth between successive numbers of rows of each case."""
    logs = np.log(table[["processor_seconds", "n_rows"]].astype(float)).groupby(table.points).diff()
    return logs.processor_seconds / logs.n_rows


class _Ours(Entrant):
    """Our solver on all rows; a separate process makes the points and solves."""

    def __init__(self, name: str, points: Points, n_rows: int, n_jobs: int, seed: int) -> None:
        self.labels = {"solver": OURS, "points": name, "lam": _LAM, "tol": _TOL, "n_rows": n_rows}
        self.make, self.files = partial(points.make, n_rows, seed), points.files
        self.n_jobs = n_jobs

    def prepare(self) -> None:
        self.X = normalize(self.make())
        self._solve(self.X[: MOST_STORED + 1])

    def _solve(self, X: Array) -> Any:
        return sparse_self_expression(X, lam=_LAM, tol=_TOL, n_jobs=self.n_jobs)

    def run(self) -> None:
        start = time.process_time()
        self.solution = self._solve(self.X)
        self.seconds = time.process_time() - start

    def facts(self) -> dict[str, Any]:
        solution, n_rows = self.solution, len(self.X)
        products = float(solution.n_passes.sum()) * n_rows
        return {
            "dtype": str(self.X.dtype),
            "n_features": self.X.shape[1],
            "n_jobs": self.n_jobs,
            "processor_seconds": self.seconds,
            "passes": float(solution.n_passes.mean()),
            "skipped": 1 - solution.n_looked.sum() / products if products else float("nan"),
            "nonzeros": solution.coef.nnz / n_rows,
            "gap": float(solution.gap.max()),
            "certified": float(solution.converged.mean()),
            "peak_mib": resident("VmHWM"),
        }


def _subspaces(n: int, seed: int, *, n_subspaces: int = 20, **made: Any) -> Array:
    X, _ = make_union_of_subspaces(
        -(-n // n_subspaces), n_subspaces=n_subspaces, random_state=seed, **made
    )
    return np.random.default_rng(seed).permutation(X)[:n]


def _digits(n: int, seed: int) -> Array:
    images = fetch_mnist(subset="all").images
    if n > len(images):
        raise ValueError(f"sizes: mnist has {len(images)} images, got {n}")
    some = np.random.default_rng(seed).permutation(len(images))[:n]
    framed = np.pad(images[some].astype(np.float32), ((0, 0), (2, 2), (2, 2)), mode="edge")
    return pca_features(scattering_features(framed), 200)


_many = partial(_subspaces, n_subspaces=100, dimension=5)
POINTS = {
    "subspaces-50": Points(partial(_subspaces, n_features=50, dimension=6), 1_000_000),
    "subspaces-200": Points(partial(_subspaces, n_features=200, dimension=6), 300_000),
    "many-50": Points(partial(_many, n_features=50), 100_000),
    "many-200": Points(partial(_many, n_features=200), 100_000),
    "noisy-50": Points(partial(_subspaces, n_features=50, dimension=6, noise=0.05), 100_000),
    "mnist": Points(_digits, 30_000, partial(fetch_mnist, subset="all")),
}
