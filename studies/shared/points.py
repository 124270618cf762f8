"""Points and their splits, times, jobs for each seed, and cells of tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from twinsolve.bench.clustering.data import Data, find_data
from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.summary import Cell
from twinsolve.bench.jobs import Job, Options, run_jobs
from twinsolve.bench.timing import in_turns, seconds_of
from twinsolve.solvers import clustering_accuracy
from twinsolve.solvers.inputs import Array

SUBSPACES = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.2"
NOISY = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.6"
FEATURES = "unit-pca-100"
CERTIFIED = "SSC, certified"  # the method that times are held against


@dataclass(frozen=True)
class Halves:
    """Points to fit on and new ones, with their labels."""

    X: Array
    y: Array
    new: Array
    y_new: Array
    n_clusters: int

    def accuracies(self, labels: Array, labels_new: Array) -> dict[str, float]:
        """In %, of either half by its own match of clusters to classes."""
        return {
            "accuracy_fit": 100 * clustering_accuracy(self.y, labels),
            "accuracy_new": 100 * clustering_accuracy(self.y_new, labels_new),
        }


def halves(data: Data, n_points: int, *, seed: int) -> Halves:
    """Two random halves of at most so many points."""
    X, y = shuffled_points(data, seed=seed)
    n_clusters, half = len(np.unique(y)), min(n_points, len(X)) // 2
    return Halves(X[:half], y[:half], X[half:n_points], y[half:n_points], n_clusters)


def shuffled_points(data: Data, *, seed: int) -> tuple[Array, Array]:
    """Features `FEATURES` and labels of a data set's first trial, in random order.

    Raises
    ------
    FileNotFoundError
        If its files are missing.
    """
    problem = data.problem(data.trials()[0], seed)
    order = np.random.default_rng(seed).permutation(len(problem.X))
    return features_of(FEATURES, problem)[order], problem.labels[order]


def with_times(
    rows: list[dict[str, Any]],
    methods: Sequence[Callable[[Array], Any]],
    new: Array,
    reference: int,
    rounds: int,
    batch: int,
    n_single: int = 10,
) -> list[dict[str, Any]]:
    """The row of each method with its time a new point: of single ones, and of a batch at once.

    Milliseconds are medians over rounds in turns, ratios are to the reference of the same round.
    """
    kinds = {
        "single": list(new[:n_single, None]),
        "batch": [np.resize(new, (batch, new.shape[1]))],
    }
    for kind, inputs in kinds.items():
        ms = ms_per_point(methods, inputs, rounds)
        for row, times in zip(rows, ms, strict=True):
            row[f"ms_{kind}"] = float(np.median(times))
            row[f"ratio_{kind}"] = float(np.median(times / ms[reference]))
    return rows


def ms_per_point(
    methods: Sequence[Callable[[Array], Any]], inputs: Sequence[Array], rounds: int
) -> Array:
    """Milliseconds a point, of shape (n_methods, rounds); `inputs` are given one after another."""

    def all_inputs(method: Callable[[Array], Any]) -> None:
        for points in inputs:
            method(points)

    compiling = [partial(method, inputs[0][:1]) for method in methods]
    runs = [partial(seconds_of, partial(all_inputs, method)) for method in methods]
    return 1000 * in_turns(runs, rounds, before=compiling) / sum(map(len, inputs))


def run_seeded(
    function: Callable[..., list[dict[str, Any]]],
    jobs: Iterable[Job],
    data: Sequence[str] = (),
    n_splits: int = 1,
) -> Callable[[Options], pd.DataFrame]:
    """The `run` of a study: rows of ``function(seed=, **job)``, for each job and seed of a split.

    A job that names one of the `data` gets it as `find_data` reads the name, and is left out if its
    files are missing.
    """

    def run(options: Options) -> pd.DataFrame:
        found = {name: find_data(name, options.data_home) for name in data}
        missing = [name for name, one in found.items() if not one.at_hand]
        seeded = [
            job
            | ({"data": found[job["data"]]} if job.get("data") in found else {})
            | {"seed": options.seed + split}
            for job in jobs
            if job.get("data") not in missing
            for split in range(n_splits)
        ]
        return run_jobs(function, seeded, options)

    return run


def prose(docstring: str | None) -> str:
    """What a docstring says after its first line."""
    return " ".join((docstring or "").partition("\n\n")[2].split())


def with_deviation(column: str) -> Cell:
    """Mean and standard deviation."""
    return lambda rows: f"{rows[column].mean():.1f} ± {rows[column].std(ddof=0):.1f}"


def over_seeds(column: str) -> Cell:
    """Range over the seeds of the mean over all else."""

    def cell(rows: pd.DataFrame) -> str:
        means = rows.groupby("seed")[column].mean()
        return f"{means.min():.2f} to {means.max():.2f}"

    return cell
