import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from scipy.special import softmax

from twinsolve.solvers import split_frequencies
from twinsolve.solvers.spectral_filtering import (
    ergodicity_coefficient,
    high_frequency_gain,
    high_frequency_gain_bound,
    low_pass_ratio,
)

from ...equations.spectral_filtering.formulas import high, logits_of

SEEDS = st.integers(0, 10**6)
KINDS = st.sampled_from(["gaussian", "signs", "two groups", "one hot", "constant", "offset rows"])


def two_groups(n):
    """Half of the rows on token 1, half on token 2."""
    return np.repeat(np.eye(n)[:2], n // 2, axis=0)


def reversible(n, seed, laziness=0.0):
    """A smoother with a symmetric kernel: real eigenvalues, right eigenvectors, stationary law."""
    X = np.random.default_rng(seed).standard_normal((n, 2))
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    d = K.sum(axis=1)
    mu, vectors = np.linalg.eigh(K / np.sqrt(np.outer(d, d)))
    A = (1 - laziness) * K / d[:, None] + laziness * np.eye(n)
    return A, (1 - laziness) * mu[::-1] + laziness, (vectors / np.sqrt(d)[:, None])[:, ::-1], d


@given(seed=SEEDS)
def test_ao_t1_ratio_is_that_of_the_powers_and_vanishes(seed):
    rng = np.random.default_rng(seed)
    A, Z = softmax(rng.standard_normal((6, 6)) / 2, axis=1), rng.standard_normal((6, 2)) + 1
    found = low_pass_ratio(A, Z, n_steps=60)
    assert found.shape == (61,)
    X = Z
    for t in range(5):
        dc, hc = split_frequencies(X)
        assert_allclose(found[t], np.linalg.norm(hc) / np.linalg.norm(dc), rtol=1e-8)
        X = A @ X
    assert found[60] < 1e-9


def power(A, n_squarings):
    """A to the power of 2^n; rows are divided by their sums, whose rounding would double."""
    for _ in range(n_squarings):
        A = A @ A
        A = A / A.sum(axis=1, keepdims=True)
    return A


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(2, 8), kind=KINDS, alpha=st.floats(0, 15))
def test_ao_t1_powers_lose_all_high_frequencies_whatever_the_logits(seed, n, kind, alpha):
    """Logits of size 15 may take more than 10^13 steps, which are those of 60 squarings."""
    A = softmax(logits_of(kind, n, alpha, seed), axis=1)
    assert (A > 0).all()
    limit = power(A, 60)
    assert np.abs(high(limit)).max() < 1e-10
    assert_allclose(limit[0] @ A, limit[0], atol=1e-10)
    z = np.random.default_rng(seed).uniform(0.1, 1, (n, 1))
    assert np.linalg.norm(high(limit @ z)) < 1e-8 * np.linalg.norm(limit @ z)


@given(seed=SEEDS, n_layers=st.integers(1, 6), alpha=st.floats(0, 5))
def test_ao_c2_a_product_of_layers_is_positive_and_its_powers_are_low_pass(seed, n_layers, alpha):
    product = np.eye(5)
    for layer in range(n_layers):
        product = softmax(logits_of("gaussian", 5, alpha, seed + layer), axis=1) @ product
    assert (product > 0).all()
    assert_allclose(product.sum(axis=1), 1, rtol=1e-12)
    assert np.abs(high(power(product, 40))).max() < 1e-10


def test_ao_t1_rate_is_the_second_eigenvalue():
    A, mu, _, d = reversible(8, seed=0)
    Z = np.random.default_rng(1).standard_normal((8, 1)) + 1
    found = low_pass_ratio(A, Z, n_steps=400)
    # Far below the rounding of A^t Z, where only a separate HC has digits left.
    assert 0 < found[-1] < 1e-20
    assert_allclose(found[1:][-5:] / found[:-1][-5:], abs(mu[1]), rtol=1e-10)
    assert_allclose(np.linalg.matrix_power(A, 400) @ Z, (d @ Z) / d.sum() * np.ones((8, 1)))


def test_erratum_e1_c_values_orthogonal_to_the_stationary_law_keep_their_ratio():
    A, mu, vectors, d = reversible(8, seed=0, laziness=0.9)
    Z = vectors[:, [1]]
    assert abs(d @ Z) < 1e-12 * np.abs(d * Z.T).sum()
    found = low_pass_ratio(A, Z, n_steps=60)
    # Rounding brings in the stationary part, which gains 1 / mu_2 on Z at each step.
    assert_allclose(found, found[0], rtol=1e-12 * mu[1] ** -60)
    assert found[0] > 0.1


def test_erratum_e1_d_the_printed_denominator_is_not_the_mean_and_may_not_exist():
    rng = np.random.default_rng(0)
    A, z = softmax(rng.standard_normal((6, 6)), axis=1), rng.standard_normal((6, 1)) + 1
    y = np.linalg.matrix_power(A, 3) @ z
    dc, hc = split_frequencies(y)
    assert_allclose((dc**2).sum(), (y**2).sum() - (hc**2).sum(), rtol=1e-12)
    printed = (z**2).sum() - (hc**2).sum()
    assert abs(printed - (dc**2).sum()) > 0.1
    z = np.eye(40)[:, [0]] - np.eye(40)[:, [1]]
    assert (z**2).sum() - (high(two_groups(40) @ z) ** 2).sum() < 0


def test_ratio_without_a_mean_or_without_high_frequencies():
    A = np.full((2, 2), 0.5)
    assert_allclose(low_pass_ratio(A, [[1.0], [-1.0]], n_steps=1), [np.inf, 0])
    assert_allclose(low_pass_ratio(A, [[0.0], [0.0]], n_steps=2), 0)
    assert_allclose(low_pass_ratio(A, [[3.0], [3.0]], n_steps=0), [0])


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(1, 8), kind=KINDS, alpha=st.floats(0, 5))
def test_ao_c2_coefficient_is_that_of_the_loop_and_contracts_ranges(seed, n, kind, alpha):
    A = softmax(logits_of(kind, n, alpha, seed), axis=1)
    tau = ergodicity_coefficient(A)
    distances = cdist(A, A, "cityblock") / 2
    i, j = np.unravel_index(distances.argmax(), (n, n))
    # Rows that sum to 1 are rounded once more: a few eps of their entries, whatever tau.
    assert_allclose(tau, distances.max(), rtol=1e-12, atol=2e-15)
    z = np.random.default_rng(seed).standard_normal(n)
    assert np.ptp(A @ z) <= tau * np.ptp(z) + 1e-12
    extreme = np.where(A[i] > A[j], 1.0, -1.0)
    assert np.ptp(A @ extreme) >= 2 * tau - 1e-12
    assert tau <= np.tanh(alpha) + 1e-12
    shifted = logits_of(kind, n, alpha, seed) + 10 * np.random.default_rng(seed).normal(size=(n, 1))
    assert tau <= np.tanh(np.ptp(shifted, axis=1).max() / 2) + 1e-12


def test_coefficient_in_blocks_of_signed_rectangular_and_strided_matrices():
    for n in [1, 16, 17, 50]:
        A = softmax(3 * np.random.default_rng(n).standard_normal((n, 7)), axis=1)
        signed = np.asfortranarray(2 * A - 1 / 7)
        expected = cdist(signed, signed, "cityblock").max() / 2
        assert_allclose(ergodicity_coefficient(signed), expected, rtol=1e-13)
        # The worst pair first, last, and far apart.
        for i, j in {(0, n - 1), (n - 2, n - 1), (0, 1)}:
            if n > 1:
                far = np.full((n, 4), 0.25)
                far[i], far[j] = np.eye(4)[:2]
                assert ergodicity_coefficient(far) == 1


def test_ao_c2_bound_of_many_layers_vanishes_and_does_not_overflow():
    assert high_frequency_gain_bound(1000, 1.0, n_layers=1000) < 1e-100
    assert_allclose(high_frequency_gain_bound(1000, 50.0, n_layers=10**6), np.sqrt(500))
    assert high_frequency_gain_bound(8, 0.0) == 0


def stationary_law(A):
    system = np.vstack([A.T - np.eye(len(A)), np.ones(len(A))])
    return np.linalg.lstsq(system, np.eye(len(A) + 1)[-1], rcond=None)[0]


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(2, 8), kind=KINDS, alpha=st.floats(0.1, 3))
def test_ao_mix_rows_approach_the_stationary_law_in_l1(seed, n, kind, alpha):
    A = softmax(logits_of(kind, n, alpha, seed), axis=1)
    pi, tau = stationary_law(A), ergodicity_coefficient(A)
    assert_allclose(pi @ A, pi, atol=1e-12)
    before, after = np.abs(A - pi).sum(axis=1), np.abs(A @ A - pi).sum(axis=1)
    assert (after <= tau * before + 1e-12).all()


def test_rows_without_common_keys_have_an_ergodicity_coefficient_of_at_most_one():
    for seed in range(50):
        A = np.random.default_rng(seed).random((2, 10)) * np.kron(np.eye(2), np.ones(5))
        assert 0.99 < ergodicity_coefficient(A / A.sum(axis=1, keepdims=True)) <= 1


def test_erratum_e1_k_mixing_may_expand_in_l2():
    n = 30
    A = 0.99 * two_groups(n) + 0.01 / n
    pi = stationary_law(A)
    law = pi + 0.5 * pi.min() * np.repeat([1.0, -1.0], n // 2)
    assert (law > 0).all()
    assert_allclose(law.sum(), 1)
    before, after = law - pi, law @ A - pi
    assert np.linalg.norm(after) > 3.8 * np.linalg.norm(before)
    assert np.abs(after).sum() <= ergodicity_coefficient(A) * np.abs(before).sum() * (1 + 1e-12)


def theorem_3(n, alpha):
    """The factor of one layer, which `high_frequency_gain_bound` takes where it is the smaller."""
    return np.sqrt(n * np.exp(2 * alpha) / (np.exp(2 * alpha) + n - 1))


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(1, 12), kind=KINDS, alpha=st.floats(0, 5))
def test_ao_6_theorem_3_and_its_sharper_factors(seed, n, kind, alpha):
    rng = np.random.default_rng(seed)
    A = softmax(logits_of(kind, n, alpha, seed) + rng.normal(size=(n, 1)), axis=1)
    gain, bound = high_frequency_gain(A), high_frequency_gain_bound(n, alpha)
    factors = theorem_3(n, alpha), np.sqrt(n / 2) * np.tanh(alpha)
    assert_allclose(bound, min(factors), rtol=1e-12)
    assert gain <= bound + 1e-12
    assert gain <= np.sqrt(n / 2) * ergodicity_coefficient(A) + 1e-12
    X, W = rng.standard_normal((n, 3)), rng.standard_normal((3, 4))
    limit = gain * np.linalg.norm(W, 2) * np.linalg.norm(high(X))
    assert np.linalg.norm(high(A @ X @ W)) <= limit + 1e-12


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(2, 10), kind=KINDS, alpha=st.floats(0, 30))
def test_ao_6_weights_below_one_over_root_n_decay_whatever_the_logits(seed, n, kind, alpha):
    rng = np.random.default_rng(seed)
    X, size = rng.standard_normal((n, 3)), 0.99 / np.sqrt(n)
    assert theorem_3(n, alpha) * size <= 0.99 * (1 + 1e-12)
    for layer in range(5):
        A = softmax(logits_of(kind, n, alpha, seed + layer), axis=1)
        before = np.linalg.norm(high(X))
        X = A @ X @ (size * np.linalg.qr(rng.standard_normal((3, 3)))[0])
        assert np.linalg.norm(high(X)) <= 0.99 * before + 1e-15


@given(n=st.integers(1, 10**4), alpha=st.floats(0, 20))
def test_erratum_e1_f_the_factor_of_theorem_3_is_at_least_one(n, alpha):
    """With |W|_2 = 1 it never shows smoothing; with log|W|_2 < -alpha it does."""
    factor = theorem_3(n, alpha)
    assert 1 - 1e-12 <= factor <= np.exp(alpha) * (1 + 1e-12)
    expected = min(factor, np.sqrt(n / 2) * np.tanh(alpha))
    assert_allclose(high_frequency_gain_bound(n, alpha), expected, rtol=1e-12)


def test_erratum_e1_g_one_layer_may_amplify_up_to_the_bound():
    A = two_groups(40)
    assert_allclose(high_frequency_gain(A), np.sqrt(40 / 2), rtol=1e-12)
    soft = softmax(logits_of("two groups", 40, 6.0, 0), axis=1)
    assert 4.4 < high_frequency_gain(soft) <= high_frequency_gain_bound(40, 6.0)


def test_ratio_of_a_float32_softmax_does_not_drift():
    """What row sums are off would compound with the steps: here to 2 per cent."""
    A, Z = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[3.0], [1.0]])
    off = ((1 + 5e-5) * A).astype(np.float32)
    A32 = off / off.sum(axis=1, keepdims=True, dtype=np.float64)
    found = low_pass_ratio(off, Z, n_steps=400)
    assert_allclose(found, low_pass_ratio(A32, Z, n_steps=400), rtol=1e-10)
    mu = A32[0, 0] - A32[0, 1]
    assert_allclose(found, 0.5 * mu ** np.arange(401.0), rtol=1e-9)


def test_ratio_of_very_small_and_large_values():
    for scale in [1e-320, 1e308]:
        A, Z = [[0.75, 0.25], [0.25, 0.75]], np.array([[1.0], [0.25]])
        exact = 0.6 * 0.5 ** np.arange(1001.0)
        # 1e-320 has three digits; the last ratios are below 1e-300, whose squares vanish.
        found = low_pass_ratio(A, scale * Z, n_steps=1000)
        assert_allclose(found, exact, rtol=1e-3 if scale < 1e-300 else 1e-12)


@given(seed=SEEDS, n=st.integers(1, 40))
def test_equal_rows_leave_no_high_frequencies_at_all(seed, n):
    rng = np.random.default_rng(seed)
    A = np.tile(softmax(rng.standard_normal(n)), (n, 1))
    assert ergodicity_coefficient(A) == high_frequency_gain(A) == 0
    Z = np.tile(rng.standard_normal(2), (n, 1))
    assert not low_pass_ratio(np.eye(n), Z, n_steps=1).any()


def test_gain_of_rectangular_and_of_signed_attention():
    """Up to sqrt(n_queries / 2) if nonnegative; doubly stochastic is not enough with signs."""
    A = np.repeat(np.eye(3)[:2], 5, axis=0)
    Hq, Hk = np.eye(10) - 0.1, np.eye(3) - 1 / 3
    assert_allclose(high_frequency_gain(A), np.linalg.norm(Hq @ A @ Hk, 2), rtol=1e-12)
    assert_allclose(high_frequency_gain(A), np.sqrt(10 / 2), rtol=1e-12)
    signed = np.array([[2.0, -1.0], [-1.0, 2.0]])
    assert_allclose(high_frequency_gain(signed), 3, rtol=1e-12)
