"""Cluster points by method, affinity steps and setting that are chosen without labels."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...datasets.files import write_whole
from ...solvers.clustering.selection import arbitrary_choice, check_distinct, equal_estimators
from ...solvers.inputs import Array
from ...solvers.notebook import html_facts, in_words
from ...validation import check_folder
from ..jobs import Options
from ..names import check_name, check_names, split_settings
from ..provenance import provenance
from ..tables import Lines, number
from ..timing import Progress
from .clusters import Pipeline, jobs_of, run_pipelines
from .data import find_data
from .features import check_features, features_of, is_costly
from .methods import BUILT_IN, find_method
from .steps import chain_key, is_dense
from .summary import POOL, choice_rule, rank_candidates

_MOST_DENSE = 5000  # most points for which dense matrices of all pairs are decomposed
_DENSE = ("LSR", "LRSC")
_NEXT = 5


@dataclass(frozen=True, eq=False)
class ChosenClusters:
    """The choice of `choose_clusters`.

    Attributes
    ----------
    labels : ndarray of int of shape (n_points,)
        The clusters of the points.
    points : ndarray of int of shape (n_points,)
        Numbers of the points in the whole data set, from 0.
    method, affinity : str
        The method and its affinity steps, by the names that `cluster` takes.
    settings : dict
        The setting of the method.
    score, agreement : float
        The `selection_score`, and the agreement with all candidates by `rank_clusterings`.
    candidates : DataFrame
        All candidates tried, best first, then those left out, with a ``note`` that says why.
    rule : str
        The rule of choice, with the number of candidates.
    notes : tuple of str
        What was left out before candidates were tried.
    warning : str
        Why the choice is arbitrary; empty if it is not.
    """

    labels: Array
    points: Array
    method: str
    affinity: str
    settings: dict[str, Any]
    score: float
    agreement: float
    candidates: pd.DataFrame
    rule: str
    notes: tuple[str, ...] = ()
    warning: str = ""

    def _repr_html_(self) -> str:
        sizes = np.unique(self.labels, return_counts=True)[1]
        facts: dict[str, str | float | None] = {
            "method": self.method,
            "settings": in_words(self.settings),
            "affinity steps": self.affinity,
            "points of each cluster": ", ".join(map(str, sizes)),
            "score": self.score,
            "agreement": self.agreement,
            "rule": self.rule,
            "warning": self.warning or "none",
        }
        return html_facts("ChosenClusters", facts)


def choose_clusters(
    data: str | Path,
    *,
    methods: Sequence[str] | None = None,
    features: str = "unit",
    affinity: Sequence[str] | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> ChosenClusters:
    """Cluster points by a method, affinity steps and setting that are chosen without labels.

    The candidates are SSC, its elastic net, least squares and low rank, with all settings of their
    grids and all their chains of steps, cut by k-means. The choice is made as in
    `twinsolve.solvers.choose_clusterer`, which takes an array of points. Above 5,000 points, what
    needs dense matrices is left out, unless methods or affinity are named: least squares, low rank,
    and the steps ``low-rank``, ``svd-power`` and ``softmax-rows``. Duplicates count once.

    Parameters
    ----------
    data : str or Path
        A data set or a file of points, as `cluster` takes it. Points without labels need the number
        of clusters: ``"mine.npz:n_clusters=5"``. If there are several trials, one is drawn.
    methods : sequence of str, optional
        Other candidates. A method that makes no affinity cannot be judged.
    features : str, default="unit"
        Features of the points; by default, rows of unit norm.
    affinity : sequence of str, optional
        Chains of affinity steps instead of each method's own.
    seed : int, default=0
        Seed of k-means, subsets and fits.
    n_jobs, data_home, directory, progress
        As `cluster` takes them.

    Returns
    -------
    ChosenClusters

    Raises
    ------
    FileNotFoundError
        If the files of a data set are missing.
    TypeError
        If the data are not a name, methods or affinity not a sequence of names, or a folder not a
        path.
    ValueError
        If a name is not allowed, the number of clusters is unknown, there are fewer distinct
        points than clusters, or no candidate could be judged.

    Warns
    -----
    UserWarning
        If the choice is arbitrary: one cluster, clusters of one point each, or no candidate with a
        score above 0.

    Examples
    --------
    >>> from twinsolve.bench import choose_clusters
    >>> chosen = choose_clusters("digits:n_points=60", methods=["OMP"], affinity=["symmetrize"])
    >>> chosen.method, chosen.affinity, chosen.labels.shape
    ('OMP', 'symmetrize', (60,))
    """
    folder = check_folder(directory, "directory")
    options = Options(seed, 1, n_jobs, data_home, folder, progress)
    name, features = check_name(data, "data"), check_features(check_name(features, "features"))
    methods, affinity = check_names(methods, "methods"), check_names(affinity, "affinity")
    found = find_data(name, data_home)
    trial = found.trials(1, seed)[0]
    problem = found.problem(trial, seed)
    X = problem.X if is_costly(features) else features_of(features, problem)
    check_distinct(X, problem.n_clusters, "data")
    ways, notes = _list_pipelines(methods, features, affinity, X.shape[0])
    table = run_pipelines(ways, list(jobs_of(found, [trial], ways, options)), options, labels=True)
    table = rank_candidates(table, table).sort_values("rank", kind="stable", ignore_index=True)
    if not (table["rank"] == 1).any():
        reasons = table.reindex(columns=["note"]).note.dropna().unique()
        raise ValueError(
            f"method: none of {', '.join(dict.fromkeys(table.method))} can be judged without labels"
            + "".join(f"; {reason}" for reason in reasons)
        )
    best = table.iloc[0]
    score = float(best.selection_score)
    if warning := arbitrary_choice(score, problem.n_clusters, X.shape[0]):
        warnings.warn(warning, stacklevel=2)
    return ChosenClusters(
        np.array(best.labels),
        problem.rows,
        best.method,
        best.steps,
        split_settings(f":{best.settings}".replace(", ", ","), "settings")[1],
        score,
        float(best.agreement),
        table.drop(columns="labels"),
        choice_rule(int(table["rank"].notna().sum())),
        notes,
        warning,
    )


def _list_pipelines(
    methods: Sequence[str] | None, features: str, affinity: Sequence[str] | None, n_points: int
) -> tuple[list[Pipeline], tuple[str, ...]]:
    """The candidates, and notes on those left out because there are too many points."""
    found = [find_method(name) for name in dict.fromkeys(methods or POOL)]
    chains = {method: _drop_known(affinity or method.affinity) for method in found}
    notes: tuple[str, ...] = ()
    if n_points > _MOST_DENSE and not (methods or affinity):
        found = [method for method in found if method.name not in _DENSE]
        left_out = dict.fromkeys(c for own in chains.values() for c in own if is_dense(c))
        chains = {m: tuple(c for c in own if not is_dense(c)) for m, own in chains.items()}
        words = ", ".join([*_DENSE, *left_out])
        notes = (f"Above {_MOST_DENSE:,} points without what needs dense matrices: {words}.",)
    ways: list[Pipeline] = []
    for way in (Pipeline(m, features, s, chains[m]) for m in found for s in m.settings):
        before = [chain for other in ways if _fit_alike(way, other) for chain in other.chains]
        ways += [replace(way, chains=new)] if (new := _drop_known(way.chains, before)) else []
    return ways, notes


def _drop_known(chains: Sequence[str], known: Sequence[str] = ()) -> tuple[str, ...]:
    """The chains that do not equal a known or an earlier chain, however they are written."""
    first: dict[tuple[Any, ...], str] = {}
    for chain in (*known, *chains):
        first.setdefault(chain_key(chain), chain)
    return tuple(first.values())[len(known) :]


def _fit_alike(first: Pipeline, second: Pipeline) -> bool:
    """Whether two pipelines fit the same estimator; users' methods are compared by name."""
    ways = first, second
    if {way.method.name.partition(":")[0] for way in ways} <= BUILT_IN:
        common = {"n_clusters": 2, "random_state": 0, "n_jobs": 1}
        return equal_estimators(*(way.method.make(**common, **way.settings) for way in ways))
    return (first.method.name, first.settings) == (second.method.name, second.settings)


def choice_lines(chosen: ChosenClusters) -> Lines:
    """Table of the choice and the next best candidates, with their errors if known."""
    best = chosen.candidates.head(1 + _NEXT)
    columns = {
        "method": list(best.method),
        "settings": list(best.settings),
        "steps": list(best.steps),
        "score": [number(value, ".3f") for value in best.selection_score],
        "agreement": [number(value, ".3f") for value in best.agreement],
    }
    if best.accuracy.notna().any():
        columns["error %"] = [number(100 * (1 - value), ".2f") for value in best.accuracy]
    return tuple(columns), list(zip(*columns.values(), strict=True))


def list_left_out(chosen: ChosenClusters) -> list[str]:
    """Sentences that say what was left out, and why."""
    missing = chosen.candidates[chosen.candidates["rank"].isna()]
    said = missing.reindex(columns=["method", "settings", "note"]).fillna("")
    rows = said.drop_duplicates().itertuples(index=False)
    unjudged = "cannot be judged, as it makes no affinity"
    return [
        *chosen.notes,
        *(f"Left out: {method} {settings}: {note or unjudged}" for method, settings, note in rows),
    ]


def errors_by_labels(chosen: ChosenClusters) -> dict[str, float]:
    """Errors of the choice and of the best candidate, in %; empty if labels are unknown."""
    errors = 100 * (1 - chosen.candidates.accuracy)
    if errors.isna().all():
        return {}
    error, best = float(errors.iloc[0]), float(errors.min())
    return {"error": error, "smallest_error": best, "regret": error - best}


def write_choice(chosen: ChosenClusters, data: str, features: str, seed: int, folder: Path) -> None:
    """Write ``labels.csv``, ``choice.json`` and all candidates as ``candidates.csv``."""
    labels = pd.DataFrame({"point": chosen.points, "cluster": chosen.labels})
    write_whole(folder / "labels.csv", labels.to_csv(index=False))
    write_whole(folder / "candidates.csv", chosen.candidates.to_csv(index=False))
    ranked = chosen.candidates["rank"].notna()
    choice = {
        "data": data,
        "features": features,
        "n_clusters": int(chosen.candidates.n_clusters.iloc[0]),
        "method": chosen.method,
        "settings": chosen.settings,
        "affinity": chosen.affinity,
        "score": chosen.score,
        "agreement": None if np.isnan(chosen.agreement) else chosen.agreement,
        "candidates": int(ranked.sum()),
        "rule": chosen.rule,
        "left_out": list_left_out(chosen),
    }
    if chosen.warning:
        choice["warning"] = chosen.warning
    if known := errors_by_labels(chosen):
        choice["for_information_only_by_labels_in_percent"] = known
    run = provenance({"seed": seed})
    write_whole(folder / "choice.json", json.dumps(choice | {"run": run}, indent=1) + "\n")
