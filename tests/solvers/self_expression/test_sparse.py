import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.sparse_coding import duality_gap, lasso_objective


@pytest.mark.parametrize(("l1_ratio", "nonnegative"), [(1.0, False), (1.0, True), (0.3, False)])
def test_reaches_the_objective_of_the_oracle(X, l1_ratio, nonnegative):
    settings = {"lam": 0.6, "l1_ratio": l1_ratio, "nonnegative": nonnegative}
    found = sparse_self_expression(X, tol=1e-10, **settings)
    expected = oracle.sparse_self_expression(X, **settings)
    best = lasso_objective(X, X, expected, lam=0.6, l1_ratio=l1_ratio)
    assert_allclose(found.objective, best, atol=1e-7)
    assert_allclose(
        found.gap, duality_gap(X, X, found.coef, zero_diagonal=True, **settings), atol=1e-14
    )
    assert found.converged.all()
    assert (found.coef.diagonal() == 0).all()
    assert found.coef.min() >= 0 or not nonnegative


def test_differences_to_softmax_attention():
    """EQUATIONS SE-5.3: signed, rows not of sum one, and every weight depends on all tokens."""
    X = np.random.default_rng(0).standard_normal((8, 5))
    C = sparse_self_expression(X, lam=0.3, tol=1e-12).coef.toarray()
    assert C.min() < -1e-3
    assert np.abs(C.sum(axis=1) - 1).max() > 0.1
    moved = X.copy()
    moved[7] += 0.5
    D = sparse_self_expression(moved, lam=0.3, tol=1e-12).coef.toarray()
    assert np.abs(C - D)[:7, :7].max() > 1e-2
