"""The study that clusters by data, features, methods, settings, affinity steps and seeds."""

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pandas as pd

from ...datasets.files import NotWritten
from ...solvers.clustering.order import reordered, row_order
from ...solvers.clustering.score import score_of, trivial_share
from ...solvers.clustering.spectral import EmbeddedGraph, embed_graph
from ...solvers.inputs import Array, check_dense_or_sparse
from ..jobs import Job, JobFailed, Keep, Options, Part, run_jobs
from ..study import Study
from .data import Data, find_data
from .features import (
    Points,
    check_features,
    keep_costly_features,
    keep_features_in,
    load_features,
)
from .figures import draw_errors
from .fitting import (
    QUALITY,
    Fitted,
    connectivity_of,
    fit,
    held_out_labels,
    quality,
    scores,
    split_rows,
    warm_up,
)
from .methods import BUILT_IN, Method, code_of, find_method, know
from .steps import (
    DENSE_ROWS,
    NO_STEPS,
    OWN,
    affinity_of,
    check_chain,
    cut_of,
    is_dense,
    with_both_cuts,
    without_cut,
)
from .summary import (
    POOL,
    RULE,
    TITLE,
    best_lines,
    cluster_lines,
    distance_lines,
    drop_known_labels,
    held_out_lines,
    quality_lines,
    rank_candidates,
    reported_lines,
    rows_of_pool,
    select_settings,
    whole_choice_lines,
)

CHOICE = "The row to report of each method: its affinity steps of largest score, without labels"
_SPREAD = (
    "Errors are means over the trials; std and range are over the seeds, of k-means and of fits "
    "where these depend on one. Times are processor seconds of a fit, as medians of ratios on the "
    "same trial. ME-3 is the connectivity of the worst true cluster, 0 if the graph cuts it. ME-2 "
    "is the mean share of a row of coefficients on points of other clusters. In trials: in how "
    "many of them the learned method errs less."
)
_NUMBERS = (
    *QUALITY, "accuracy", "nmi", "ari", "accuracy_fit", "accuracy_new", "new_ms",
    "selection_score", "connectivity",
)  # fmt: skip
Found = list[tuple[dict[str, Any], Array]]  # rows, each with the labels of the points


def clusters_study(
    data: Sequence[str],
    methods: Sequence[str],
    *,
    name: str = "clusters",
    about: str = "Clusters of every method, by its affinity steps.",
    features: Sequence[str] = ("unit",),
    affinity: Sequence[str] | None = None,
    settings: dict[str, list[dict[str, Any]]] | None = None,
    n_trials: int | None = None,
    n_fits: int = 1,
    n_fit_points: int | None = None,
    label_tuned: bool = False,
    tuned: bool = False,
) -> Study:
    """Study that clusters `data` by `methods`.

    Parameters
    ----------
    data, methods, features : sequence of str
        Names that `find_data`, `find_method` and `features_of` take.
    affinity : sequence of str, optional
        Chains of affinity steps for every method with coefficients; None takes each method's own
        chains, both with k-means and with ``cluster-qr``.
    settings : dict, optional
        Settings to try by name of the method, instead of its grid.
    n_trials : int, optional
        Random trials of each data set; None is all trials, or 5 for generated data.
    n_fits : int, default=1
        Number of fits, by different seeds, of each method whose training depends on its seed.
    n_fit_points : int, optional
        Number of random points to fit. Each other point is labelled by its coefficients on these,
        solved or from a forward pass: by the cluster of smallest residual. None fits all points.
    label_tuned : bool, default=False
        Add the settings with the best accuracy, marked as such.
    tuned : bool, default=False
        Mark all `settings` as chosen with labels.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    found = [find_method(method) for method in methods]
    for chain in affinity or ():
        check_chain(chain)
    for names in features:
        check_features(names)
    grids = {method.name: (settings or {}).get(method.name, method.settings) for method in found}
    ways = [
        Pipeline(method, names, chosen, tuple(affinity or with_both_cuts(method.affinity)))
        for names in features
        for method in found
        for chosen in grids[method.name]
    ]

    def run(options: Options) -> pd.DataFrame:
        jobs: list[Job] = []
        for found in [find_data(name, options.data_home) for name in data]:
            trials = found.trials(n_trials, options.seed)
            jobs += jobs_of(found, trials, ways, options, n_fits=n_fits)
        table = run_pipelines(ways, jobs, options, n_fit_points=n_fit_points, labels=not tuned)
        if tuned:
            return table.assign(selection="labels")
        table = drop_known_labels(rank_candidates(table, rows_of_pool(table)))
        return select_settings(table, label_tuned=label_tuned)

    more = {
        CHOICE: reported_lines,
        **({TITLE: whole_choice_lines} if set(POOL) <= set(methods) else {}),
        "Best learned beside best solved, by the same steps": best_lines,
        "Solver quality": quality_lines,
        "Distance to the certified solution": distance_lines,
    }
    if n_fit_points is not None:
        more["Held-out points"] = held_out_lines
    rule = RULE if any(len(grid) > 1 for grid in grids.values()) and not tuned else ""
    figures = {"errors.png" if name == "clusters" else f"{name}-errors.png": draw_errors}
    return Study(name, f"{about} {_SPREAD}", run, cluster_lines, figures, more, rule)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A method with its settings, the features of the points, and chains of affinity steps."""

    method: Method
    features: str
    settings: dict[str, Any]
    chains: tuple[str, ...]


def jobs_of(
    data: Data,
    trials: Sequence[str],
    ways: Sequence[Pipeline],
    options: Options,
    *,
    n_fits: int = 1,
) -> Iterator[Job]:
    """Jobs for `cluster_job`: one for each trial, pipeline and seed of a fit."""
    seed = options.seed
    for trial, way in product(trials, ways):
        points = Points(data, trial, way.features, seed)
        for fit_seed in range(seed, seed + (n_fits if way.method.random else 1)):
            yield {
                "points": points,
                "method": way.method.name,
                "code": code_of(way.method),
                "settings": way.settings,
                "chains": list(way.chains),
                "fit_seed": fit_seed,
                "seeds": options.all_seeds,
            }


def run_pipelines(
    ways: Sequence[Pipeline],
    jobs: list[Job],
    options: Options,
    *,
    n_fit_points: int | None = None,
    labels: bool = False,
) -> pd.DataFrame:
    """Run the jobs in workers that know the users' methods and share costly features.

    Rows hold the clusters of points without classes. With `labels`, rows of the first seed hold
    those of all points.
    """
    own = [way.method for way in ways if way.method.name not in BUILT_IN]
    setup = partial(_set_up_worker, own, options.directory and options.directory / "features")
    keep_costly_features(jobs, options, setup)
    jobs = [job | {"n_fit_points": n_fit_points, "with_labels": labels} for job in jobs]
    return run_jobs(cluster_job, jobs, options, setup=setup)


def _set_up_worker(methods: Sequence[Method], folder: Path | None) -> None:
    know(methods)
    keep_features_in(folder)


def cluster_job(
    *,
    points: Points,
    method: str,
    code: str | None,
    settings: dict[str, Any],
    chains: list[str],
    fit_seed: int,
    seeds: list[int],
    n_fit_points: int | None = None,
    with_labels: bool = False,
    keep: Keep | None = None,
) -> list[dict[str, Any]]:
    """Rows of one method with one setting on one problem: a row for each chain and seed.

    `code` tells versions of a user's method apart. Rows hold clusters of points without classes,
    and, `with_labels`, of all points by the first seed. `keep` keeps fits, unless the fitted
    estimator has to label further points.
    """
    problem, X = load_features(points)
    way = find_method(method)
    about = {
        "data": problem.name,
        "trial": problem.trial,
        "n_points": X.shape[0],
        "n_features": X.shape[1],
        "n_clusters": problem.n_clusters,
        "features": points.features,
        "method": method,
        "family": way.family,
        "settings": ", ".join(f"{key}={value}" for key, value in settings.items()),
        "fit_seed": fit_seed,
    }
    try:
        fitted, others = split_rows(X.shape[0], n_fit_points, points.seed)
        true, n_fit = problem.labels[[*fitted, *others]], len(fitted)
        case = _Case(way, X[fitted], true[:n_fit], problem.n_clusters, settings, X[others])
        if len(others) or keep is None:
            keep = Keep()
        rows, known = [], _ScoredClusterings(true, n_fit)
        for row, labels in _measure(case, chains, fit_seed, seeds, keep):
            rows.append(about | row | known.worth(labels))
            if not problem.labelled or (with_labels and row.get("seed") == seeds[0]):
                rows[-1]["labels"] = None if labels is None else labels.tolist()
        return rows
    except NotWritten:
        raise
    except Exception as error:
        raise JobFailed([about | row for row in _make_failed_rows(chains, seeds, error)]) from error


@dataclass(frozen=True, eq=False)
class _Case:
    """A method with one setting, points to fit with their labels, and `new` points to label."""

    way: Method
    X: Array
    true: Array
    n_clusters: int
    settings: dict[str, Any]
    new: Array
    models: dict[int, Any] = field(default_factory=dict)  # by seed, to label the new points

    def fit(self, seed: int, directory: Path | None = None) -> Fitted:
        fitted = fit(self.way, self.X, self.n_clusters, seed, self.settings, directory)
        if self.new.shape[0]:
            self.models[seed] = fitted.model
        return fitted

    def with_held_out(self, seed: int, found: Found) -> Found:
        """Append labels of the new points, by the fit of `seed`, to those of the fitted points."""
        if not self.new.shape[0]:
            return found
        others, seconds = held_out_labels(self.models[seed], self.new, [own for _, own in found])
        ms = {"new_ms": 1000 * seconds / self.new.shape[0]}
        return [
            (row | ms, np.concatenate([own, new]))
            for (row, own), new in zip(found, others, strict=True)
        ]


def _measure(
    case: _Case, chains: list[str], fit_seed: int, seeds: list[int], keep: Keep
) -> Iterator[tuple[dict[str, Any], Array | None]]:
    """Yield a row for each chain and seed, with the labels of fitted and new points."""
    make = partial(_fit_and_embed, case, fit_seed, chains, keep.unfinished)
    (about, arrays), *graphs = keep(make)
    if keep.unfinished:
        rmtree(keep.unfinished, ignore_errors=True)
    if graphs:
        found, left_out = _cluster_graphs(graphs, case, chains, seeds)
        found = case.with_held_out(fit_seed, found)
    else:
        found, left_out = list(_refit_labels(case, arrays, fit_seed, seeds, keep)), []
    yield from ((about | row, labels) for row, labels in found)
    yield from ((about | row, None) for row in left_out)


def _fit_and_embed(
    case: _Case, seed: int, chains: list[str], unfinished: Path | None
) -> list[Part]:
    """Measures of a fit, then the graph of each affinity; without affinity, the labels."""
    warm_up(case.way.name)
    fitted = case.fit(seed, unfinished)
    about = quality(case.way, fitted, case.X, case.true)
    if fitted.coef is None and fitted.affinity is None:
        if fitted.labels.shape != (case.X.shape[0],):
            raise ValueError(f"labels: must be one per point, got shape {fitted.labels.shape}")
        random = hasattr(fitted.model, "random_state")
        return [(about, {"labels": fitted.labels, "random": np.array(random)})]
    uncut = dict.fromkeys(map(without_cut, chains if fitted.coef is not None else [OWN]))
    return [(about, {}), *(_embed_affinity(case, fitted, chain) for chain in uncut)]


def _embed_affinity(case: _Case, fitted: Fitted, chain: str) -> Part:
    """Embed the graph of a chain's affinity; a note instead if the chain is left out."""
    if chain != OWN and is_dense(chain) and case.X.shape[0] > DENSE_ROWS:
        note = f"left out above {DENSE_ROWS:,} points: needs a dense matrix"
        return {"affinity": chain, "note": note}, {}
    start = time.process_time()
    order, k = row_order(case.X), case.n_clusters
    given = fitted.affinity if chain == OWN else fitted.coef
    pairs = reordered(check_dense_or_sparse(given, "affinity" if chain == OWN else "coef"), order)
    affinity = pairs if chain == OWN else affinity_of(chain, pairs, k)
    made = time.process_time()
    graph = embed_graph(affinity, k)
    row = {
        "affinity": chain,
        "trivial": trivial_share(pairs),
        "steps_seconds": made - start,
        "eigen_seconds": time.process_time() - made,
        "connectivity": connectivity_of(affinity, case.true[order]),
    }
    return row, graph.arrays()


@dataclass(frozen=True, eq=False)
class _ScoredClusterings:
    """Scores of clusterings of one problem; clusterings equal up to names are scored once."""

    true: Array
    n_fit: int
    found: dict[bytes, dict[str, float]] = field(default_factory=dict)

    def worth(self, labels: Array | None) -> dict[str, float]:
        if labels is None:
            return {}
        _, first, names = np.unique(labels, return_index=True, return_inverse=True)
        clusters = np.argsort(np.argsort(first))[names].tobytes()
        if clusters not in self.found:
            self.found[clusters] = self._worth(labels)
        return self.found[clusters]

    def _worth(self, labels: Array) -> dict[str, float]:
        true, n_fit = self.true, self.n_fit
        worth = scores(true, labels)
        if n_fit < len(true):  # clusters and classes are matched on each part alone
            worth["accuracy_fit"] = scores(true[:n_fit], labels[:n_fit])["accuracy"]
            worth["accuracy_new"] = scores(true[n_fit:], labels[n_fit:])["accuracy"]
        return worth


def _make_failed_rows(
    chains: list[str], seeds: list[int], error: Exception
) -> list[dict[str, Any]]:
    """Rows without numbers for a method that failed; the traceback is printed."""
    traceback.print_exception(error)
    empty = dict.fromkeys(_NUMBERS, np.nan)
    note = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return [
        empty | {"steps": chain, "seed": seed, "note": note}
        for chain, seed in product(chains, seeds)
    ]


def _cluster_graphs(
    graphs: list[Part], case: _Case, chains: list[str], seeds: list[int]
) -> tuple[Found, list[dict[str, Any]]]:
    """Rows of each chain and seed with their labels, and rows of the chains left out.

    The points of the graphs are in the order of `row_order`.
    """
    places = np.argsort(row_order(case.X))
    found: Found = []
    left_out = []
    embedded = {row["affinity"]: (row, arrays) for row, arrays in graphs}
    if OWN in embedded:
        chains = list(dict.fromkeys(own_chain(chain) for chain in chains))
    for chain in chains:
        kept, arrays = embedded[without_cut(chain)]
        row = {name: value for name, value in kept.items() if name not in ("affinity", "trivial")}
        row["steps"] = chain
        if not arrays:
            left_out.append(row)
            continue
        graph = EmbeddedGraph.from_arrays(arrays)
        start = time.process_time()
        found_by = [None] if cut_of(chain) == "cluster-qr" else seeds
        labels = [graph.cluster_qr() if seed is None else graph.kmeans(seed) for seed in found_by]
        row["cut_seconds"] = (time.process_time() - start) / len(labels)
        labels *= len(seeds) // len(labels)
        own = kept["trivial"]  # points represent mainly themselves, which comes last
        row["selection_score"] = -own if own else score_of(graph, labels[0], case.n_clusters)
        found += [(row | {"seed": s}, one[places]) for s, one in zip(seeds, labels, strict=True)]
    return found, left_out


def own_chain(chain: str) -> str:
    """The chain with its affinity steps replaced by the method's own affinity."""
    return OWN if cut_of(chain) == "k-means" else f"{OWN}, {cut_of(chain)}"


def _refit_labels(
    case: _Case, first: dict[str, Array], fit_seed: int, seeds: list[int], keep: Keep
) -> Iterator[tuple[dict[str, Any], Array]]:
    """Yield a row with labels for each seed; if labels depend on the seed, fit again."""

    def refit(seed: int) -> list[Part]:
        return [({}, {"labels": case.fit(seed).labels})]

    for seed in seeds:
        again = bool(first["random"]) and seed != fit_seed
        labels = keep(partial(refit, seed), seed=seed)[0][1]["labels"] if again else first["labels"]
        row = {"steps": NO_STEPS, "seed": seed, "selection_score": np.nan}
        yield from case.with_held_out(seed if again else fit_seed, [(row, labels)])
