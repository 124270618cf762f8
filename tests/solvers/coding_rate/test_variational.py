"""The variational rate: a bound, and the step of token statistics on it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax
from scipy.stats import entropy

from twinsolve.solvers.coding_rate import (
    subspace_memberships,
    token_statistics,
    variational_rate,
    variational_rate_step,
)

from ..differences import EPS, assert_gradient

N, D, HEADS, P, PRECISION = 8, 6, 3, 2, 0.5
C = D / PRECISION**2


def draw(seed=0):
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, HEADS * P))
    return X, U / np.linalg.norm(U, 2), rng.dirichlet(np.ones(HEADS), N)


def moments(X, U, Pi):
    """Of each head: its count and its second moment."""
    for u, share in zip(np.split(U, HEADS, axis=1), Pi.T, strict=True):
        yield share.sum(), (X @ u).T @ (share[:, None] * (X @ u)) / share.sum()


def exact_rate(X, U, Pi):
    logdets = [n * np.linalg.slogdet(np.eye(P) + C * M)[1] for n, M in moments(X, U, Pi)]
    return sum(logdets) / (2 * N)


def test_the_variational_rate_is_above_the_exact_one_cr_4():
    for seed in range(20):
        X, U, Pi = draw(seed)
        assert variational_rate(X, U, Pi, eps=PRECISION) > exact_rate(X, U, Pi)


def test_both_are_equal_where_the_heads_diagonalise_the_moments_cr_4():
    X, U, Pi = draw()
    turned = [
        u @ np.linalg.eigh(M)[1]
        for u, (_, M) in zip(np.split(U, HEADS, axis=1), moments(X, U, Pi), strict=True)
    ]
    found = variational_rate(X, np.hstack(turned), Pi, eps=PRECISION)
    # Sums over tokens, and moments that a rotation has made diagonal up to their rounding.
    assert found == pytest.approx(exact_rate(X, U, Pi), rel=3 * N * D * EPS)


def test_token_statistics_are_the_gradient_times_minus_the_number_of_tokens_cr_5():
    X, U, Pi = draw()
    out = token_statistics(X, U, Pi, eps=PRECISION)
    assert_gradient(lambda x: -N * variational_rate(x, U, Pi, eps=PRECISION), X, out)


def test_token_statistics_are_a_literal_loop_and_row_t_of_a_prefix_is_causal_cr_5():
    X, U, Pi = draw()
    expected = np.zeros((N, N, D))
    for t in range(1, N + 1):
        for h, u in enumerate(np.split(U, HEADS, axis=1)):
            W, share = X[:t] @ u, Pi[:t, h]
            s = sum(p * w**2 for p, w in zip(share, W, strict=True)) / sum(share)
            for j in range(t):
                expected[t - 1, j] -= share[j] * C * W[j] / (1 + C * s) @ u.T
    for t in range(1, N + 1):
        found = token_statistics(X[:t], U, Pi[:t], eps=PRECISION)
        # Sums of N D terms, none larger than C times the token.
        assert_allclose(found, expected[t - 1, :t], rtol=0, atol=3 * N * D * EPS * C)


@pytest.mark.parametrize("share", [0.1, 1.0, 1.9])
def test_the_variational_rate_falls_by_what_is_proved_cr_5(share):
    for seed in range(20):
        X, U, Pi = draw(seed)
        after, decrease = variational_rate_step(X, U, Pi, eps=PRECISION, step=share / C)
        out = token_statistics(X, U, Pi, eps=PRECISION)
        expected = share / C * (1 - share / 2) / N * (out**2).sum()
        assert decrease == pytest.approx(expected, rel=3 * out.size * EPS)
        assert_allclose(after, X + share / C * out, rtol=0, atol=3 * EPS * np.abs(X).max())
        rates = [variational_rate(x, U, Pi, eps=PRECISION) for x in (X, after)]
        assert 0 < decrease <= rates[0] - rates[1] + 3 * EPS * X.size * rates[0]


@pytest.mark.parametrize("share", [0.1, 1.0, 1.9])
def test_small_tokens_of_one_head_reach_the_proved_decrease_cr_5(share):
    """Then the rate is its quadratic part, to a relative ``C |X|^2``."""
    X, one = 1e-6 * draw()[0], np.ones((N, 1))
    after, decrease = variational_rate_step(X, np.eye(D), one, eps=PRECISION, step=share / C)
    rates = [variational_rate(x, np.eye(D), one, eps=PRECISION) for x in (X, after)]
    lost = C * np.linalg.norm(X) ** 2 / (1 - abs(1 - share))
    expected = pytest.approx(rates[0] - rates[1], rel=3 * lost + 3 * EPS * X.size / (2 - share))
    assert decrease == expected


@pytest.mark.parametrize("sharpness", [1.5, (0.5, 1.0, 2.0)])
def test_memberships_maximise_what_they_say_cr_5m(sharpness):
    X, U, others = draw()
    found = subspace_memberships(X, U, HEADS, sharpness=sharpness)
    sizes = np.stack([((X @ u) ** 2).sum(axis=1) for u in np.split(U, HEADS, axis=1)], axis=1)
    held = np.array(sharpness) * sizes
    best = (found * held).sum(axis=1) + entropy(found, axis=1)
    # The maximum is a log-sum-exp, which no other distribution reaches.
    assert_allclose(best, np.logaddexp.reduce(held, axis=1), rtol=3 * HEADS * EPS)
    assert (best > (others * held).sum(axis=1) + entropy(others, axis=1)).all()


def test_a_head_without_members_adds_nothing():
    X, U, _ = draw()
    Pi = np.tile([0.5, 0.5, 0.0], (N, 1))
    used = slice(0, 2 * P)
    for function in (variational_rate, token_statistics):
        found = function(X, U, Pi, eps=PRECISION)
        expected = function(X, U[:, used], Pi[:, :2], eps=PRECISION)
        assert_allclose(found, expected, rtol=3 * N * D * EPS)


def test_what_is_no_membership_or_has_no_proof_is_refused():
    X, U, Pi = draw()
    with pytest.raises(ValueError, match=r"^memberships: must have 8 rows, as X, got 7"):
        variational_rate(X, U, Pi[:7], eps=PRECISION)
    with pytest.raises(ValueError, match=r"^memberships: must be >= 0, got -1"):
        variational_rate(X, U, np.tile([2.0, -1.0, 0.0], (N, 1)), eps=PRECISION)
    with pytest.raises(ValueError, match=r"^memberships: every row must sum to 1"):
        token_statistics(X, U, Pi / 2, eps=PRECISION)
    with pytest.raises(ValueError, match=r"^basis: must have one row .* a multiple of n_heads = 4"):
        variational_rate(X, U, np.full((N, 4), 0.25), eps=PRECISION)
    with pytest.raises(ValueError, match=r"^step: must be in"):
        variational_rate_step(X, U, Pi, eps=PRECISION, step=2 / C)
    with pytest.raises(ValueError, match=r"^basis: sum_h"):
        variational_rate_step(X, 2 * U, Pi, eps=PRECISION, step=1 / C)


def test_erratum_e10_h_memberships_are_over_heads_and_not_over_tokens():
    """Over tokens each head has one member, whatever it holds, and a token belongs to any sum."""
    X, U, _ = draw()
    sizes = np.stack([((X @ u) ** 2).sum(axis=1) for u in np.split(U, HEADS, axis=1)], axis=1)
    assert_allclose(
        subspace_memberships(X, U, HEADS, sharpness=1.0), softmax(sizes, axis=1), rtol=3 * N * EPS
    )
    printed = softmax(sizes, axis=0)
    assert_allclose(printed.sum(axis=0), 1, rtol=3 * N * EPS)
    with pytest.raises(ValueError, match="memberships: every row must sum to 1"):
        token_statistics(X, U, printed, eps=PRECISION)
