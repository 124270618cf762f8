import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import low_rank_self_expression, robust_low_rank_self_expression
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression.robust_low_rank import certify_robust, shrink_spectrum

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


def test_penalties_that_balance_residuals_settle():
    """With penalties that change for ever the gap stays at up to 0.12 on some of these."""
    for seed, lam in [(965, 4.921875), (218160, 2.8301), (81323, 4.3786)]:
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


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (25, 25)])
@pytest.mark.parametrize("share", [1e-7, 0.009, 0.011, 0.3, 1.0, 2.0])
def test_shrinks_singular_values_as_an_svd_does(shape, share):
    """Singular values from 1 to 1e-9, one of them 0, and thresholds on both sides of the switch."""
    rng = np.random.default_rng(0)
    n = min(shape)
    P, Q = (np.linalg.qr(rng.standard_normal((side, n)))[0] for side in shape)
    s = np.append(np.logspace(0, -9, n - 1), 0)
    Z = (P * s) @ Q.T
    expected = (P * np.maximum(s - share, 0)) @ Q.T
    # u |Z|^3 / threshold^2 is 1.1e-12 at the smallest threshold that a Gram matrix serves.
    assert_allclose(shrink_spectrum(Z, share), expected, rtol=0, atol=3e-12)
    assert not shrink_spectrum(np.zeros(shape), share).any()


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
def test_the_certificate_has_the_spectral_norm(shape):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((2, *shape)) * 1e5
    C = rng.standard_normal((shape[0], shape[0]))
    _, _, dual = certify_robust(X, C, X, Y, lam=1.0)
    assert_allclose(np.linalg.norm(dual @ X.T, 2), 1, rtol=1e-12)
