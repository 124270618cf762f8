import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import homogeneous_coordinates, make_union_of_subspaces
from twinsolve.solvers import robust_low_rank_self_expression
from twinsolve.solvers.self_expression import admm_low_rank_self_expression

# The iterations of the literature are run for their iterates: most end short of the optimum.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def literal_column_form(X, lam, p, growth, n_iter):
    """The inexact augmented Lagrangian of the literature, columns as points, no row space."""
    A, N = X.T, len(X)
    E, Y = np.zeros((2, *A.shape))
    Z, J, W = np.zeros((3, N, N))
    for _ in range(n_iter):
        U, s, Vt = np.linalg.svd(Z + W / p)
        J = U @ np.diag(np.maximum(s - 1 / p, 0)) @ Vt
        right = A.T @ A - A.T @ E + J + (A.T @ Y - W) / p
        Z = np.linalg.solve(A.T @ A + np.eye(N), right)
        E = A - A @ Z + Y / p
        for column in E.T:
            size = np.linalg.norm(column)
            column *= max(size - lam / p, 0) / size if size > 0 else 0
        Y = Y + p * (A - A @ Z - E)
        W = W + p * (Z - J)
        p = min(growth * p, 1e10)
    return Z.T


def noisy_subspaces():
    X, _ = make_union_of_subspaces(
        20, n_subspaces=2, dimension=3, n_features=20, noise=0.1, random_state=0
    )
    return homogeneous_coordinates(X)


@pytest.mark.parametrize(("penalty", "growth"), [(1e-2, 1.1), (1.0, 1.0)])
def test_is_the_printed_iteration_transposed(X, penalty, growth):
    settings = {"lam": 0.4, "penalty": penalty, "growth": growth}
    found = admm_low_rank_self_expression(X, tol=1e-300, max_iter=60, **settings)
    assert np.abs(found.coef).max() > 1e-3
    assert_allclose(found.coef, literal_column_form(X, 0.4, penalty, growth, 60), atol=1e-9)
    assert found.n_iter == 60
    assert not found.converged


def test_growing_penalty_stops_short_of_the_optimum_and_a_fixed_one_does_not():
    X = noisy_subspaces()
    best = robust_low_rank_self_expression(X, lam=4.0, tol=1e-8)
    assert best.converged
    grown = admm_low_rank_self_expression(X, lam=4.0)
    assert "stopped by its own rule" in grown.message
    assert not grown.converged
    assert grown.gap > 0.05
    assert grown.objective > (1 + 5e-4) * best.objective
    further = admm_low_rank_self_expression(X, lam=4.0, tol=1e-14)
    assert further.n_iter > grown.n_iter + 50
    assert further.gap > 0.9 * grown.gap
    fixed = admm_low_rank_self_expression(X, lam=4.0, penalty=10.0, growth=1.0)
    assert "stopped by its own rule" in fixed.message
    assert fixed.gap < 1e-6
    assert abs(fixed.objective / best.objective - 1) < 1e-6


def test_history_holds_every_iterate(X):
    found = admm_low_rank_self_expression(X, lam=0.4, history=True)
    assert set(found.history) == {"objective", "gap"}
    for k in (1, 100, int(found.n_iter)):
        at = admm_low_rank_self_expression(X, lam=0.4, max_iter=k)
        # The history is of C U in the row space, the rest of C: they round apart.
        assert_allclose(found.history["objective"][k - 1], at.objective, rtol=1e-13)
        assert_allclose(found.history["gap"][k - 1], at.gap, atol=1e-13)
    assert len(found.history["gap"]) == found.n_iter
    assert at.history is None
