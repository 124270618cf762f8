"""Clusters without a choice to make: method, affinity steps and setting are chosen unseen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...solvers.solution import Array
from ..jobs import Options
from ..names import split_settings
from ..provenance import provenance
from ..tables import Lines, number
from ..timing import Progress
from .choice import CHOICE_RULE, POOL, rank_candidates
from .clusters import Way, jobs_of, run_ways
from .features import check_features
from .methods import find_method
from .problems import make_problem, trials_of
from .steps import check_chain, is_dense

_MOST_DENSE = 5000  # points with which matrices of all pairs are made and decomposed
_DENSE = ("LRSC",)
_NEXT = 5


@dataclass(frozen=True, eq=False)
class ChosenClusters:
    """What `choose_clusters` chose.

    Attributes
    ----------
    labels : ndarray of int of shape (n_points,)
        The clusters of the points.
    method, steps : str
        The method and its affinity steps, by the names that `cluster` knows.
    settings : dict
        The setting of the method.
    score, agreement : float
        The `selection_score`, and the mean adjusted Rand index with the other best candidates.
    candidates : DataFrame
        All that were tried, best first, then those left out, with a ``note`` that says why.
    notes : tuple of str
        What was left out beforehand.
    """

    labels: Array
    method: str
    steps: str
    settings: dict[str, Any]
    score: float
    agreement: float
    candidates: pd.DataFrame
    notes: tuple[str, ...] = ()


def choose_clusters(
    data: str,
    *,
    methods: Sequence[str] | None = None,
    features: str = "unit",
    steps: Sequence[str] | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> ChosenClusters:
    """Cluster points by the method, affinity steps and setting that are chosen without labels.

    The candidates are one method of each kind of solved problem, with all settings of its grid and
    all its chains of steps: elastic net, orthogonal matching pursuit, low rank and locally linear
    weights. They are judged as `twinsolve.solvers.choose_clusterer` does. Above 5,000 points what
    needs dense matrices is left out: the low-rank method and some of the steps.

    Parameters
    ----------
    data : str
        A data set or a file of points, as `cluster` takes it; of points without labels with the
        number of clusters, as in ``"mine.npz:n_clusters=5"``. Of several trials, one.
    methods : sequence of str, optional
        Candidates instead of these. One that makes no affinity cannot be judged.
    features : str, default="unit"
        Rows of unit norm.
    steps : sequence of str, optional
        Chains of affinity steps instead of each method's own.
    seed : int, default=0
        Seeds k-means, subsets and fits.
    n_jobs, data_home, directory, progress
        As `cluster` takes them.

    Returns
    -------
    ChosenClusters

    Raises
    ------
    FileNotFoundError
        If the files of a data set are missing.
    ValueError
        If a name is not allowed, the number of clusters is not known, or no candidate could be
        judged.

    Examples
    --------
    >>> from twinsolve.bench import choose_clusters
    >>> chosen = choose_clusters("digits:n_points=60", methods=["OMP"], steps=["symmetrize"])
    >>> chosen.method, chosen.steps, chosen.labels.shape
    ('OMP', 'symmetrize', (60,))
    """
    options = Options(seed, 1, n_jobs, data_home, directory, progress)
    trial = trials_of(data, n_trials=1, seed=seed, data_home=data_home)[0]
    n_points = len(make_problem(data, trial, seed=seed, data_home=data_home).X)
    ways, notes = _ways(methods, check_features(features), steps, n_points)
    table = run_ways(ways, list(jobs_of(data, [trial], ways, options)), options, labels=True)
    table = rank_candidates(table, table).sort_values("rank", kind="stable", ignore_index=True)
    if not (table["rank"] == 1).any():
        reasons = table.reindex(columns=["note"]).note.dropna().unique()
        raise ValueError(
            f"method: none of {', '.join(dict.fromkeys(table.method))} can be judged without labels"
            + "".join(f"; {reason}" for reason in reasons)
        )
    best = table.iloc[0]
    return ChosenClusters(
        np.array(best.labels),
        best.method,
        best.steps,
        split_settings(f":{best.settings}".replace(", ", ","), "settings")[1],
        float(best.selection_score),
        float(best.agreement),
        table.drop(columns="labels"),
        notes,
    )


def _ways(
    methods: Sequence[str] | None, features: str, steps: Sequence[str] | None, n_points: int
) -> tuple[list[Way], tuple[str, ...]]:
    """The candidates, and what is none with so many points."""
    found = [find_method(name) for name in methods or POOL]
    chains = {method: tuple(map(check_chain, steps or method.steps)) for method in found}
    notes: tuple[str, ...] = ()
    if n_points > _MOST_DENSE and not (methods or steps):
        found = [method for method in found if method.name not in _DENSE]
        left_out = dict.fromkeys(c for own in chains.values() for c in own if is_dense(c))
        chains = {m: tuple(c for c in own if not is_dense(c)) for m, own in chains.items()}
        words = ", ".join([*_DENSE, *left_out])
        notes = (f"Above {_MOST_DENSE:,} points without what needs dense matrices: {words}.",)
    return [Way(m, features, s, chains[m]) for m in found for s in m.settings], notes


def choice_lines(chosen: ChosenClusters) -> Lines:
    """The choice and the next best candidates; with their errors where these are known."""
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


def left_out(chosen: ChosenClusters) -> list[str]:
    """What is no candidate, and why."""
    missing = chosen.candidates[chosen.candidates["rank"].isna()]
    said = missing.reindex(columns=["method", "settings", "note"]).fillna("")
    rows = said.drop_duplicates().itertuples(index=False)
    unjudged = "makes no affinity, by which it could be judged"
    return [
        *chosen.notes,
        *(f"Left out: {method} {settings}: {note or unjudged}" for method, settings, note in rows),
    ]


def by_labels(chosen: ChosenClusters) -> dict[str, float]:
    """Errors of the choice and of the best candidate, in %; empty where the labels are unknown."""
    errors = 100 * (1 - chosen.candidates.accuracy)
    if errors.isna().all():
        return {}
    error, best = float(errors.iloc[0]), float(errors.min())
    return {"error": error, "smallest_error": best, "regret": error - best}


def write_choice(chosen: ChosenClusters, data: str, features: str, seed: int, folder: Path) -> None:
    """Write ``labels.csv``, ``choice.json`` and all candidates as ``candidates.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"cluster": chosen.labels}).to_csv(folder / "labels.csv", index=False)
    chosen.candidates.to_csv(folder / "candidates.csv", index=False)
    ranked = chosen.candidates["rank"].notna()
    choice = {
        "data": data,
        "features": features,
        "n_clusters": int(chosen.candidates.n_clusters.iloc[0]),
        "method": chosen.method,
        "settings": chosen.settings,
        "steps": chosen.steps,
        "score": chosen.score,
        "agreement": None if np.isnan(chosen.agreement) else chosen.agreement,
        "candidates": int(ranked.sum()),
        "rule": CHOICE_RULE,
        "left_out": left_out(chosen),
    }
    if known := by_labels(chosen):
        choice["for_information_only_by_labels_in_percent"] = known
    run = provenance({"seed": seed})
    (folder / "choice.json").write_text(json.dumps(choice | {"run": run}, indent=1) + "\n")
