"""How far coefficients lie from the certified solution of the problem that they approximate."""

from typing import Any

import numpy as np
from sklearn.preprocessing import normalize

from ...solvers import sparse_self_expression
from ...solvers.metrics import coefficient_distance
from ...solvers.solution import Array
from ...solvers.sparse_coding import lasso_objective
from .methods import Method
from .steps import DENSE_ROWS

_COLUMNS = ("distance", "cosine", "support_f1")


def distance_to_certified(method: Method, model: Any, X: Array) -> dict[str, float]:
    """ME-4 of the model's coefficients; NaN where the method solves, or approximates nothing."""
    if method.problem is None or len(X) > DENSE_ROWS:
        return dict.fromkeys((*_COLUMNS, "objective_gap"), np.nan)
    X = normalize(X) if method.unit_rows else X
    problem = method.problem(model, X)
    solution = sparse_self_expression(X, **problem)
    found = coefficient_distance(model.coef_, solution.coef)
    excess = lasso_objective(X, X, model.coef_, **problem) - solution.objective
    squares = (X.astype(np.float64) ** 2).sum(axis=1)
    gaps = excess / np.where(squares > 0, squares, 1)
    return {name: found[name] for name in _COLUMNS} | {"objective_gap": float(gaps.mean())}
