"""Points of the learned-against-solved studies, in the order by which they are split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.problems import make_problem, trials_of
from twinsolve.bench.timing import in_turns, seconds_of
from twinsolve.solvers import clustering_accuracy
from twinsolve.solvers.solution import Array

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


def halves(data: str, n_points: int, *, seed: int, data_home: str | None = None) -> Halves:
    """Two random halves of at most so many points."""
    X, y = shuffled_points(data, seed=seed, data_home=data_home)
    n_clusters, half = len(np.unique(y)), min(n_points, len(X)) // 2
    return Halves(X[:half], y[:half], X[half:n_points], y[half:n_points], n_clusters)


def shuffled_points(data: str, *, seed: int, data_home: str | None = None) -> tuple[Array, Array]:
    """Features `FEATURES` and labels of a data set's first trial, in random order.

    Raises
    ------
    FileNotFoundError
        If its files are missing.
    """
    trial = trials_of(data, seed=seed, data_home=data_home)[0]
    problem = make_problem(data, trial, seed=seed, data_home=data_home)
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
