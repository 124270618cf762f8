"""Recipes of the literature: a method on its features with the affinity steps that go with it."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ....datasets import homogeneous_coordinates
from ....solvers import ThresholdingSubspaceClustering, sparse_self_expression
from ....solvers.self_expression import (
    admm_outlier_self_expression,
    admm_self_expression,
    lam_from_alpha,
    outlier_lams_from_alpha,
)
from ....solvers.solution import Array, Solution
from ...jobs import Job, Options
from ..clusters import Way, jobs_of, run_ways
from ..methods import Method, estimator


@dataclass(frozen=True)
class Recipe:
    """As the head of ``recipes.toml`` says."""

    name: str
    steps: str
    features: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    chain: str = "symmetrize"
    tuned: bool = False
    most_clusters: int = 100

    def way(self) -> Way:
        """Under a name that tells it from other recipes and from the methods that users type."""
        module, _, name = self.method.rpartition(":")
        found = getattr(import_module(module or "twinsolve.solvers", __package__), name)
        if isinstance(found, type):
            make: Any = estimator(f"{found.__module__}:{name}")
        else:
            make = partial(_Coefficients, solve=found)
        grid = {setting: (value,) for setting, value in self.settings.items()}
        method = Method(f"{self.name}/{found.__module__}.{name}", "solved", make, grid)
        return Way(method, self.features, self.settings, (self.chain,))


def load_recipes(study: str) -> dict[str, Recipe]:
    """The recipes of a study by their names."""
    recipes = tomllib.loads((Path(__file__).parent / "recipes.toml").read_text())[study]
    return {given["name"]: Recipe(**given) for given in recipes}


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
    problems: Iterable[tuple[str, Sequence[str], Sequence[Recipe]]], options: Options
) -> pd.DataFrame:
    """Error in % of each recipe by trial and seed of k-means, with its gap and processor seconds.

    `problems` are data sets, with their trials and the recipes for them.
    """
    recipes: dict[str, Recipe] = {}
    ways: list[Way] = []
    jobs: list[Job] = []
    for data, trials, chosen in problems:
        own = {recipe.way(): recipe for recipe in chosen}
        jobs += jobs_of(data, trials, list(own), options)
        ways += own
        recipes |= {way.method.name: recipe for way, recipe in own.items()}
    table = run_ways(ways, jobs, options)
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
