import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import least_squares_self_expression
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression import least_squares_residual


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_agrees_with_the_oracle(X, zero_diagonal):
    settings = {"lam": 0.7, "zero_diagonal": zero_diagonal}
    expected = oracle.least_squares_self_expression(X, **settings)
    # The objective is 0.7-strongly convex, the oracle's gap 1e-11 of about 50: 3e-5 in C.
    assert_allclose(least_squares_self_expression(X, **settings), expected, atol=3e-5)


def test_the_three_printed_closed_forms_are_one(X):
    lam = 0.3
    G = X @ X.T
    C = least_squares_self_expression(X, lam=lam)
    assert_allclose(C, np.linalg.solve(G + lam * np.eye(len(X)), G), atol=1e-10)
    inner = X.T @ X + lam * np.eye(X.shape[1])
    assert_allclose(C, X @ np.linalg.solve(inner, X.T), atol=1e-10)
    U, s, _ = np.linalg.svd(X, full_matrices=False)  # points are rows here
    assert_allclose(C, U * (s**2 / (s**2 + lam)) @ U.T, atol=1e-10)
    assert least_squares_residual(X, C, lam=lam).max() < 1e-10


def test_zero_diagonal_is_leave_one_out_ridge(X):
    lam = 0.3
    C = least_squares_self_expression(X, lam=lam, zero_diagonal=True)
    assert (C.diagonal() == 0).all()
    for i, x in enumerate(X):
        others = np.delete(X, i, axis=0)
        ridge = np.linalg.solve(others @ others.T + lam * np.eye(len(others)), others @ x)
        assert_allclose(np.delete(C[i], i), ridge, atol=1e-10)
    assert least_squares_residual(X, C, lam=lam, zero_diagonal=True).max() < 1e-10


def test_a_tiny_penalty_loses_no_digits():
    for shape in [(9, 5), (5, 9), (6, 6)]:
        X = np.random.default_rng(0).standard_normal(shape)
        lam = 1e-9
        C = least_squares_self_expression(X, lam=lam, zero_diagonal=True)
        others = [np.delete(X, i, axis=0) for i in range(len(X))]
        for x, Z, row in zip(X, others, [np.delete(c, i) for i, c in enumerate(C)], strict=True):
            stacked = np.vstack([Z.T, np.sqrt(lam) * np.eye(len(Z))])
            expected = np.linalg.lstsq(stacked, np.r_[x, np.zeros(len(Z))], rcond=None)[0]
            assert_allclose(row, expected, rtol=1e-6, atol=1e-7)


def test_large_lam_is_the_scaled_gram_matrix_se14():
    X = np.random.default_rng(0).standard_normal((8, 5))
    s1 = np.linalg.norm(X, 2)
    for lam in (10.0, 1e3, 1e5):
        C, limit = least_squares_self_expression(X, lam=lam), X @ X.T / lam
        distance = np.linalg.norm(C - limit, 2)
        assert_allclose(distance, s1**4 / (lam * (s1**2 + lam)), rtol=1e-9)
        assert_allclose(distance / np.linalg.norm(C, 2), s1**2 / lam, rtol=1e-9)
    assert_allclose(limit.diagonal(), (X**2).sum(axis=1) / lam, rtol=1e-12)


def test_erratum_e3j_printed_form_is_not_the_problem_with_zero_diagonal():
    X = np.random.default_rng(0).standard_normal((8, 5))
    lam = 0.5

    def objective(C):
        return ((X - C @ X) ** 2).sum() + lam * (C**2).sum()

    printed = least_squares_self_expression(X, lam=lam)
    assert printed.diagonal().min() > 0.1
    np.fill_diagonal(printed, 0)
    best = objective(oracle.least_squares_self_expression(X, lam=lam, zero_diagonal=True))
    corrected = least_squares_self_expression(X, lam=lam, zero_diagonal=True)
    assert objective(printed) > best + 1
    assert abs(objective(corrected) - best) < 1e-8
    assert np.abs(corrected - corrected.T).max() > 0.01


def test_residual_sees_an_error_and_a_diagonal():
    X = np.random.default_rng(0).standard_normal((6, 4))
    C = least_squares_self_expression(X, lam=0.5)
    C[2, 3] += 1e-3
    residual = least_squares_residual(X, C, lam=0.5)
    assert residual[2] > 1e-5
    assert np.delete(residual, 2).max() < 1e-12
    assert np.isinf(least_squares_residual(X, C, lam=0.5, zero_diagonal=True)).all()
    assert_allclose(least_squares_residual(X, np.zeros((6, 6)), lam=0.5), 1)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(), lam=st.floats(1e-3, 50), zero_diagonal=st.booleans(), size=st.floats(1e-6, 10)
)
def test_residual_bounds_the_suboptimality(points, data, lam, zero_diagonal, size):
    """``F(c_i) - F* <= |m_i|^2 / lam`` with ``|m_i| = residual_i |g_i|``, as F is convex."""
    X = data.draw(points)
    best = least_squares_self_expression(X, lam=lam, zero_diagonal=zero_diagonal)
    C = best + size * np.random.default_rng(0).standard_normal((9, 9))
    gram = X @ X.T
    if zero_diagonal:
        np.fill_diagonal(C, 0)
        np.fill_diagonal(gram, 0)
    at, least = (((X - Z @ X) ** 2).sum(axis=1) + lam * (Z**2).sum(axis=1) for Z in (C, best))
    scale = np.linalg.norm(gram, axis=1)
    m = least_squares_residual(X, C, lam=lam, zero_diagonal=zero_diagonal) * np.where(
        scale > 0, scale, 1
    )
    assert (at - least <= m**2 / lam + 1e-12 * (1 + at)).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shape", [(8, 4), (4, 8), (5, 5)])
def test_a_sample_alone_in_its_direction_takes_part_in_nothing(shape, rank, turned):
    rng = np.random.default_rng(0)
    X, (n, p) = np.zeros(shape), shape
    X[0, 0] = 1
    X[1:, 1:] = rng.standard_normal((n - 1, rank)) @ rng.standard_normal((rank, p - 1))
    if turned:
        X = 3.7 * X @ np.linalg.qr(rng.standard_normal((p, p)))[0]
    for share in (1e-4, 1e-8, 1e-10, 1e-13, 1e-16, 1e-20):
        lam = share * (X[0] ** 2).sum()
        C = least_squares_self_expression(X, lam=lam, zero_diagonal=True)
        assert_allclose(C[0], 0, atol=1e-10)
        assert_allclose(C[1:, 0], 0, atol=3e-15 / np.sqrt(share))
