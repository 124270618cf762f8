"""Recipes of the literature: a method on its features with the affinity steps that go with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ....solvers.solution import Array
from ...jobs import Job, Options
from ..clusters import Way, jobs_of, run_ways
from ..methods import Method, estimator

_SOLVERS = "twinsolve.solvers"


@dataclass(frozen=True)
class Recipe:
    """`steps` says in words, and by equation ids, what is done: `chain` is what cuts the graph.

    `method` names an estimator of `solvers`, or is a function of the points that returns a
    `Solution` or coefficients. `tuned` marks settings that the literature chose with the labels.
    """

    name: str
    steps: str
    features: str
    method: str | Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    chain: str = "symmetrize"
    tuned: bool = False

    def way(self, study: str) -> Way:
        """Under a name of its own, apart from those of the methods that users type."""
        if callable(self.method):
            make: Any = partial(_Coefficients, solve=partial(self.method, **self.settings))
        else:
            path = self.method if ":" in self.method else f"{_SOLVERS}:{self.method}"
            make = estimator(path, **self.settings)
        method = Method(f"{study}/{self.name}", "solved", make)
        return Way(method, self.features, {}, (self.chain,))


class _Coefficients:
    """What a function says of the points; the clusters are left to the affinity steps."""

    def __init__(self, n_clusters: int, random_state: Any, n_jobs: int, *, solve: Any) -> None:
        self.solve = solve

    def fit_predict(self, X: Array) -> Array:
        found = self.solve(X)
        self.coef_, self.gap_ = getattr(found, "coef", found), getattr(found, "gap", np.nan)
        return np.zeros(len(X), dtype=int)


def run_recipes(
    study: str,
    problems: Iterable[tuple[str, Sequence[str], Sequence[Recipe]]],
    options: Options,
) -> pd.DataFrame:
    """Error in % of each recipe by trial and seed of k-means, with its gap and processor seconds.

    `problems` are data sets, with their trials and the recipes for them.
    """
    ways: dict[str, Way] = {}
    jobs: list[Job] = []
    for data, trials, recipes in problems:
        own = {recipe.name: recipe.way(study) for recipe in recipes}
        jobs += jobs_of(data, trials, list(own.values()), options)
        ways |= own
    table = run_ways(list(ways.values()), jobs, options)
    about = {recipe.name: recipe for _, _, recipes in problems for recipe in recipes}
    names = table.method.str.removeprefix(f"{study}/")
    steps_seconds = table.get("steps_seconds", pd.Series(np.nan, table.index))
    found = {
        "n_clusters": table.n_clusters,
        "trial": table.trial,
        "recipe": names,
        "steps": names.map(lambda name: about[name].steps),
        "tuned": names.map(lambda name: about[name].tuned),
        "seed": table.seed,
        "error": 100 * (1 - table.accuracy),
        "gap": table.gap_max,
        "seconds": table.fit_seconds + steps_seconds.fillna(0),
    }
    return pd.DataFrame(found | ({"note": table.note} if "note" in table else {}))
