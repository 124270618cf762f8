"""Ways to train the affinity network, beside solved methods, on the design set.

Networks see generated data alone, so that all these data are new to them; walks of 2^m steps are
what they were trained by. The solved method is chosen with labels, method and setting at once, on
the other data sets ("elsewhere") or on the same one ("here"), which no user can do. Errors in %,
mean and standard deviation over subsets, of which each is the mean over three seeds of k-means.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pandas as pd
from shared.points import prose, run_seeded
from shared.script import run_script

from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.fitting import fit
from twinsolve.bench.clustering.methods import METHODS, STEPS
from twinsolve.bench.clustering.steps import affinity_of
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.solvers import clustering_accuracy
from twinsolve.solvers.clustering.spectral import embed_graph
from twinsolve.solvers.inputs import Array
from twinsolve.unrolled.clustering import LearnedAffinityClustering
from twinsolve.unrolled.clustering.affinity_network import LabelledEdges, train_affinity_network

DATA = {
    "yaleb:classes=1-19,n_classes=5": "unit-pca-200",
    "coil20:classes=1-10,n_classes=6": "unit-pca-200",
    "digits:n_points=500": "unit",
    "hopkins:half=1": "unit-2F+1",
    "synthetic:n_samples=50,n_subspaces=5,noise=0.3": "unit",
    "manifolds:n_samples=60,n_manifolds=4,curvature=0.5,noise=0.05": "unit",
}
SOLVED = (
    "SSC", "SSC nonnegative", "EnSC", "OMP", "LSR", "LSR zero diagonal", "LRSC", "LLE weights",
)  # fmt: skip
WALKS = ((3,), (3, 6), (6,), (8,))  # `doublings` of the `walk_loss`, a network each
_N_EACH, _N_EPOCHS = 60, 6  # generated problems of each kind to train on
_N_TRIALS, _N_MOTION_TRIALS, _N_SEEDS = 3, 12, 3
_WAY = ["method", "settings"]


def learned_affinity_study() -> Study:
    """Errors of affinity networks by what trained them, and of the best solved methods.

    Solved methods run with all settings of their grids. Data sets whose files are missing are left
    out.
    """
    jobs: list[dict[str, Any]] = [
        *({"data": name, "method": method} for name in DATA for method in SOLVED),
        *({"data": name, "walk": list(walk)} for walk in WALKS for name in DATA),
    ]
    run = run_seeded(errors_of, jobs, list(DATA))
    return Study("learned-affinity", prose(__doc__), run, affinity_lines)


def errors_of(
    *, data: Data, seed: int, method: str = "", walk: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """A row for each subset, setting and chain, by a solved method or a trained network."""
    n_trials = _N_MOTION_TRIALS if data.name.startswith("hopkins") else _N_TRIALS
    rows = []
    for trial in data.trials(n_trials, seed):
        problem = data.problem(trial, seed)
        X, k = features_of(DATA[data.name], problem), problem.n_clusters
        if method:
            found = _solved(method, X, k)
        else:
            name = "walks of " + ", ".join(str(2**m) for m in walk)
            network = _network(tuple(walk), seed)
            model = LearnedAffinityClustering(k, network=network, random_state=0)
            found = iter([(name, {}, model.fit(X).coef_)])
        for name, settings, coef in found:
            for steps in STEPS:
                error = _error(affinity_of(steps, coef, k), problem.labels, k)
                about = {"data": data.name, "trial": trial, "learned": not method, "method": name}
                rows.append(about | {"settings": str(settings), "steps": steps, "error": error})
    return rows


def _solved(method: str, X: Array, k: int) -> Iterator[tuple[str, dict[str, Any], Any]]:
    for settings in METHODS[method].settings:
        yield method, settings, fit(METHODS[method], X, k, 0, settings).coef


def _error(affinity: Any, labels: Array, k: int) -> float:
    graph = embed_graph(affinity, k)
    seeds = range(_N_SEEDS)
    return 100 * float(np.mean([1 - clustering_accuracy(labels, graph.kmeans(s)) for s in seeds]))


@lru_cache(maxsize=1)
def _problems(seed: int) -> list[LabelledEdges]:
    """Those that train the packaged network, by the script that does so."""
    maker = Path(__file__).parents[1] / "packaging/weights/train_affinity_network.py"
    problems: list[LabelledEdges] = run_path(str(maker))["training_problems"](_N_EACH, seed)
    return problems


@lru_cache(maxsize=len(WALKS))
def _network(walk: tuple[int, ...], seed: int) -> Any:
    problems = _problems(seed)
    return train_affinity_network(problems, doublings=walk, n_epochs=_N_EPOCHS, seed=seed)[0]


def best_solved(table: pd.DataFrame, *, elsewhere: bool) -> pd.DataFrame:
    """Rows of the solved method and setting of least mean error, on other data sets or the same."""
    solved = table[~table.learned]
    means = solved.groupby(["data", *_WAY]).error.mean().unstack("data")
    chosen = []
    for data in means:
        by = means.drop(columns=data).mean(axis=1) if elsewhere else means[data]
        method, settings = by.idxmin()
        here = solved[solved.data == data]
        chosen.append(here[(here.method == method) & (here.settings == settings)])
    return pd.concat(chosen)


def affinity_lines(table: pd.DataFrame) -> Lines:
    """A line for each chain of steps and network, and for the solved methods with that chain."""
    sets = list(dict.fromkeys(table.data))
    lines: list[tuple[str, ...]] = []
    for steps, some in table.groupby("steps", sort=False):
        cases = [(name, rows) for name, rows in some[some.learned].groupby("method", sort=False)]
        if len(sets) > 1:
            cases.append(("solved, chosen elsewhere", best_solved(some, elsewhere=True)))
        cases.append(("solved, chosen here", best_solved(some, elsewhere=False)))
        for name, rows in cases:
            subsets = rows.groupby("data").error
            means, spreads = subsets.mean(), subsets.std(ddof=0)
            cells = [f"{means[data]:.1f} ± {spreads[data]:.1f}" for data in sets]
            lines.append((steps, name, *cells, f"{means.mean():.1f}"))
    short = [name.partition(":")[0] for name in sets]
    return ("steps", "affinity", *short, "mean"), lines


def studies() -> tuple[Study, ...]:
    return (learned_affinity_study(),)


if __name__ == "__main__":
    run_script(__file__)
