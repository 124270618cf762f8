"""Rules that choose a method, affinity steps and setting without labels, on the design set.

Regret is the error in % beyond that of the best of all candidates on the same subset; a row is its
mean over the subsets, by data set. Rules choose among the methods that `--auto` tries, or among
all. Score is the `selection_score`; eigengap the relative gap behind the k-th eigenvalue of the
graph; connectivity that of the found clusters' weakest; association the mean share of a cluster's
edges that stay inside; reconstruction the residual of each point by ridge regression from its own
cluster; stability the mean adjusted Rand index of the clusters of all points and of two random
subsets of 80 %; agreement the mean index with all other candidates. Ranks are added where two are
joined. What a fixed candidate gives is shown with hindsight, and as chosen on the other data sets.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from shared.points import prose, run_seeded
from shared.script import run_script
from sklearn.metrics import adjusted_rand_score

from twinsolve.bench.clustering.data import Data, find_data
from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.fitting import fit, scores, split_rows
from twinsolve.bench.clustering.methods import find_method
from twinsolve.bench.clustering.steps import affinity_of
from twinsolve.bench.clustering.summary import CANDIDATE, POOL
from twinsolve.bench.jobs import Options
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.solvers.clustering.eigenvectors import leading_eigenvectors
from twinsolve.solvers.clustering.ranking import rand_indices, rank_clusterings
from twinsolve.solvers.clustering.score import score_of
from twinsolve.solvers.clustering.spectral import check_affinity, embed_graph
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.metrics import connectivity

METHODS = (
    *POOL, "OMP", "LLE weights", "SSC nonnegative", "LSR zero diagonal", "kNN graph", "TSC",
)  # fmt: skip
_MEASURED = (
    "score", "eigengap", "connectivity", "association", "reconstruction", "stability", "agreement",
)  # fmt: skip
_PROBLEM, _RULE = ["data", "trial"], ["among", "rule"]
_SUBSETS, _SHARE = 2, 0.8
_RIDGE = 1e-2


def criteria_study(data: Sequence[Sequence[Any]], *, methods: Sequence[str] = METHODS) -> Study:
    """Regret of rules of choice.

    Parameters
    ----------
    data : sequence of (name, features, n_trials)
        As `find_data` and `features_of` know them.
    methods : sequence of str
        All candidates.
    """

    def run(options: Options) -> pd.DataFrame:
        jobs = [
            {"data": name, "features": features, "trial": trial, "method": method}
            for name, features, n in data
            for trial in find_data(name, options.data_home).trials(n, options.seed)
            for method in methods
        ]
        names = [name for name, _, _ in data]
        return regrets_of(run_seeded(judge_candidates, jobs, names)(options))

    return Study("criteria", prose(__doc__), run, regret_lines)


def judge_candidates(
    *, data: Data, features: str, trial: str, method: str, seed: int
) -> list[dict[str, Any]]:
    """A row for each setting and chain of a method: what is known of its clusters unseen."""
    problem = data.problem(trial, seed)
    X, k = features_of(features, problem), problem.n_clusters
    subsets = [split_rows(len(X), int(_SHARE * len(X)), seed + i)[0] for i in range(_SUBSETS)]
    rows = []
    for settings in find_method(method).settings:
        graphs = _graphs(method, X, k, seed, settings)
        parts = [_graphs(method, X[kept], k, seed, settings) for kept in subsets]
        for steps, affinity in graphs.items():
            graph = embed_graph(affinity, k)
            labels = graph.kmeans(seed)
            again = [embed_graph(part[steps], k).kmeans(seed) for part in parts]
            same = [
                adjusted_rand_score(labels[kept], found)
                for kept, found in zip(subsets, again, strict=True)
            ]
            rows.append(
                {
                    "data": data.name, "trial": trial, "method": method, "steps": steps,
                    "settings": ", ".join(f"{name}={value}" for name, value in settings.items()),
                    "accuracy": scores(problem.labels, labels)["accuracy"],
                    "score": score_of(graph, labels, k),
                    "eigengap": relative_eigengap(affinity, k),
                    "connectivity": connectivity(affinity, labels),
                    "association": association(affinity, labels) / k,
                    "reconstruction": -residual_by_own_cluster(X, labels),
                    "stability": float(np.mean(same)),
                    "labels": labels.tolist(),
                }
            )  # fmt: skip
    return rows


def _graphs(method: str, X: Array, k: int, seed: int, settings: dict[str, Any]) -> dict[str, Array]:
    way = find_method(method)
    coef = fit(way, X, k, seed, settings).coef
    return {steps: affinity_of(steps, coef, k) for steps in way.affinity}


def relative_eigengap(affinity: Any, k: int) -> float:
    """``(mu_k - mu_{k+1}) / (1 - mu_{k+1})`` of the normalised affinity; 0 where it falls apart."""
    A = check_affinity(affinity)
    kept = np.flatnonzero(np.asarray(A.sum(axis=1)) > 0)
    if len(kept) <= k + 1:
        return 0.0
    mu = leading_eigenvectors(A[kept][:, kept], k + 1)[0]
    return float((mu[k - 1] - mu[k]) / max(1 - mu[k], 1e-12))


def association(affinity: Any, labels: Array) -> float:
    """Sum over the clusters of the share of their edges that stay inside."""
    member = (labels[:, None] == np.unique(labels)).astype(float)
    edges = affinity @ member
    volume = edges.sum(axis=1) @ member
    return float(((edges * member).sum(axis=0) / np.where(volume > 0, volume, 1)).sum())


def residual_by_own_cluster(X: Array, labels: Array) -> float:
    """Mean squared residual of each point by ridge regression from the others of its cluster."""
    squares = np.ones(len(X))
    for cluster in np.unique(labels):
        inside = np.flatnonzero(labels == cluster)
        inverse = np.linalg.inv(X[inside] @ X[inside].T + _RIDGE * np.eye(len(inside)))
        residuals = inverse @ X[inside] / np.diag(inverse)[:, None]  # of leaving one out
        squares[inside] = (residuals**2).sum(axis=1)
    return float(squares.mean())


Rule = Callable[[pd.DataFrame], Array]  # values of the candidates of a problem; the largest counts


def _by(name: str) -> Rule:
    return lambda candidates: candidates[name].to_numpy()


def _joined(*names: str) -> Rule:
    return lambda candidates: sum(rankdata(candidates[name]) for name in names)


def _by_rank(candidates: pd.DataFrame) -> Array:
    order, _ = rank_clusterings(candidates["score"], candidates.labels.to_list())
    values = np.empty(len(order))
    values[order] = -np.arange(len(order))
    return values


THE_RULE = "agreement, weighed by the score"
RULES: dict[str, Rule] = {
    THE_RULE: _by_rank,
    **{name: _by(name) for name in _MEASURED},
    **{f"score and {name}": _joined("score", name) for name in _MEASURED[1:]},
}
_LEFT_OUT = "the best of these on the other data sets"
_FIXED = "always the same"
_FEW = 3


def regrets_of(candidates: pd.DataFrame) -> pd.DataFrame:
    """Regret in % of each rule among both pools, and of fixed candidates, on each problem."""
    pools = {", ".join(POOL): candidates[candidates.method.isin(POOL)], "all": candidates}
    best = candidates.groupby(_PROBLEM).accuracy.max()
    columns = [*_PROBLEM, *_RULE, "regret"]
    found = []
    for among, pool in pools.items():
        for about, problem in pool.groupby(_PROBLEM, sort=False):
            indices = rand_indices(problem.labels.to_list())
            judged = problem.assign(agreement=(indices.sum(axis=1) - 1) / (len(indices) - 1))
            for name, rule in RULES.items():
                regret = best[about] - judged.accuracy.iloc[int(np.argmax(rule(judged)))]
                found.append((*about, among, name, 100 * regret))
    rules = pd.DataFrame(found, columns=columns)
    words = [f"{m} ({s}) by {c}" for m, s, c in candidates[CANDIDATE].itertuples(index=False)]
    largest = candidates.groupby(_PROBLEM).accuracy.transform("max")
    regret = 100 * (largest - candidates.accuracy)
    same = candidates.assign(among=_FIXED, rule=words, regret=regret)[columns]
    few = over_data(same).dropna().mean(axis=1).nsmallest(_FEW).index
    kept = same[same.set_index(_RULE).index.isin(few)]
    return pd.concat([rules, left_out(rules), kept, left_out(same)], ignore_index=True)


def over_data(regrets: pd.DataFrame) -> pd.DataFrame:
    """Mean regret over the subsets, a row for each rule and a column for each data set."""
    by_data = regrets.groupby([*_RULE, "data"], sort=False).regret.mean()
    rules, data = by_data.index.droplevel("data").unique(), list(dict.fromkeys(regrets.data))
    return by_data.unstack("data").reindex(index=rules, columns=data)


def left_out(regrets: pd.DataFrame) -> pd.DataFrame:
    """On each data set the regret of the rule that is best on all others, if there are others."""
    means = over_data(regrets).dropna()
    if len(means.columns) == 1:
        return regrets.iloc[:0]
    among = regrets.among.iloc[0] if regrets.among.nunique() == 1 else "both"
    parts = []
    for data in means:
        chosen = means.drop(columns=data).mean(axis=1).idxmin()
        own = regrets[(regrets.data == data) & (regrets.among == chosen[0])]
        parts.append(own[own.rule == chosen[1]].assign(among=among, rule=_LEFT_OUT))
    return pd.concat(parts)


def regret_lines(table: pd.DataFrame) -> Lines:
    """A line for each rule: its regret by data set, the mean over these and the largest of all."""
    means = over_data(table)
    largest = table.groupby(_RULE).regret.max()
    headings = ("among", "rule", *means.columns, "mean", "largest")
    rows = [
        (
            *key,
            *(number(value, ".1f") for value in row),
            number(row.mean(), ".2f"),
            number(largest[key], ".1f"),
        )
        for key, row in means.iterrows()
    ]
    return headings, rows


DATA = (
    ("yaleb:classes=1-19,n_classes=5", "unit-pca-200", 3),
    ("coil20:classes=1-10,n_classes=6", "unit-pca-200", 3),
    ("digits:n_points=500", "unit", 3),
    ("hopkins:half=1", "unit-2F+1", 6),
    ("synthetic:n_samples=50,n_subspaces=5,noise=0.3", "unit", 3),
    ("manifolds:n_samples=60,n_manifolds=4,curvature=0.5,noise=0.05", "unit", 3),
    ("manifolds:n_samples=60,n_manifolds=4,curvature=1.0,noise=0.05", "unit", 3),
    ("synthetic:n_samples=40,n_subspaces=6,n_features=20,dimension=4,noise=0.5", "unit", 3),
    ("yaleb:classes=1-19,n_points=190", "unit", 3),
    ("coil20:classes=1-10,n_points=120", "unit", 3),
    ("digits:n_points=120", "unit", 3),
)


def studies() -> tuple[Study, ...]:
    return (criteria_study(DATA),)


if __name__ == "__main__":
    run_script(__file__)
