import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from twinsolve.solvers import outlier_self_expression
from twinsolve.solvers.self_expression import admm_outlier_self_expression, outlier_lams_from_alpha

# The iterations of the literature are run for their iterates: most end short of the optimum.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def shrink(Z, t):
    return np.sign(Z) * np.maximum(np.abs(Z) - t, 0)


def literal_paper_form(X, lam, lam_outlier, p, n_iter):
    """The appendix of the paper, columns as points, without the affine terms."""
    Y, N = X.T, len(X)
    lam_z, lam_e = 2 / lam, lam_outlier / lam
    E, C, delta = np.zeros_like(Y), np.zeros((N, N)), np.zeros((N, N))
    for _ in range(n_iter):
        right = lam_z * Y.T @ (Y - E) + p * C - delta
        A = np.linalg.solve(lam_z * Y.T @ Y + p * np.eye(N), right)
        J = shrink(A + delta / p, 1 / p)
        C = J - np.diag(np.diag(J))
        E = shrink(Y - Y @ A, lam_e / lam_z)
        delta = delta + p * (A - C)
    return C.T


def literal_circulated_form(X, lam, lam_outlier, p, n_iter):
    """On the whole dictionary, with the inverse of its size."""
    Y, N, D = X.T, len(X), X.shape[1]
    mu, g = 2 / lam, lam_outlier / lam
    P = np.hstack([Y, np.eye(D) / g])
    inverse = np.linalg.inv(mu * P.T @ P + p * np.eye(N + D))
    C, L, L1 = np.zeros((N + D, N)), np.zeros((N + D, N)), np.zeros((D, N))
    for _ in range(n_iter):
        Z = inverse @ (mu * P.T @ (Y + L1 / mu) + p * (C - L / p))
        np.fill_diagonal(Z[:N], 0)
        C = shrink(Z + L / p, 1 / p)
        np.fill_diagonal(C[:N], 0)
        L1 = L1 + mu * (Y - P @ Z)
        L = L + p * (Z - C)
    return C[:N].T


def corrupted():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 6))
    X[rng.random(X.shape) < 0.1] += 5
    return X


@pytest.mark.parametrize("circulated", [False, True])
def test_is_the_printed_iteration_transposed(X, circulated):
    literal = literal_circulated_form if circulated else literal_paper_form
    settings = {"lam": 0.4, "lam_outlier": 0.9, "penalty": 3.0}
    found = admm_outlier_self_expression(
        X, circulated=circulated, tol=1e-300, max_iter=25, **settings
    )
    expected = literal(X, 0.4, 0.9, 3.0, 25)
    assert np.abs(expected).max() > 0.05
    assert_allclose(found.coef, expected, atol=1e-9)
    assert found.n_iter.tolist() == [25] * len(X)
    assert "ADMM ended at max_iter=25" in found.message


def test_the_paper_form_reaches_the_certified_optimum_and_the_circulated_form_does_not():
    X = corrupted()
    lam, lam_outlier = outlier_lams_from_alpha(X, 5.0)
    settings = {"lam": lam, "lam_outlier": lam_outlier}
    best = outlier_self_expression(X, tol=1e-10, **settings)
    run = {"penalty": 5.0, "tol": 1e-300, "max_iter": 5000, **settings}
    paper = admm_outlier_self_expression(X, **run)
    assert paper.gap.max() < 1e-6
    assert_allclose(paper.objective, best.objective, rtol=1e-6)
    assert_allclose(paper.coef, best.coef.toarray(), atol=1e-4)
    circulated = admm_outlier_self_expression(X, circulated=True, **run)
    assert circulated.objective.sum() > 1.03 * best.objective.sum()
    assert circulated.gap.max() > 1e-2


def test_the_circulated_form_solves_the_problem_without_noise():
    """``min |c|_1 + g |e|_1`` subject to ``x = c X + e``, as linear programs; for any lam."""
    X, g = corrupted()[:10], 0.4
    others = [np.vstack([np.delete(X, i, axis=0), np.eye(6) / g]).T for i in range(10)]
    best = [
        linprog(np.ones(2 * A.shape[1]), A_eq=np.hstack([A, -A]), b_eq=x).fun
        for A, x in zip(others, X, strict=True)
    ]
    for lam in (0.5, 3.0):
        C = admm_outlier_self_expression(
            X, lam=lam, lam_outlier=g * lam, penalty=5.0, circulated=True, tol=1e-9, max_iter=20_000
        ).coef
        objective = np.abs(C).sum(axis=1) + g * np.abs(X - C @ X).sum(axis=1)
        assert_allclose(objective, best, rtol=1e-5)
