"""The coding rate, its gradient as ridge self-expression, and steps that lower it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import least_squares_self_expression
from twinsolve.solvers.coding_rate import (
    coding_rate,
    coding_rate_gradient,
    coding_rate_step,
    rate_reduction,
    rate_reduction_optimum,
    subspace_rate,
    subspace_rate_gradient,
    variational_rate,
)

from ..differences import EPS, assert_gradient

SHAPES = [(9, 6), (4, 6), (1, 6)]
HEADS = 3


def draw(shape, seed=0, *, width=2):
    """Tokens, and heads that overlap unless their widths fill the space."""
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal(shape), rng.standard_normal((shape[1], HEADS * width))
    return X, U / np.linalg.norm(U, 2)


def whole(shape, seed=0):
    """Tokens and heads in orthogonal subspaces that fill the space."""
    X, U = draw(shape, seed)
    return X, np.linalg.qr(U)[0]


def parts(U):
    return np.split(U, HEADS, axis=1)


def system_rounding(X, scale):
    """Rounding of solving with ``I + scale X^T X``, three times."""
    return 3 * EPS * sum(X.shape) * (1 + scale * np.linalg.norm(X, 2) ** 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [0.3, 2.0])
def test_the_rate_is_a_log_determinant_and_its_gradient_ridge_self_expression_cr_1(shape, eps):
    X, _ = draw(shape)
    al = shape[1] / (shape[0] * eps**2)
    logdet = np.linalg.slogdet(np.eye(shape[1]) + al * X.T @ X)[1]
    tolerance = system_rounding(X, al)
    assert coding_rate(X, eps=eps) == pytest.approx(logdet / 2, rel=tolerance)
    expected = al * (X - least_squares_self_expression(X, lam=1 / al) @ X)
    found = coding_rate_gradient(X, eps=eps)
    assert_allclose(found, expected, rtol=0, atol=tolerance * al * np.abs(X).max())
    assert_gradient(lambda x: coding_rate(x, eps=eps), X, found)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_heads_is_ridge_self_expression_in_each_cr_2(shape):
    X, U = draw(shape, width=3)
    eps, expected = 0.5, 0
    be = 3 / (shape[0] * eps**2)
    for u in parts(U):
        W = X @ u
        expected = expected + be * (W - least_squares_self_expression(W, lam=1 / be) @ W) @ u.T
    found = subspace_rate_gradient(X, U, HEADS, eps=eps)
    assert_allclose(found, expected, rtol=0, atol=system_rounding(X, be) * be * np.abs(X).max())
    assert_gradient(lambda x: subspace_rate(x, U, HEADS, eps=eps), X, found)
    total = sum(coding_rate(X @ u, eps=eps) for u in parts(U))
    assert subspace_rate(X, U, HEADS, eps=eps) == pytest.approx(total, rel=3 * HEADS * EPS)


def test_with_complementary_heads_a_step_mixes_tokens_with_their_self_expression_cr_2():
    X, U = whole((9, 6))
    be, step = 2 / (9 * 0.5**2), 0.4
    found, _ = coding_rate_step(X, U, HEADS, eps=0.5, step=step)
    expressed = 0
    for u in parts(U):
        W = X @ u
        expressed = expressed + least_squares_self_expression(W, lam=1 / be) @ W @ u.T
    expected = (1 - step * be) * X + step * be * expressed
    assert_allclose(found, expected, rtol=0, atol=system_rounding(X, be) * np.abs(X).max())


@pytest.mark.parametrize("make", [draw, whole])
@pytest.mark.parametrize("share", [0.1, 1.0, 1.9])
def test_the_rate_falls_by_what_is_proved_cr_2(make, share):
    for seed in range(20):
        X, U = make((7, 6), seed)
        be = 2 / (7 * 0.2**2)
        after, decrease = coding_rate_step(X, U, HEADS, eps=0.2, step=share / be)
        before = subspace_rate(X, U, HEADS, eps=0.2)
        gradient = subspace_rate_gradient(X, U, HEADS, eps=0.2)
        expected = share / be * (1 - share / 2) * (gradient**2).sum()
        assert decrease == pytest.approx(expected, rel=3 * gradient.size * EPS)
        fallen = before - subspace_rate(after, U, HEADS, eps=0.2)
        assert 0 < decrease <= fallen + 3 * EPS * X.size * before


@pytest.mark.parametrize("share", [0.1, 1.0, 1.9])
def test_small_tokens_reach_the_proved_decrease_cr_2(share):
    """Then the rate is its quadratic part, to a relative ``be |X|^2``."""
    X, U = whole((7, 6))
    X, be = 1e-6 * X, 2 / (7 * 0.5**2)
    after, decrease = coding_rate_step(X, U, HEADS, eps=0.5, step=share / be)
    fallen = subspace_rate(X, U, HEADS, eps=0.5) - subspace_rate(after, U, HEADS, eps=0.5)
    lost = be * np.linalg.norm(X) ** 2 / (1 - abs(1 - share))
    assert decrease == pytest.approx(fallen, rel=3 * lost + 3 * EPS * X.size / (2 - share))


def test_steps_without_a_proof_are_refused():
    X, U = whole((7, 6))
    with pytest.raises(ValueError, match=r"^step: must be in \(0, 1.75\), got 1.76"):
        coding_rate_step(X, U, HEADS, eps=0.5, step=1.76)
    with pytest.raises(ValueError, match=r"^basis: sum_h U_h U_h\^T must have no eigenvalue"):
        coding_rate_step(X, 1.1 * U, HEADS, eps=0.5, step=0.1)
    with pytest.raises(ValueError, match=r"^basis: must have one row for each of the 6 columns"):
        subspace_rate(X, U[:, :5], HEADS, eps=0.5)
    with pytest.raises(ValueError, match=r"^basis: must have one row for each of the 6 columns"):
        subspace_rate(X, U[:5], HEADS, eps=0.5)


@pytest.mark.parametrize("make", [draw, whole])
def test_two_terms_of_the_inverse_are_far_from_it_and_linear_mssa_points_uphill_cr_3(make):
    for seed in range(20):
        X, U = make((8, 6), seed)
        be, uphill = 2 / (8 * 0.5**2), 0
        for u in parts(U):
            W = X @ u
            G = be * W @ W.T
            size = np.linalg.norm(G, 2)
            off = np.linalg.norm(np.linalg.inv(np.eye(8) + G) - (np.eye(8) - G), 2)
            assert off == pytest.approx(size**2 / (1 + size), rel=3 * 8 * EPS * (1 + size))
            uphill = uphill + G @ W @ u.T
        assert (subspace_rate_gradient(X, U, HEADS, eps=0.5) * uphill).sum() > 0


@pytest.mark.parametrize("eps", [1e-3, 1e-8, 1e-12])
def test_the_gradient_keeps_its_digits_without_full_rank(eps):
    """Along a direction of length s it is ``s / (1 / al + s^2)``, and zero across."""
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((8, 8)))[0][:2]
    X = np.array([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]]) @ V
    squares = np.array([4.0, 0.25])
    expected = X @ V.T / (3 * eps**2 / 8 + squares) @ V
    assert_allclose(coding_rate_gradient(X, eps=eps), expected, rtol=0, atol=1e-13)
    found = subspace_rate_gradient(X, np.eye(8), 1, eps=eps)
    assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("eps", [1e-170, 1e200])
def test_a_precision_whose_square_is_no_number_is_refused(eps):
    U, Pi = np.eye(2), np.ones((2, 1))
    for call in (
        lambda: coding_rate(U, eps=eps),
        lambda: coding_rate_step(U, U, 1, eps=eps, step=1.0),
        lambda: rate_reduction(U, Pi, eps=eps, lam=1.0),
        lambda: rate_reduction_optimum([2], [1], n_features=2, eps=eps, lam=0.1),
        lambda: variational_rate(U, U, Pi, eps=eps),
    ):
        with pytest.raises(ValueError, match="eps: must be from 1e-150 to 1e150, got"):
            call()


def test_tokens_of_zero_and_tiny_ones_keep_their_digits():
    X, U = whole((7, 6))
    assert coding_rate(0 * X, eps=1.0) == 0
    assert not subspace_rate_gradient(0 * X, U, HEADS, eps=1.0).any()
    al = 6 / 7
    tiny = 1e-9 * X
    assert coding_rate(tiny, eps=1.0) == pytest.approx(al / 2 * (tiny**2).sum(), rel=1e-14)
