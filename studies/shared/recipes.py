"""Recipes of the literature: a method on its features with the affinity steps that go with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from twinsolve.bench.clustering.clusters import Pipeline, jobs_of, run_pipelines
from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.methods import Method, estimator
from twinsolve.bench.jobs import Job, Options
from twinsolve.datasets import homogeneous_coordinates
from twinsolve.solvers import ThresholdingSubspaceClustering, sparse_self_expression
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.self_expression import (
    admm_outlier_self_expression,
    admm_self_expression,
    lam_from_alpha,
    outlier_lams_from_alpha,
)
from twinsolve.solvers.solution import Solution

KEEP = "keep-mass 0.7, scale-rows"


@dataclass(frozen=True)
class Recipe:
    """A method on its features, and the affinity steps of its graph.

    `steps` says in words and by equation ids what is done. The `method` is an estimator, or a
    function of the points that returns coefficients, to which the `chain` of steps is applied.
    `tuned` marks settings that the literature chose with the labels; `most_clusters` spares larger
    trials.
    """

    name: str
    steps: str
    features: str
    method: Any
    settings: dict[str, Any]
    chain: str = "symmetrize"
    tuned: bool = False
    most_clusters: int = 100

    def way(self) -> Pipeline:
        """Under a name that tells it from other recipes and from the methods that users type."""
        path = f"{self.method.__module__}.{self.method.__name__}"
        if isinstance(self.method, type):
            make: Any = estimator(":".join(path.rsplit(".", 1)))
        else:
            make = partial(_Coefficients, solve=self.method)
        grid = {setting: (value,) for setting, value in self.settings.items()}
        method = Method(f"{self.name}/{path}", "solved", make, grid)
        return Pipeline(method, self.features, self.settings, (self.chain,))


def by_name(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


class _Coefficients:
    """What a function says of the points; the clusters are left to the affinity steps."""

    def __init__(
        self, n_clusters: int, random_state: Any, n_jobs: int, *, solve: Any, **settings: Any
    ) -> None:
        self.solve = partial(solve, **settings)

    def fit_predict(self, X: Array) -> Array:
        found = self.solve(X)
        self.coef_, self.gap_ = getattr(found, "coef", found), getattr(found, "gap", np.nan)
        return np.zeros(len(X), dtype=int)


def run_recipes(
    problems: Iterable[tuple[Data, Sequence[str], Sequence[Recipe]]], options: Options
) -> pd.DataFrame:
    """Error in % of each recipe by trial and seed of k-means, with its gap and processor seconds.

    `problems` are data sets, with their trials and the recipes for them.
    """
    recipes: dict[str, Recipe] = {}
    ways: list[Pipeline] = []
    jobs: list[Job] = []
    for data, trials, chosen in problems:
        own = {recipe.way(): recipe for recipe in chosen}
        jobs += jobs_of(data, trials, list(own), options)
        ways += own
        recipes |= {way.method.name: recipe for way, recipe in own.items()}
    table = run_pipelines(ways, jobs, options)
    used = table.method.map(recipes)
    steps_seconds = table.get("steps_seconds", pd.Series(np.nan, table.index))
    found = {
        "n_clusters": table.n_clusters,
        "trial": table.trial,
        "recipe": [recipe.name for recipe in used],
        "steps": [recipe.steps for recipe in used],
        "tuned": [recipe.tuned for recipe in used],
        "seed": table.seed,
        "error": 100 * (1 - table.accuracy),
        "gap": table.gap_max,
        "seconds": table.fit_seconds + steps_seconds.fillna(0),
    }
    return pd.DataFrame(found | ({"note": table.note} if "note" in table else {}))


def stopped_admm(X: Array, *, alpha: float, circulated: bool = False) -> Solution:
    """ADMM is stopped where the literature stops it, short of the optimum."""
    lam = lam_from_alpha(X, alpha)
    return admm_self_expression(X, lam=lam, penalty=alpha, affine=True, circulated=circulated)


def outlier_admm(X: Array, *, alpha: float, **settings: Any) -> Solution:
    """The same with sparse outliers, unless `settings` let it run on."""
    lam, lam_outlier = outlier_lams_from_alpha(X, alpha)
    return admm_outlier_self_expression(
        X, lam=lam, lam_outlier=lam_outlier, penalty=alpha, **settings
    )


def sparse_by_alpha(X: Array, *, alpha: float, **settings: Any) -> Solution:
    """The certified optimum at the penalty of the literature."""
    return sparse_self_expression(X, lam=lam_from_alpha(X, alpha), **settings)


def centred_thresholding(X: Array, *, n_neighbors: int) -> Any:
    """Of homogeneous coordinates of the points less their mean."""
    points = homogeneous_coordinates(X - X.mean(axis=0))
    return ThresholdingSubspaceClustering(2, n_neighbors=n_neighbors).fit(points).coef_
