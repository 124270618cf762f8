"""Means of tokens: by how much at most they raise the coding rate, and what is false."""

import numpy as np
import pytest
from scipy.special import softmax

from twinsolve.solvers import sinkhorn
from twinsolve.solvers.coding_rate import coding_rate, mixing_rate_bound

from ..differences import EPS

N, D, PRECISION = 9, 4, 0.5


def draw(seed, spread=1.0):
    rng = np.random.default_rng(seed)
    X = spread * rng.standard_normal((N, D))
    return X, softmax(X @ X.T / D**0.5, axis=1)


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_means_raise_the_rate_by_no_more_than_is_proved_cr_3m(share, spread):
    for seed in range(20):
        X, A = draw(seed, spread)
        mixed = (1 - share) * X + share * A @ X
        bound = mixing_rate_bound(X, A, eps=PRECISION, share=share)
        assert coding_rate(mixed, eps=PRECISION) <= bound
        c = A.sum(axis=0).max()
        expected = coding_rate((1 - share + share * c**0.5) * X, eps=PRECISION)
        assert bound == pytest.approx(expected, rel=3 * N * EPS)


def test_a_mean_of_few_tokens_can_raise_it_cr_3m():
    """All attend to the one large token: the bound above the rate is no slack of the proof."""
    X = np.array([[3.0], [0.1], [0.1]])
    A = np.tile([1.0, 0.0, 0.0], (3, 1))
    raised = coding_rate(A @ X, eps=PRECISION)
    assert coding_rate(X, eps=PRECISION) < raised <= mixing_rate_bound(X, A, eps=PRECISION)


def test_equal_tokens_and_a_single_large_one_reach_the_bound_cr_3m():
    X, A = np.ones((N, D)), np.full((N, N), 1 / N)
    for share in (0.3, 1.0):
        bound = mixing_rate_bound(X, A, eps=PRECISION, share=share)
        assert bound == pytest.approx(coding_rate(X, eps=PRECISION), rel=3 * N * EPS)
    X, A = np.eye(N)[:, :1], np.eye(N)[np.zeros(N, dtype=int)]
    bound = mixing_rate_bound(X, A, eps=PRECISION)
    assert bound == pytest.approx(coding_rate(A @ X, eps=PRECISION), rel=3 * N * EPS)


def test_balanced_weights_never_raise_it_and_a_sum_with_equal_degrees_never_lowers_it_cr_3m():
    for seed in range(20):
        X, _ = draw(seed)
        A = sinkhorn(X @ X.T / D**0.5, tol=1e-13)
        before = coding_rate(X, eps=PRECISION)
        # Balanced to 1e-13: the sums of columns are one to that.
        for share in (0.3, 1.0):
            mixed = (1 - share) * X + share * A @ X
            assert coding_rate(mixed, eps=PRECISION) <= before
        assert coding_rate(X + A @ X, eps=PRECISION) >= before


def test_a_sum_has_at_least_the_rate_that_its_degrees_leave_cr_3m():
    for seed in range(20):
        X, _ = draw(seed, 0.5)
        d = np.exp(X @ X.T / D**0.5).sum(axis=1)
        A = np.exp(X @ X.T / D**0.5) / d[:, None]
        least = coding_rate((d.min() / d.max()) ** 0.5 * X, eps=PRECISION)
        assert coding_rate(X + A @ X, eps=PRECISION) >= least


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": np.eye(N)[:, :3]}, "weights: .*row 3 is off"),
        ({"weights": np.eye(N - 1)}, "weights: must be 9 x 9"),
        ({"weights": 2 * np.eye(N) - 1 / N}, "weights: must be >= 0"),
        ({"share": 1.1}, r"share: must be in \(0, 1\]"),
    ],
)
def test_what_is_no_mean_is_refused(given, message):
    X, A = draw(0)
    with pytest.raises(ValueError, match=message):
        mixing_rate_bound(X, **{"weights": A, "eps": PRECISION} | given)
