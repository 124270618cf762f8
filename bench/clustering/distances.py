"""How far coefficients lie from the certified solution of the problem that they approximate."""

from typing import Any

import numpy as np

from ...solvers import coefficient_distance
from ...solvers.solution import Array
from .methods import Method
from .steps import DENSE_ROWS

COLUMNS = ("distance", "cosine", "support_f1", "objective_gap")


def distance_to_certified(method: Method, model: Any, X: Array) -> dict[str, float]:
    """ME-4 of the model's coefficients; NaN where the method solves, or approximates nothing."""
    nothing = dict.fromkeys(COLUMNS, np.nan)
    if method.certified is None or len(X) > DENSE_ROWS:
        return nothing
    solution, objective = method.certified(model, X)
    squares = (X.astype(np.float64) ** 2).sum(axis=1)
    excess = objective(model.coef_) - solution.objective
    gaps = excess / np.where(squares > 0, squares, 1)
    found = coefficient_distance(model.coef_, solution.coef)
    return {name: found[name] for name in COLUMNS[:3]} | {"objective_gap": float(gaps.mean())}
