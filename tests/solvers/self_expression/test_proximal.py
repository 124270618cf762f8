import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import (
    least_squares_self_expression,
    low_rank_self_expression,
    low_rank_sparse_self_expression,
)
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression import proximal_self_expression


def ridge(Z, t):
    return Z / (1 + 2 * t)


def nuclear(Z, t):
    P, s, Qt = np.linalg.svd(Z)
    return (P * np.maximum(s - t, 0)) @ Qt


def no_diagonal(Z, t):
    return Z - np.diag(np.diag(Z))


@pytest.mark.parametrize(
    ("prox", "solve"),
    [
        (ridge, least_squares_self_expression),
        (
            [ridge, no_diagonal],
            lambda X, lam: least_squares_self_expression(X, lam=lam, zero_diagonal=True),
        ),
        (nuclear, low_rank_self_expression),
    ],
)
def test_reaches_the_closed_forms(X, prox, solve):
    found = proximal_self_expression(X, prox, lam=0.7, tol=1e-9)
    assert_allclose(found.coef, solve(X, lam=0.7), atol=1e-6)
    assert found.converged


def low_rank_sparse_objective(X, C, lam, beta):
    norms = np.linalg.norm(C, "nuc") + beta * np.abs(C).sum()
    return ((X - C @ X) ** 2).sum() + lam * norms


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("lam", "beta"), [(0.3, 0.5), (2.0, 0.1), (0.01, 3.0)])
def test_low_rank_sparse_agrees_with_the_oracle(X, lam, beta):
    found = low_rank_sparse_self_expression(X, lam=lam, beta=beta, tol=2e-7)
    assert (np.diag(found.coef) == 0).all()
    objective = low_rank_sparse_objective(X, found.coef, lam, beta)
    assert_allclose(found.objective, objective, rtol=1e-12)
    expected = oracle.low_rank_sparse_self_expression(X, lam=lam, beta=beta)
    np.fill_diagonal(expected, 0)
    excess = objective - low_rank_sparse_objective(X, expected, lam, beta)
    # What the gap allows, and the accuracy of the oracle.
    assert -1e-7 < excess < 2e-7 * (X**2).sum() + 1e-7


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    lam=st.floats(0.05, 5),
    beta=st.floats(0.05, 5),
    max_iter=st.sampled_from([1, 7, 40, 5000]),
)
def test_low_rank_sparse_gap_is_never_smaller_than_the_suboptimality(
    points, answer, data, lam, beta, max_iter
):
    X = data.draw(points)
    expected = answer(oracle.low_rank_sparse_self_expression, X, lam=lam, beta=beta)
    np.fill_diagonal(expected, 0)
    best = low_rank_sparse_objective(X, expected, lam, beta)
    found = low_rank_sparse_self_expression(X, lam=lam, beta=beta, max_iter=max_iter)
    assert found.gap >= (found.objective - best) / (X**2).sum() - 1e-12
