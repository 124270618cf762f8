import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import low_rank_self_expression, robust_low_rank_self_expression
from twinsolve.solvers.oracles import self_expression as oracle

from ..conftest import make_points


def objective(X, C, lam):
    return np.linalg.norm(C, "nuc") + lam * np.linalg.norm(X - C @ X, axis=1).sum()


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("lam", [0.1, 0.6])
def test_reaches_the_objective_of_the_oracle(X, lam):
    found = robust_low_rank_self_expression(X, lam=lam, tol=1e-8)
    best = objective(X, oracle.robust_low_rank_self_expression(X, lam=lam), lam)
    # The gap of the answer and that of the oracle, both about 1e-8 of the objective.
    assert abs(found.objective - best) < 2e-7 * best
    assert_allclose(found.objective, objective(X, found.coef, lam), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), lam=st.floats(0.02, 5), scale=st.sampled_from([1e-3, 1, 1e3]))
def test_certificate_is_a_feasible_dual_point(points, data, lam, scale):
    X = data.draw(points) * scale
    lam /= scale
    found = robust_low_rank_self_expression(X, lam=lam)
    assert np.linalg.norm(found.dual, axis=1).max() <= lam * (1 + 1e-12)
    assert np.linalg.norm(found.dual @ X.T, 2) <= 1 + 1e-12
    gap = (found.objective - (X * found.dual).sum()) / found.objective
    assert_allclose(found.gap, gap, atol=1e-14)
    assert found.converged


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@settings(max_examples=25, deadline=None)
@given(data=st.data(), lam=st.floats(0.05, 2), max_iter=st.sampled_from([1, 10, 30, 5000]))
def test_gap_is_never_smaller_than_the_suboptimality(points, answer, data, lam, max_iter):
    X = data.draw(points)
    best = objective(X, answer(oracle.robust_low_rank_self_expression, X, lam=lam), lam)
    found = robust_low_rank_self_expression(X, lam=lam, tol=1e-8, max_iter=max_iter)
    assert found.gap >= (found.objective - best) / found.objective - 1e-14
    assert found.n_iter <= max_iter


@pytest.mark.parametrize(("seed", "lam"), [(965, 4.921875), (218160, 2.8301), (81323, 4.3786)])
def test_penalties_that_balance_residuals_settle(seed, lam):
    """With penalties that change for ever the gap stays at up to 0.12 on some of these."""
    found = robust_low_rank_self_expression(make_points("affine", seed), lam=lam)
    assert found.converged
    assert found.n_iter < 2500


def test_limits(X):
    """No outliers above the largest row of the dual of the noiseless problem; C = 0 below."""
    largest = np.linalg.norm(np.linalg.pinv(X), axis=0).max()
    found = robust_low_rank_self_expression(X, lam=1.01 * largest, tol=1e-9)
    assert_allclose(found.coef, low_rank_self_expression(X, lam=0), atol=1e-4)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / np.where(norms > 0, norms, 1)
    smallest = 1 / np.linalg.norm(unit @ X.T, 2)
    assert np.abs(robust_low_rank_self_expression(X, lam=0.99 * smallest).coef).max() < 1e-9
    assert np.abs(robust_low_rank_self_expression(X, lam=1.1 * smallest).coef).max() > 1e-4


def test_zero_data_float32_and_a_warning():
    zero = robust_low_rank_self_expression(np.zeros((3, 2)), lam=1.0)
    assert zero.gap == 0
    assert not zero.coef.any()
    X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    assert robust_low_rank_self_expression(X, lam=0.3).coef.dtype == np.float32
    with pytest.warns(ConvergenceWarning, match="increase max_iter or tol"):
        found = robust_low_rank_self_expression(X, lam=0.3, max_iter=1)
    assert not found.converged
