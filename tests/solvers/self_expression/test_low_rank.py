import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import low_rank_self_expression
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression import low_rank_gap


def objective(X, C, lam):
    return ((X - C @ X) ** 2).sum() + lam * np.linalg.norm(C, "nuc")


@pytest.mark.parametrize("lam", [0.05, 2.0])
def test_agrees_with_the_oracle(X, lam):
    found = low_rank_self_expression(X, lam=lam)
    expected = oracle.low_rank_self_expression(X, lam=lam)
    assert abs(objective(X, found, lam) - objective(X, expected, lam)) < 1e-7
    assert low_rank_gap(X, found, lam=lam) < 1e-13


def test_certificate_e3k(X):
    """``(2 / lam) (X - CX) X^T = U1 U1^T + W``: a subgradient of the nuclear norm at C."""
    lam = 0.5
    C = low_rank_self_expression(X, lam=lam)
    values, vectors = np.linalg.eigh(C)
    U1 = vectors[:, values > 1e-9]
    W = (2 / lam) * (X - C @ X) @ X.T - U1 @ U1.T
    assert np.abs(U1.T @ W).max(initial=0) < 1e-10
    assert np.abs(W @ U1).max(initial=0) < 1e-10
    assert np.linalg.norm(W, 2) <= 1 + 1e-10


def test_noiseless_limit_is_a_projection(X):
    C = low_rank_self_expression(X, lam=0)
    assert_allclose(C @ X, X, atol=1e-12)
    assert_allclose(C @ C, C, atol=1e-12)
    assert_allclose(C, low_rank_self_expression(X, lam=1e-13), atol=1e-9)
    assert low_rank_gap(X, C, lam=0) < 1e-12
    assert_allclose(C, oracle.low_rank_self_expression(X, lam=0), atol=1e-4)


def test_favaro_vidal_form():
    """CL-7: the polynomial thresholding of ``|C|_* + tau/2 |X - CX|_F^2`` at ``tau = 2 / lam``."""
    lam = 0.7
    X = np.random.default_rng(0).standard_normal((8, 5))
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    tau = 2 / lam
    kept = s > 1 / np.sqrt(tau)
    expected = (U[:, kept] * (1 - 1 / (tau * s[kept] ** 2))) @ U[:, kept].T
    assert_allclose(low_rank_self_expression(X, lam=lam), expected, atol=1e-12)


def test_the_penalty_lowers_the_rank_erratum_e3l():
    X = np.random.default_rng(0).standard_normal((8, 5))
    s = np.linalg.svd(X, compute_uv=False)
    for lam, rank in ((1e-3, 5), (2 * s[2] * s[3], 3), (2 * s[0] ** 2, 0)):
        C = low_rank_self_expression(X, lam=lam)
        assert (np.linalg.svd(C, compute_uv=False) > 1e-12).sum() == rank


def test_erratum_e3k_printed_threshold_is_not_the_optimum():
    X = np.random.default_rng(0).standard_normal((8, 5))
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    lam = 0.5
    printed = (U * np.maximum(s - lam, 0)) @ U.T
    best = objective(X, oracle.low_rank_self_expression(X, lam=lam), lam)
    assert objective(X, printed, lam) > best + 1
    assert objective(X, low_rank_self_expression(X, lam=lam), lam) - best < 1e-7
    # E3-l: as lam -> 0 the printed form tends to U diag(s) U^T, which does not reconstruct X.
    assert np.abs((U * s) @ U.T @ X - X).max() > 1


@settings(max_examples=100, deadline=None)
@given(data=st.data(), lam=st.floats(1e-3, 50), near=st.booleans())
def test_gap_bounds_any_coefficients(points, data, lam, near):
    X = data.draw(points)
    best = low_rank_self_expression(X, lam=lam)
    C = np.random.default_rng(0).standard_normal((9, 9))
    C = best + 1e-3 * C if near else C
    excess = (objective(X, C, lam) - objective(X, best, lam)) / (X**2).sum()
    gap = low_rank_gap(X, C, lam=lam)
    assert gap >= excess - 1e-12 * (1 + objective(X, C, lam) / (X**2).sum())
    if near:
        assert gap < 1


def test_gap_at_zero_penalty_sees_both_faults():
    X = np.random.default_rng(0).standard_normal((6, 4))
    best = low_rank_self_expression(X, lam=0)
    assert low_rank_gap(X, 0.9 * best, lam=0) == pytest.approx(0.1)
    assert low_rank_gap(X, np.eye(6), lam=0) == pytest.approx(0.5)


def test_zero_data():
    assert_allclose(low_rank_self_expression(np.zeros((3, 2)), lam=0), 0)
    assert low_rank_gap(np.zeros((3, 2)), np.zeros((3, 3)), lam=1.0) == 0
