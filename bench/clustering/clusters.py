"""The study of clusters: data x features x methods x settings x affinity steps x seeds."""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from ...datasets.root import data_root
from ...solvers.clustering.selection import score_of
from ...solvers.clustering.spectral import EmbeddedGraph, embed_graph
from ...solvers.solution import Array
from ..jobs import Job, JobFailed, Keep, Options, Part, code, resume_parts, run_jobs
from ..names import split_settings
from .features import check_features, keep_features_in, prepare, prepared
from .fitting import (
    QUALITY,
    Fitted,
    connectivity_of,
    fit,
    held_out_labels,
    quality,
    scores,
    scores_apart,
    split_rows,
    warm_up,
)
from .methods import BUILT_IN, Method, code_of, find_method, know
from .problems import content_of, reads_files, trials_of
from .selection import RULE, select_settings
from .steps import DENSE_ROWS, affinity_of, check_chain, cut_of, is_dense, without_cut
from .study import Study
from .summary import (
    best_lines,
    choice_lines,
    cluster_lines,
    distance_lines,
    held_out_lines,
    quality_lines,
)

CHOICE = "The row to report of each method: its affinity steps of largest score, without labels"
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
Found = list[tuple[dict[str, Any], Array | None]]  # rows with the labels of their points


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
        seeds, contents = options.seeds, {source: content_of(source, home) for source in data}
        jobs: list[Job] = [
            {
                "data": source,
                "trial": trial,
                "seed": options.seed,
                "data_home": home if reads_files(source) else None,
                "content": contents[source],
                "features": names,
                "method": method.name,
                "code": code_of(method),
                "settings": chosen,
                "steps": list(steps or method.steps),
                "fit_seed": fit_seed,
                "seeds": seeds,
            }
            for source in data
            for trial in trials_of(source, n_trials=n_trials, seed=options.seed, data_home=home)
            for names in features
            for method in found
            for chosen in grids[method.name]
            for fit_seed in range(seeds[0], seeds[0] + (n_fits if method.random else 1))
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
        CHOICE: choice_lines,
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
    keep: Keep | None = None,
) -> list[dict[str, Any]]:
    """Rows of one method with one setting on one problem: a row for each chain and seed.

    Fits are kept by `keep`, except where other points are labelled by the fitted estimator itself.
    """
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
        chosen, others = split_rows(len(X), n_fit_points, seed)
        case = _Case(way, X[chosen], problem.labels[chosen], problem.n_clusters, settings)
        if len(others) or keep is None:
            keep = Keep()
        found = _measure(case, X[others], steps, fit_seed, seeds, keep)
        order = problem.labels[np.concatenate([chosen, others])]
        rows = [about | row | _worth(order, labels, len(chosen)) for row, labels in found]
        if not problem.labelled:  # what was found is all that there is
            for row, (_, labels) in zip(rows, found, strict=True):
                row["labels"] = None if labels is None else labels.tolist()
        return rows
    except Exception as error:
        raise JobFailed([about | row for row in _failed(steps, seeds, error)]) from error


@dataclass(frozen=True, eq=False)
class _Case:
    """A method with one setting, and the points to fit with their labels."""

    way: Method
    X: Array
    true: Array
    n_clusters: int
    settings: dict[str, Any]

    def fit(self, seed: int) -> Fitted:
        return fit(self.way, self.X, self.n_clusters, seed, self.settings)


def _measure(
    case: _Case, new: Array, steps: list[str], fit_seed: int, seeds: list[int], keep: Keep
) -> Found:
    """Rows of a fit by chain and seed, each with the labels of its points and of the new ones."""
    models: list[Any] = []

    def represent() -> list[Part]:
        warm_up(case.way.name)
        fitted = case.fit(fit_seed)
        models.append(fitted.model)
        return _represented(case, fitted, steps)

    (about, arrays), *graphs = keep(represent)
    model = models[0] if len(new) else None
    if graphs:
        found = _by_graph(graphs, case.n_clusters, steps, seeds)
        if model is not None:
            found = _with_held_out(found, model, new)
    else:
        found = _by_labels(case, arrays, model, new, fit_seed, seeds, keep)
    return [(about | row, labels) for row, labels in found]


def _represented(case: _Case, fitted: Fitted, steps: list[str]) -> list[Part]:
    """What a fit cost and gave, then the graph of each affinity; without one, the labels."""
    about = quality(case.way, fitted, case.X, case.true)
    if fitted.coef is None and fitted.affinity is None:
        if fitted.labels.shape != (len(case.X),):
            raise ValueError(f"labels: must be one a point, got shape {fitted.labels.shape}")
        random = hasattr(fitted.model, "random_state")
        return [(about, {"labels": fitted.labels, "random": np.array(random)})]
    chains = dict.fromkeys(map(without_cut, steps if fitted.coef is not None else [OWN]))
    return [(about, {}), *(_embedded(case, fitted, chain) for chain in chains)]


def _embedded(case: _Case, fitted: Fitted, chain: str) -> Part:
    """The graph of an affinity and what it cost; nothing but a note where the chain is left out."""
    if chain != OWN and is_dense(chain) and len(case.X) > DENSE_ROWS:
        note = f"left out above {DENSE_ROWS:,} points: needs a dense matrix"
        return {"affinity": chain, "note": note}, {}
    start = time.process_time()
    coef, k = fitted.coef, case.n_clusters
    affinity = fitted.affinity if chain == OWN else affinity_of(chain, coef, k)
    made = time.process_time()
    graph = embed_graph(affinity, k)
    row = {
        "affinity": chain,
        "steps_seconds": made - start,
        "eigen_seconds": time.process_time() - made,
        "connectivity": connectivity_of(affinity, case.true),
    }
    return row, graph.arrays()


def matrices_of(row: pd.Series, options: Options) -> tuple[Array, Array]:
    """Coefficients and affinity of a row of the table, fitted anew unless they are kept."""
    home = str(data_root(options.data_home))
    content, way = content_of(row.data, home), find_method(row.method)

    def make() -> list[Part]:
        problem, X = prepared(
            row.data, row.trial, seed=options.seed, data_home=home, content=content,
            features=row.features,
        )  # fmt: skip
        settings = split_settings(f":{row.settings}".replace(", ", ","), "settings")[1]
        coef = fit(way, X, problem.n_clusters, row.fit_seed, settings).coef
        made = affinity_of(without_cut(row.steps), coef, problem.n_clusters)
        return [({}, {"coef": csr_array(coef).toarray(), "affinity": csr_array(made).toarray()})]

    about = ("data", "trial", "features", "method", "settings", "steps", "fit_seed")
    key = {"study": "matrices", "content": content, "method code": code_of(way), **code()}
    key |= {name: str(row[name]) for name in about} | {"seed": options.seed, "data_home": home}
    folder = options.directory and options.directory / "matrices"
    ((_, arrays),) = resume_parts(make, key, folder)
    return arrays["coef"], arrays["affinity"]


def _worth(true: Array, labels: Array | None, n_fit: int) -> dict[str, float]:
    if labels is None:
        return {}
    apart = scores_apart(true, labels, n_fit) if n_fit < len(true) else {}
    return scores(true, labels) | apart


def _failed(steps: list[str], seeds: list[int], error: Exception) -> Rows:
    """Rows without numbers, in place of those that a method owes; the traceback is printed."""
    traceback.print_exception(error)
    empty = dict.fromkeys(_NUMBERS, np.nan)
    note = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return [
        empty | {"steps": chain, "seed": seed, "note": note}
        for chain, seed in product(steps, seeds)
    ]


def _by_graph(graphs: list[Part], n_clusters: int, steps: list[str], seeds: list[int]) -> Found:
    """Rows of each chain and seed with the labels found; rows of chains left out come last."""
    found: Found = []
    left_out: Found = []
    embedded = {row["affinity"]: (row, arrays) for row, arrays in graphs}
    for chain in [OWN] if OWN in embedded else steps:
        kept, arrays = embedded[chain if chain == OWN else without_cut(chain)]
        row = {name: value for name, value in kept.items() if name != "affinity"}
        row["steps"] = chain
        if not arrays:
            left_out.append((row, None))
            continue
        graph = EmbeddedGraph.from_arrays(arrays)
        start = time.process_time()
        if chain != OWN and cut_of(chain) == "cluster-qr":
            labels = [graph.cluster_qr()] * len(seeds)
        else:
            labels = [graph.kmeans(seed) for seed in seeds]
        row["cut_seconds"] = (time.process_time() - start) / len(seeds)
        row["selection_score"] = score_of(graph, labels[0], n_clusters)
        found += [(row | {"seed": seed}, own) for seed, own in zip(seeds, labels, strict=True)]
    return found + left_out


def _with_held_out(found: Found, model: Any, new: Array) -> Found:
    """The same with the labels of new points behind those of the fitted ones."""
    fitted = [labels for _, labels in found if labels is not None]
    others, seconds = held_out_labels(model, new, fitted)
    joined = [np.concatenate(both) for both in zip(fitted, others, strict=True)]
    ms = {"new_ms": 1000 * seconds / len(new)}
    rows = [row for row, _ in found]
    return [
        *((row | ms, labels) for row, labels in zip(rows, joined, strict=False)),
        *((row | ms, None) for row in rows[len(joined) :]),
    ]


def _by_labels(
    case: _Case,
    first: dict[str, Array],
    model: Any,
    new: Array,
    fit_seed: int,
    seeds: list[int],
    keep: Keep,
) -> Found:
    """Rows of each seed with the labels found, of the new points too: a fit for each seed."""
    found: Found = []
    for seed in seeds:
        models = [model]

        def refit(seed: int = seed, models: list[Any] = models) -> list[Part]:
            fitted = case.fit(seed)
            models.append(fitted.model)
            return [({}, {"labels": fitted.labels})]

        again = bool(first["random"]) and seed != fit_seed
        labels = keep(refit, seed=seed)[0][1]["labels"] if again else first["labels"]
        row: dict[str, Any] = {"steps": NO_STEPS, "seed": seed, "selection_score": np.nan}
        if len(new):
            (others,), seconds = held_out_labels(models[-1], new, [labels])
            row["new_ms"] = 1000 * seconds / len(new)
            labels = np.concatenate([labels, others])
        found.append((row, labels))
    return found
