"""Coefficient matrices sorted by class, solved beside learned.

Points of five classes, 24 each. Lasso at the penalty that makes a point's code zero, over 50,
solved and by 10 unrolled layers; the elastic net at 2/200, solved and by a self-expressive network.
Learned ones are trained on these points. A row of the table is a row of a matrix.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from shared.pictures import draw_coefficients
from shared.points import NOISY, prose, run_seeded, shuffled_points
from twinsolve.bench.clustering.data import Data
from twinsolve.bench.clustering.summary import folded, grouped_lines
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines
from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.metrics import subspace_preserving_error
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.unrolled import clustering

Array = np.ndarray

_N_CLASSES, _A_CLASS = 5, 24
_GAMMA = 200.0


def coefficient_study(
    data: Sequence[str] = (NOISY, "digits", "yaleb-10"), *, max_iter: int = 1000
) -> Study:
    """Pictures of coefficients: two learned methods, each beside the problem that it approaches.

    Parameters
    ----------
    data : sequence of str
        Names as `find_data` knows them; those whose files are missing are left out.
    max_iter : int, default=1000
        Training steps of the self-expressive network; the unrolled layers take a fifth.
    """
    jobs = [{"data": name, "max_iter": max_iter} for name in data]
    run = run_seeded(sorted_coefficients, jobs, data)
    figures = {"coefficients.png": draw_coefficients}
    return Study("coefficients", prose(__doc__), run, coefficient_lines, figures)


def sorted_coefficients(*, data: Data, max_iter: int, seed: int) -> list[dict[str, Any]]:
    """A row for each method and point, the points sorted by class."""
    X, y = shuffled_points(data, seed=seed)
    rows = np.concatenate([np.flatnonzero(y == label)[:_A_CLASS] for label in range(_N_CLASSES)])
    X, y = X[rows], y[rows]
    found: list[dict[str, Any]] = []
    for problem, coefs in _matrices(X, max_iter, seed):
        best = None
        for name, coef in coefs.items():
            C = csr_array(coef).toarray()
            objective = lasso_objective(X, X, C, **problem).mean()
            best = best or objective
            about = {
                "data": data.name,
                "method": name,
                "objective_ratio": float(objective / best),
                "nonzeros": float((C != 0).sum(axis=1).mean()),
                "preserving_error": 100 * subspace_preserving_error(C, y),
            }
            found += [
                about | {"label": int(label), "coefficients": [float(f"{c:.3g}") for c in row]}
                for label, row in zip(y, C, strict=True)
            ]
    return found


def _matrices(X: Array, max_iter: int, seed: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each problem its penalty, and coefficients by name, the solved ones first."""
    unrolled = clustering.UnrolledSubspaceClustering(
        _N_CLASSES, gamma=50.0, max_iter=max_iter // 5, random_state=seed
    )
    network = clustering.SelfExpressiveSubspaceClustering(
        _N_CLASSES, gamma=_GAMMA, max_iter=max_iter, random_state=seed
    )
    lasso: dict[str, Any] = {"lam": lam_max(X, X, zero_diagonal=True) / unrolled.gamma}
    net: dict[str, Any] = {"lam": 2 / _GAMMA, "l1_ratio": network.l1_ratio}
    lasso_coefs = {
        "Lasso, solved": sparse_self_expression(X, **lasso).coef,
        "unrolled, K = 10, learned": unrolled.fit(X).coef_,
    }
    net_coefs = {
        "elastic net, solved": sparse_self_expression(X, **net).coef,
        "SENet, learned": network.fit(X).coef_,
    }
    return [(lasso, lasso_coefs), (net, net_coefs)]


def coefficient_lines(table: pd.DataFrame) -> Lines:
    """A line a matrix."""
    cells = {
        "data": "data",
        "method": "method",
        "objective / optimum": folded("objective_ratio", "max", ".3f"),
        "non-zeros a row": folded("nonzeros", "max", ".1f"),
        "ME-2, %": folded("preserving_error", "max", ".1f"),
    }
    return grouped_lines(table, ["data", "method"], cells)
