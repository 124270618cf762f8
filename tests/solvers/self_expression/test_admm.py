import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.self_expression import admm_self_expression, lam_from_alpha

# The iterations of the literature are run for their iterates: most end short of the optimum.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def literal_column_form(X, lam, p, affine, circulated=False, tol=0.0, max_iter=200):
    """CL-5 as printed, columns as points: the codes, the iterations and what the stop judges.

    Z's diagonal is dropped after the solve, or only where the stop compares Z with C.
    """
    N, data = len(X), 2 / lam * X @ X.T
    one = np.ones((N, 1))
    C, L, l3 = np.zeros((N, N)), np.zeros((N, N)), np.zeros((N, 1))
    A = data + p * np.eye(N) + affine * p * one @ one.T
    n_iter, missed = 0, np.inf
    while missed >= tol and n_iter < max_iter:
        Z = np.linalg.solve(A, data + p * C - L + affine * p * one @ (one - l3 / p).T)
        off = Z - np.diag(np.diag(Z))
        Z = off if circulated else Z
        C = np.sign(Z + L / p) * np.maximum(np.abs(Z + L / p) - 1 / p, 0)
        np.fill_diagonal(C, 0)
        L, l3 = L + p * (Z - C), l3 + p * (Z.T @ one - one)
        missed = max(np.abs(off - C).max(), affine * np.abs(Z.T @ one - one).max())
        n_iter += 1
    return C.T, n_iter, missed


@pytest.mark.parametrize("affine", [False, True])
def test_is_the_printed_iteration_transposed(X, affine):
    found = admm_self_expression(X, lam=0.4, penalty=3.0, affine=affine, tol=1e-300, max_iter=15)
    expected, _, _ = literal_column_form(X, 0.4, 3.0, affine, max_iter=15)
    assert_allclose(found.coef, expected, atol=1e-9)
    assert found.n_iter.tolist() == [15] * len(X)
    assert not found.converged[X.any(axis=1)].any()
    assert found.message.startswith("ADMM ended at max_iter=15, before its own rule")


@pytest.mark.parametrize("affine", [False, True])
def test_the_paper_form_reaches_the_optimum_and_the_circulated_form_does_not(affine):
    X = np.random.default_rng(0).standard_normal((20, 6))
    settings = {"lam": lam_from_alpha(X, 20.0), "affine": affine}
    best = sparse_self_expression(X, tol=1e-8, **settings).objective.sum()
    run = {"penalty": 20.0, "tol": 1e-300, "max_iter": 10_000, **settings}
    paper = admm_self_expression(X, **run)
    circulated = admm_self_expression(X, circulated=True, **run)
    assert abs(paper.objective.sum() / best - 1) < 1e-6
    assert paper.gap.max() < 1e-6
    assert circulated.objective.sum() > 1.04 * best
    assert circulated.gap.max() > 1e-2


@pytest.mark.parametrize(
    ("affine", "circulated", "p"),
    [(False, False, 20.0), (False, True, 20.0), (True, False, 2000.0), (True, True, 20.0)],
)
def test_both_forms_stop_where_the_literal_loop_does(affine, circulated, p):
    """At the larger penalty Z = C long before the rows of Z sum to one."""
    X = np.random.default_rng(0).standard_normal((12, 5))
    lam = lam_from_alpha(X, 20.0)
    expected, n_iter, missed = literal_column_form(X, lam, p, affine, circulated, tol=2e-4)
    found = admm_self_expression(X, lam=lam, penalty=p, affine=affine, circulated=circulated)
    assert found.n_iter.tolist() == [n_iter] * 12
    stopped = f"ADMM was stopped by its own rule after {n_iter} iterations"
    assert found.message.startswith(stopped) == (missed < 2e-4)
    assert_allclose(found.coef, expected, atol=1e-9)
