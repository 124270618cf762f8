import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers import high_pass_scale
from twinsolve.solvers.spectral_filtering import high_pass_values, scale_frequencies

SEEDS = st.integers(0, 10**6)
OMEGAS = st.floats(-2, 5)


def problem(seed, n=6):
    rng = np.random.default_rng(seed)
    return softmax(rng.standard_normal((n, n)), axis=1), rng.standard_normal((n, 3)) + 1


@given(seed=SEEDS, omega=OMEGAS)
def test_ao_7_to_9_all_forms_are_the_same(seed, omega):
    A, V = problem(seed)
    n = len(A)
    H = np.eye(n) - 1 / n
    scaled = high_pass_scale(A, omega)
    assert_allclose(scaled, 1 / n + (1 + omega) * (A - 1 / n), atol=1e-12)
    assert_allclose(scaled, A @ (np.eye(n) + omega * H), atol=1e-12)
    assert_allclose(scaled.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(high_pass_values(A @ V, V, omega), scaled @ V, atol=1e-12)


@pytest.mark.parametrize("kind", ["all-pass", "high-pass", "band-pass", "any"])
def test_ao_9_some_attention_and_omega_make_any_matrix_with_rows_of_sum_one(kind):
    """Omega alone does not: it multiplies all of A but the mean by one factor."""
    n, rng = 8, np.random.default_rng(0)
    k = np.minimum(np.arange(n), n - np.arange(n))  # frequencies of a real signal
    gains = {"all-pass": np.ones(n), "high-pass": 1.0 + k, "band-pass": np.where(k == 2, 3, 0.1)}
    F = np.fft.fft(np.eye(n)) / np.sqrt(n)
    if kind == "any":
        wanted = rng.standard_normal((n, n))
        wanted += (1 - wanted.sum(axis=1, keepdims=True)) / n
    else:
        wanted = (F.conj().T @ np.diag([1.0, *gains[kind][1:]]) @ F).real
    omega = 2 * n * np.abs(wanted - 1 / n).max()
    A = softmax(np.log(1 / n + (wanted - 1 / n) / (1 + omega)), axis=1)
    assert_allclose(high_pass_scale(A, omega), wanted, atol=1e-12)


@pytest.mark.parametrize("kind", ["causal", "padding"])
@given(seed=SEEDS, omega=OMEGAS)
def test_ao_7_to_9_uniform_over_visible_keys(kind, seed, omega):
    rng = np.random.default_rng(seed)
    n = 6
    keys = np.arange(n) < 4
    visible = {"causal": np.tri(n, dtype=bool), "padding": keys, "both": np.tri(n) * keys > 0}[kind]
    everywhere = np.broadcast_to(visible, (n, n))
    A = softmax(np.where(everywhere, rng.standard_normal((n, n)), -np.inf), axis=1)
    V = rng.standard_normal((n, 2))
    uniform = everywhere / everywhere.sum(axis=1, keepdims=True)
    expected = uniform + (1 + omega) * (A - uniform)
    scaled = high_pass_scale(A, omega, visible=visible)
    assert_allclose(scaled, expected, atol=1e-12)
    assert not scaled[~everywhere].any()
    assert_allclose(scaled.sum(axis=1), 1, rtol=1e-12)
    found = high_pass_values(A @ V, V, omega, visible=visible)
    assert_allclose(found, expected @ V, atol=1e-12)
    if kind == "causal":
        prefix_mean = V.cumsum(axis=0) / np.arange(1, n + 1)[:, None]
        assert_allclose(found, (1 + omega) * (A @ V) - omega * prefix_mean, atol=1e-12)


@given(seed=SEEDS, s=st.floats(-2, 2), t=st.floats(-2, 2))
def test_ao_10_to_12_featscale_scales_the_mean_and_the_rest(seed, s, t):
    Y = np.random.default_rng(seed).standard_normal((5, 3))
    weights = np.array([s, 0.0, -s]), np.array([t, 2 * t, 0.0])
    mean = Y.mean(axis=0)
    expected = Y + weights[0] * mean + weights[1] * (Y - mean)
    assert_allclose(scale_frequencies(Y, *weights), expected, atol=1e-13)
    assert_allclose(scale_frequencies(Y, s, t), scale_frequencies(Y, [s] * 3, [t] * 3), rtol=0)
    assert_allclose(scale_frequencies(Y, 0, 0), Y, atol=1e-15)


@given(seed=SEEDS, omega=st.floats(0.1, 3))
def test_ao_10_to_12_equals_attnscale_only_for_doubly_stochastic_attention(seed, omega):
    A, V = problem(seed)
    rng = np.random.default_rng(seed)
    doubly = np.mean([np.eye(6)[rng.permutation(6)] for _ in range(4)], axis=0)
    assert_allclose(
        scale_frequencies(doubly @ V, 0, omega), high_pass_values(doubly @ V, V, omega), atol=1e-12
    )
    # The two differ by omega times the column means of A less 1/N, applied to V.
    difference = scale_frequencies(A @ V, 0, omega) - high_pass_values(A @ V, V, omega)
    expected = omega * (V.mean(axis=0) - A.mean(axis=0) @ V)
    assert_allclose(difference, np.tile(expected, (6, 1)), atol=1e-12)
    assert np.abs(difference).max() > 1e-6


@given(seed=SEEDS, omega=OMEGAS, masked=st.booleans())
def test_rows_of_a_float32_softmax_sum_to_one(seed, omega, masked):
    """As near as float32 entries can: the error of the sums of A, up to 1e-4, is taken out."""
    rng = np.random.default_rng(seed)
    A = softmax(rng.standard_normal((6, 300)).astype(np.float32), axis=1)
    A *= (1 + 5e-5 * rng.uniform(-1, 1, (6, 1))).astype(np.float32)
    scaled = high_pass_scale(A, omega, visible=np.ones(300, dtype=bool) if masked else None)
    assert scaled.dtype == np.float32
    # Half an ulp for each entry.
    slack = 2.0**-24 * np.abs(scaled).sum(axis=1, dtype=np.float64).max() + 1e-15
    assert_allclose(scaled.sum(axis=1, dtype=np.float64), 1, atol=slack)


def test_weight_on_a_hidden_key_is_refused_however_small():
    visible = np.array([[True, True, False]])
    high_pass_scale([[0.5, 0.5, 0.0]], 0.1, visible=visible)
    for hidden in (1e-300, 1e-14, 0.5, -0.5):
        with pytest.raises(ValueError, match=r"^visible: must be True where A has weight"):
            high_pass_scale([[0.5, 0.5 - hidden, hidden]], 0.1, visible=visible)


def test_mean_of_float32_values_is_taken_in_float64():
    """Sums over 20,000 tokens in float32 lose four digits."""
    V = np.full((20_000, 3), 0.1, dtype=np.float32)
    exact = V.astype(np.float64).mean(axis=0, keepdims=True)
    found = high_pass_values(np.zeros((1, 3), dtype=np.float32), V, 1.0)
    assert_allclose(found, -exact, rtol=6e-8)
