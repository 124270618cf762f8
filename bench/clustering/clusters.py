"""The study of clusters: data x features x methods x settings x affinity steps x seeds."""

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...datasets.root import data_root
from ...solvers.clustering.spectral import embed_graph
from ...solvers.solution import Array
from .best import best_lines
from .features import check_features
from .fitting import QUALITY, Fitted, fit, quality, warm_up
from .held_out import held_out_labels, split_rows
from .judging import connectivity_of, scores, scores_apart
from .methods import BUILT_IN, Method, code_of, find_method, know
from .prepared import keep_features_in, prepare, prepared
from .problems import Problem, content_of, reads_files, trials_of
from .selection import RULE, score_of, select_settings
from .steps import DENSE_ROWS, affinity_of, check_chain, is_dense
from .study import Job, JobFailed, Options, Study, run_jobs
from .summary import cluster_lines, distance_lines, held_out_lines, quality_lines

OWN = "own affinity"
NO_STEPS = "none"
_SPREAD = (
    "Errors are means over the trials; std and range are over the seeds, of k-means and of fits "
    "where these depend on one. Times are processor seconds of a fit, as medians of ratios on the "
    "same trial."
)
_NUMBERS = (
    *QUALITY, "accuracy", "nmi", "ari", "accuracy_fit", "accuracy_new", "new_ms",
    "selection_score", "connectivity",
)  # fmt: skip
Rows = list[dict[str, Any]]


def clusters_study(
    data: Sequence[str],
    methods: Sequence[str],
    *,
    name: str = "clusters",
    about: str = "Clusters of every method, by its affinity steps.",
    features: Sequence[str] = ("unit",),
    steps: Sequence[str] | None = None,
    settings: dict[str, list[dict[str, Any]]] | None = None,
    n_trials: int | None = None,
    n_fits: int = 1,
    n_fit_points: int | None = None,
    label_tuned: bool = False,
    tuned: bool = False,
    figures: dict[str, Any] | None = None,
) -> Study:
    """Study of the methods named on the data sets named.

    Parameters
    ----------
    data, methods, features : sequence of str
        Names, as `make_problem`, `find_method` and `features_of` know them.
    steps : sequence of str, optional
        Chains of affinity steps for every method with coefficients; None takes each method's own.
    settings : dict, optional
        Settings to try for a method, instead of its grid.
    n_trials : int, optional
        Random trials of each data set; None is all of them, or 5 of generated data.
    n_fits : int, default=1
        Fits of each method whose training depends on its seed, by as many seeds.
    n_fit_points : int, optional
        Random points that are fitted, and by which the others are labelled: by solving for their
        coefficients or a forward pass, and the cluster of smallest residual. None fits all.
    label_tuned : bool, default=False
        Add the settings with the best accuracy, marked as such.
    tuned : bool, default=False
        Mark all `settings` as chosen with labels, by those who found them.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    found = [find_method(method) for method in methods]
    for chain in steps or ():
        check_chain(chain)
    for names in features:
        check_features(names)

    grids = {way.name: (settings or {}).get(way.name, way.settings) for way in found}

    def run(options: Options) -> pd.DataFrame:
        home = str(data_root(options.data_home))
        jobs = [
            job
            for source in data
            for trial in trials_of(source, n_trials=n_trials, seed=options.seed, data_home=home)
            for job in _jobs(source, trial, home, found, features, steps, grids, n_fits, options)
        ]
        own = [method for method in found if method.name not in BUILT_IN]
        folder = options.directory and options.directory / "features"
        setup = partial(_set_up, own, folder)
        prepare(jobs, options, setup)
        jobs = [job | {"n_fit_points": n_fit_points} for job in jobs]
        table = run_jobs(cluster_job, jobs, options, setup=setup)
        if tuned:
            return table.assign(selection="labels")
        return select_settings(table, label_tuned=label_tuned)

    more = {
        "Best learned beside best solved, by the same steps": best_lines,
        "Solver quality": quality_lines,
        "Distance to the certified solution": distance_lines,
    }
    if n_fit_points is not None:
        more["Held-out points"] = held_out_lines
    rule = RULE if any(len(grid) > 1 for grid in grids.values()) and not tuned else ""
    return Study(name, f"{about} {_SPREAD}", run, cluster_lines, figures or {}, more, rule)


def _set_up(methods: Sequence[Method], folder: Path | None) -> None:
    know(methods)
    keep_features_in(folder)


def _jobs(
    data: str,
    trial: str,
    home: str,
    methods: Sequence[Method],
    features: Sequence[str],
    steps: Sequence[str] | None,
    grids: dict[str, list[dict[str, Any]]],
    n_fits: int,
    options: Options,
) -> list[Job]:
    content = content_of(data, home)
    return [
        {
            "data": data,
            "trial": trial,
            "seed": options.seed,
            "data_home": home if reads_files(data) else None,
            "content": content,
            "features": names,
            "method": method.name,
            "code": code_of(method),
            "settings": chosen,
            "steps": list(steps or method.steps),
            "fit_seed": fit_seed,
            "seeds": options.seeds,
        }
        for names in features
        for method in methods
        for chosen in grids[method.name]
        for fit_seed in range(options.seed, options.seed + (n_fits if method.random else 1))
    ]


def cluster_job(
    *,
    data: str,
    trial: str,
    seed: int,
    data_home: str | None,
    content: str | None,
    features: str,
    method: str,
    code: str | None,
    settings: dict[str, Any],
    steps: list[str],
    fit_seed: int,
    seeds: list[int],
    n_fit_points: int | None = None,
) -> list[dict[str, Any]]:
    """Rows of one method with one setting on one problem: a row for each chain and seed."""
    problem, X = prepared(
        data, trial, seed=seed, data_home=data_home, content=content, features=features
    )
    way = find_method(method)
    about = {
        "data": data,
        "trial": trial,
        "n_points": len(X),
        "n_features": X.shape[1],
        "n_clusters": problem.n_clusters,
        "features": features,
        "method": method,
        "family": way.family,
        "settings": ", ".join(f"{key}={value}" for key, value in settings.items()),
        "fit_seed": fit_seed,
    }
    try:
        rows = _measure(way, X, problem, settings, steps, fit_seed, seeds, n_fit_points, seed)
    except Exception as error:
        raise JobFailed([about | row for row in _failed(steps, seeds, error)]) from error
    return [about | row for row in rows]


def _measure(
    way: Method,
    X: Array,
    problem: Problem,
    settings: dict[str, Any],
    steps: list[str],
    fit_seed: int,
    seeds: list[int],
    n_fit_points: int | None,
    split_seed: int,
) -> Rows:
    """What a method's fit gives, by chain and seed."""
    chosen, others = split_rows(len(X), n_fit_points, split_seed)
    true, n_clusters = problem.labels, problem.n_clusters
    warm_up(way.name)
    refit = partial(fit, way, X[chosen], n_clusters, settings=settings)
    fitted = refit(random_state=fit_seed)
    about = quality(way, fitted, X[chosen], true[chosen])
    if fitted.coef is None and fitted.affinity is None:
        rows, found = _by_labels(refit, fitted, X[others], seeds)
    else:
        rows, found = _by_graph(fitted, true[chosen], n_clusters, steps, seeds)
        if len(others):
            new, seconds = held_out_labels(fitted.model, X[others], found)
            rows = [row | {"new_ms": 1000 * seconds / len(others)} for row in rows]
            found = [np.concatenate(both) for both in zip(found, new, strict=True)]
    order = true[np.concatenate([chosen, others])]
    for row, labels in zip(rows, found, strict=False):
        row |= scores(order, labels)
        if len(others):
            row |= scores_apart(order, labels, len(chosen))
    return [about | row for row in rows]


def _failed(steps: list[str], seeds: list[int], error: Exception) -> Rows:
    """Rows without numbers, in place of those that a method owes; the traceback is printed."""
    traceback.print_exception(error)
    empty = dict.fromkeys(_NUMBERS, np.nan)
    note = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return [
        empty | {"steps": chain, "seed": seed, "note": note}
        for chain, seed in product(steps, seeds)
    ]


def _by_graph(
    fitted: Fitted, true: Array, n_clusters: int, steps: list[str], seeds: list[int]
) -> tuple[Rows, list[Array]]:
    """Rows of each chain and seed with the labels found; rows of chains left out come last."""
    rows, labels, left_out = [], [], []
    for chain in steps if fitted.coef is not None else [OWN]:
        if chain != OWN and is_dense(chain) and len(true) > DENSE_ROWS:
            note = f"left out above {DENSE_ROWS:,} points: needs a dense matrix"
            left_out.append({"steps": chain, "note": note})
            continue
        start = time.process_time()
        affinity = fitted.affinity if chain == OWN else affinity_of(chain, fitted.coef, n_clusters)
        made = time.process_time()
        graph = embed_graph(affinity, n_clusters)
        found = [graph.kmeans(seed) for seed in seeds]
        cut = time.process_time()
        of_chain = {
            "steps": chain,
            "steps_seconds": made - start,
            "spectral_seconds": (cut - made) / len(seeds),
            "connectivity": connectivity_of(affinity, true),
            "selection_score": score_of(graph, found[0], n_clusters),
        }
        rows += [of_chain | {"seed": seed} for seed in seeds]
        labels += found
    return rows + left_out, labels


def _by_labels(
    refit: Callable[..., Fitted], fitted: Fitted, new: Array, seeds: list[int]
) -> tuple[Rows, list[Array]]:
    """Rows of each seed with the labels found, of the new points too."""
    rows, labels = [], []
    random = hasattr(fitted.model, "random_state")
    for seed in seeds:
        made = refit(random_state=seed) if random else fitted
        row: dict[str, Any] = {"steps": NO_STEPS, "seed": seed, "selection_score": np.nan}
        found = made.labels
        if len(new):
            (others,), seconds = held_out_labels(made.model, new, [found])
            row["new_ms"] = 1000 * seconds / len(new)
            found = np.concatenate([found, others])
        rows.append(row)
        labels.append(found)
    return rows, labels
