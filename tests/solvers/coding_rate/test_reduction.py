"""Rate reduction with a penalty: its critical tokens and its bound."""

import numpy as np
import pytest

from twinsolve.solvers.coding_rate import rate_reduction, rate_reduction_optimum

from ..differences import EPS, assert_gradient

PRECISION, LAM = 0.5, 0.05
CASES = [((3, 4), (2, 1), 8), ((3, 4), (3, 4), 8), ((5, 6, 4), (2, 2, 1), 6)]


def memberships(counts):
    return np.repeat(np.eye(len(counts)), counts, axis=0)


def orthogonal(counts, ranks, squares, n_features, seed=0):
    """Groups in orthogonal subspaces, with equal singular values."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0].T
    blocks, used = [], 0
    for n, r, s in zip(counts, ranks, squares, strict=True):
        left = np.linalg.qr(rng.standard_normal((n, r)))[0]
        blocks.append(np.sqrt(s) * left @ directions[used : used + r])
        used += r
    return np.vstack(blocks)


@pytest.mark.parametrize(("counts", "ranks", "n_features"), CASES)
def test_orthogonal_groups_of_the_optimal_size_are_critical_cr_7(counts, ranks, n_features):
    given = {"eps": PRECISION, "lam": LAM}
    found = rate_reduction_optimum(counts, ranks, n_features=n_features, **given)
    X, Pi = orthogonal(counts, ranks, found.squares, n_features), memberships(counts)
    assert (found.squares > 0).all()
    value = rate_reduction(X, Pi, **given)
    # Differences of rates, each a sum over the features of logarithms up to log(1 + al_k s).
    largest = n_features * np.log1p(n_features / PRECISION**2 * max(found.squares))
    assert value == pytest.approx(found.value, rel=0, abs=3 * len(X) * EPS * largest)
    assert_gradient(lambda x: rate_reduction(x, Pi, **given), X, 0 * X)
    tolerance = 3 * len(X) * EPS * largest
    assert value <= found.bound + tolerance
    if sum(ranks) == sum(counts):
        assert found.bound == pytest.approx(value, rel=0, abs=tolerance)


def test_no_tokens_exceed_the_bound_cr_7():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        counts, n_features = rng.integers(1, 6, 3), int(rng.integers(2, 9))
        eps, lam = rng.uniform(0.2, 1), rng.uniform(0.005, 0.3)
        given = {"eps": eps, "lam": lam}
        bound = rate_reduction_optimum(counts, 0 * counts, n_features=n_features, **given).bound
        X = rng.uniform(0, 3) * rng.standard_normal((counts.sum(), n_features))
        assert rate_reduction(X, memberships(counts), **given) <= bound + EPS * X.size


def test_a_group_has_a_critical_point_up_to_the_stated_penalty_cr_7():
    al, al_k = (8 / (n * PRECISION**2) for n in (7, 3))
    limit = al * (al_k**0.5 - al**0.5) / (al_k**0.5 + al**0.5)
    for lam, positive in ((0.999 * limit, True), (1.001 * limit, False)):
        found = rate_reduction_optimum([3, 4], [0, 0], n_features=8, eps=PRECISION, lam=lam)
        assert (found.squares[0] > 0) == positive


def test_zero_is_a_local_maximum_and_a_single_group_has_no_other_cr_7():
    rng = np.random.default_rng(0)
    Pi = memberships((3, 4))
    for _ in range(20):
        X = 1e-4 * rng.standard_normal((7, 8))
        assert rate_reduction(X, Pi, eps=PRECISION, lam=LAM) < 0
    found = rate_reduction_optimum([5], [2], n_features=3, eps=PRECISION, lam=LAM)
    assert (found.squares[0], found.value, found.bound) == (0, 0, 0)


def test_a_group_without_tokens_adds_nothing():
    X = np.random.default_rng(0).standard_normal((7, 8))
    Pi, given = memberships((3, 4)), {"eps": PRECISION, "lam": LAM}
    found = rate_reduction(X, np.hstack([Pi, np.zeros((7, 1))]), **given)
    assert found == rate_reduction(X, Pi, **given)


@pytest.mark.parametrize(
    ("counts", "ranks", "message"),
    [
        ([2, 0], [1, 0], "counts: must be >= 1, got 0"),
        ([2, 2.5], [1, 0], "counts: must be one whole number >= 0 for each group"),
        ([[2, 2]], [1, 0], "counts: must be one whole number >= 0 for each group"),
        ([2, 2], [1], r"ranks: must be from 0 to min\(counts, n_features\) each"),
        ([2, 2], [3, 0], r"ranks: must be from 0 to min\(counts, n_features\) each"),
        ([2, 2], [np.nan, 0], "ranks: must be one whole number"),
    ],
)
def test_counts_and_ranks_that_do_not_fit_are_refused(counts, ranks, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        rate_reduction_optimum(counts, ranks, n_features=4, eps=1.0, lam=0.1)
