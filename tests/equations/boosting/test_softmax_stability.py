"""Softmax under noise: the mathematics of IF-22 and IF-23, with errata E0-g, E0-h and E0-i."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax
from scipy.stats import binom

SEED = st.integers(0, 10**6)


def jacobian(p, lam=1.0):
    return lam * (np.diag(p) - np.outer(p, p))


def scores(kind, n):
    """Score vectors that have their own worst case: flat, two or one dominant, spread."""
    far = np.full(n, -800.0)
    return {
        "zero": np.zeros(n),
        "two dominant": np.concatenate([np.zeros(2), far[2:]]),
        "one dominant": np.concatenate([np.zeros(1), far[1:]]),
        "spread": np.linspace(-3, 3, n),
    }[kind]


KIND = st.sampled_from(["zero", "two dominant", "one dominant", "spread"])


@given(
    seed=SEED, n=st.integers(2, 12), lam=st.floats(0.05, 20), log_size=st.floats(-3, 3), kind=KIND
)
def test_softmax_is_half_lam_lipschitz_if22(seed, n, lam, log_size, kind):
    rng = np.random.default_rng(seed)
    x = scores(kind, n) + rng.standard_normal(n) * rng.choice([0, 1])
    step = 10**log_size * rng.standard_normal(n)
    moved = np.linalg.norm(softmax(lam * (x + step)) - softmax(lam * x))
    # Scores of size 800 lam carry rounding of 2e-13 lam, halved by the same constant.
    assert moved <= lam / 2 * np.linalg.norm(step) + 2e-13 * (1 + lam)


@pytest.mark.parametrize("lam", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_half_lam_is_sharp_for_every_n_and_the_printed_lam_is_not_if22(n, lam):
    half = np.zeros(n)
    half[:2] = 0.5
    assert_allclose(np.linalg.norm(jacobian(half, lam), 2), lam / 2, rtol=1e-12)
    x = np.full(n, -1e6)
    x[:2] = 0
    step = np.zeros(n)
    step[:2] = np.array([1.0, -1.0]) * 1e-3 / lam
    quotient = np.linalg.norm(softmax(lam * (x + step)) - softmax(lam * x)) / np.linalg.norm(step)
    # tanh(1e-3) / 1e-3 = 1 - 3e-7.
    assert_allclose(quotient, lam / 2, rtol=1e-6)
    assert quotient < 0.51 * lam


@pytest.mark.parametrize("n", [2, 5, 100])
def test_local_constant_at_the_uniform_point_if22(n):
    lam = 3.0
    assert_allclose(np.linalg.norm(jacobian(np.full(n, 1 / n), lam), 2), lam / n, rtol=1e-12)
    step = 1e-6 * np.random.default_rng(0).standard_normal(n)
    step -= step.mean()
    quotient = np.linalg.norm(softmax(lam * step) - 1 / n) / np.linalg.norm(step)
    # Second-order terms are of relative size lam |step|.
    assert_allclose(quotient, lam / n, rtol=1e-4)


@given(seed=SEED, n=st.integers(1, 12), log_size=st.floats(-3, 3), kind=KIND)
def test_pointwise_bound_of_theorem_iii2_if23(seed, n, log_size, kind):
    rng = np.random.default_rng(seed)
    c, noise = scores(kind, max(n, 2))[:n], 10**log_size * rng.standard_normal(n)
    moved = softmax(c + noise) - softmax(c)
    bound = min(np.sqrt(2), np.linalg.norm(noise) / 2)
    assert np.linalg.norm(moved) <= bound + 4e-13
    V = rng.standard_normal((n, 3))  # and corollary III.2
    assert np.linalg.norm(moved @ V) <= (bound + 4e-13) * np.linalg.norm(V, 2)


def outcomes(law, n, sigma):
    """All outcomes of a zero-mean noise vector with variance sigma^2 an entry, and their odds."""
    if law == "correlated":  # one coin moves half of the entries up and the others down
        signs = np.where(np.arange(n) % 2, 1.0, -1.0)
        return sigma * np.stack([signs, -signs]), np.array([0.5, 0.5])
    values, odds = {
        "coins": ([-1, 1], [0.5, 0.5]),
        "skewed": ([-1 / 3, 3], [0.9, 0.1]),
        "heavy": ([-10, 0, 10], [0.005, 0.99, 0.005]),
    }[law]
    choices = np.array(list(product(range(len(values)), repeat=n)))
    return sigma * np.array(values)[choices], np.array(odds)[choices].prod(axis=1)


LAWS = ["correlated", "coins", "skewed", "heavy"]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["zero", "two dominant", "one dominant", "spread"])
@pytest.mark.parametrize("sigma", [1e-3, 0.3, 2.0, 50.0])
@pytest.mark.parametrize("n", [2, 5])
def test_expected_bound_of_theorem_iii2_and_its_corollary_if23(n, sigma, kind, law):
    """The expectation is exact, by enumeration; independence is not needed."""
    c = scores(kind, n)
    noise, odds = outcomes(law, n, sigma)
    moved = softmax(c + noise, axis=1) - softmax(c)
    bound = min(np.sqrt(2), sigma / 2 * np.sqrt(n))
    assert odds @ np.linalg.norm(moved, axis=1) <= bound * (1 + 1e-9)
    V = np.random.default_rng(n).standard_normal((n, 3))
    expected = odds @ np.linalg.norm(moved @ V, axis=1)
    assert expected <= bound * np.linalg.norm(V, 2) * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_bound_is_not_tight_in_n_e0g(sigma):
    rng = np.random.default_rng(0)
    values = {}
    for n in (100, 10_000):
        moved = softmax(sigma * rng.standard_normal((40, n)), axis=1) - 1 / n
        values[n] = np.linalg.norm(moved, axis=1).mean()
    n = 10_000
    # The mean of 40 draws deviates by about 1 % from the limit at sigma = 1.
    assert_allclose(values[n], np.sqrt((np.exp(sigma**2) - 1) / n), rtol=0.05)
    assert values[n] < values[100] / 5  # it falls, while the bound grows
    assert sigma / 2 * np.sqrt(n) / values[n] > 3000
    assert sigma / 2 * np.sqrt(n) > np.sqrt(2)  # more than the left side can ever be


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("n", [2, 100, 10_000])
@pytest.mark.parametrize("kind", ["zero", "two dominant", "one dominant", "spread"])
def test_mean_change_is_of_the_order_of_sigma_for_every_n_if25(kind, n, sigma):
    """At most sigma, and a third of it or more where two scores are far above the others."""
    rng = np.random.default_rng(0)
    c = scores(kind, n)
    moved = softmax(c + sigma * rng.standard_normal((400, n)), axis=1) - softmax(c)
    change = np.linalg.norm(moved, axis=1).mean()
    assert change <= sigma
    if kind == "two dominant":
        # Both weights move by |tanh(x / 2)| / 2, where x is of N(0, 2 sigma^2).
        x, odds = np.polynomial.hermite_e.hermegauss(99)
        expected = odds @ np.abs(np.tanh(sigma * x / np.sqrt(2))) / np.sqrt(4 * np.pi)
        # 400 draws leave 4 %.
        assert_allclose(change, expected, rtol=0.15)
        assert change >= sigma / 4


@pytest.mark.parametrize("law", ["coins", "skewed", "heavy"])
@pytest.mark.parametrize("n", [1, 4])
def test_variance_of_the_mean_square_e0h(law, n):
    """xi = |noise|^2 / (N sigma^2) has variance (kurtosis - 1) / N, not 1 / N."""
    noise, odds = outcomes(law, n, 1.5)
    single, single_odds = outcomes(law, 1, 1.5)
    kurtosis = (single_odds @ single**4)[0] / 1.5**4
    xi = (noise**2).sum(axis=1) / (n * 1.5**2)
    assert_allclose(odds @ xi, 1, rtol=1e-12)
    variance = odds @ (xi - 1) ** 2
    assert_allclose(variance, (kurtosis - 1) / n, rtol=1e-12, atol=1e-15)
    assert abs(variance - 1 / n) > 0.5 / n
    assert odds @ np.sqrt(xi) <= 1 + 1e-12  # Jensen, which stands


@pytest.mark.parametrize("n", [1, 100, 10_000])
def test_lower_bound_on_the_mean_root_fails_for_heavy_tails_e0h(n):
    """Entries are 0 but for a share q = 1 / (10 N): the root of xi is mostly 0."""
    q = 1 / (10 * n)
    hits = np.arange(n + 1)
    odds = binom(n, q).pmf(hits)
    assert_allclose(odds @ hits / (q * n), 1, rtol=1e-9)
    assert odds @ np.sqrt(hits / (q * n)) < 0.4 < 1 - 1 / (2 * n)


@pytest.mark.parametrize(("n", "d"), [(400, 40), (1600, 40), (1600, 160)])
def test_spectral_norm_of_independent_values_e0i(n, d):
    """|V|_2 is about sqrt N + sqrt d, so |V|_2 sqrt N is O(N), not the Frobenius N sqrt d."""
    V = np.random.default_rng(0).standard_normal((n, d))
    spectral = np.linalg.norm(V, 2)
    # Fluctuations are O(1), of 26 or more.
    assert_allclose(spectral, np.sqrt(n) + np.sqrt(d), rtol=0.05)
    assert_allclose(np.linalg.norm(V), np.sqrt(n * d), rtol=0.05)
    assert spectral * np.sqrt(n) < 1.5 * n < n * np.sqrt(d) / 4
