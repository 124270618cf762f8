import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import split_frequencies
from twinsolve.solvers.spectral_filtering import attention_spectrum, high_frequency_share

from ...equations.spectral_filtering.formulas import fourier, smoother


@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_ao_14_to_18_dc_is_the_first_fourier_bin_and_hc_the_rest(seed, n):
    X = np.random.default_rng(seed).standard_normal((n, 3))
    F = fourier(n)
    first = np.diag(np.arange(n) == 0)
    dc, hc = split_frequencies(X)
    assert_allclose(dc, F.conj().T @ first @ F @ X, atol=1e-12)
    assert_allclose(hc, F.conj().T @ (np.eye(n) - first) @ F @ X, atol=1e-12)
    assert_allclose(dc + hc, X, atol=1e-15)
    assert abs(np.vdot(dc, hc)) < 1e-12


def test_split_keeps_the_dtype_and_large_offsets():
    X = np.random.default_rng(0).standard_normal((500, 2)).astype(np.float32) + np.float32(1e4)
    dc, hc = split_frequencies(X)
    assert dc.dtype == hc.dtype == np.float32
    exact = X.astype(np.float64)
    # One rounding of each entry of HC, whatever the offset.
    assert_allclose(hc, exact - exact.mean(axis=0), rtol=1e-7)
    dc[0] = 0
    assert dc[1, 0] != 0


@given(seed=st.integers(0, 10**6), signed=st.booleans())
def test_ao_inv_the_mean_of_the_input_does_not_reach_hc(seed, signed):
    rng = np.random.default_rng(seed)
    A, X = smoother(7, seed), rng.standard_normal((7, 3)) + 5
    if signed:
        A = 2 * A - A @ A
    hc = split_frequencies(A @ X)[1]
    assert_allclose(hc, split_frequencies(A @ split_frequencies(X)[1])[1], atol=1e-12)


def test_erratum_e1_l_the_printed_projector_does_not_remove_the_mean():
    n = 5
    X = np.random.default_rng(0).standard_normal((n, 2))
    printed = (np.eye(n) - np.ones((n, n))) @ X
    dc, hc = split_frequencies(X)
    assert_allclose(printed, hc - (n - 1) * dc, atol=1e-12)
    assert np.abs(printed - hc).max() > 0.1


@given(seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1.0, 100.0]))
def test_ao_hf_share_is_that_of_the_norms(seed, offset):
    X = np.random.default_rng(seed).standard_normal((6, 3)) + offset
    total, high = (X**2).sum(), ((X - X.mean(axis=0)) ** 2).sum()
    share = high_frequency_share(X)
    assert_allclose(share, np.sqrt(high / total), rtol=1e-12)
    dc = split_frequencies(X)[0]
    # The square root of the difference loses the digits that the offset has in common.
    assert_allclose(share, np.sqrt(1 - (dc**2).sum() / total), rtol=1e-15 * total / high + 1e-12)


def test_share_of_degenerate_tokens():
    assert high_frequency_share(np.zeros((3, 2))) == 0
    assert high_frequency_share(np.full((4, 2), 3.0)) == 0
    assert high_frequency_share([[1.0, 2.0]]) == 0
    assert high_frequency_share([[1.0], [-1.0]]) == 1


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), offset=st.sampled_from([0.0, 1e8]))
def test_equal_tokens_have_no_high_frequencies_at_all(seed, n, offset):
    X = np.tile(np.random.default_rng(seed).standard_normal(3) + offset, (n, 1))
    for dtype in (np.float32, np.float64):
        dc, hc = split_frequencies(X.astype(dtype))
        assert not hc.any()
        assert (dc == X.astype(dtype)).all()
        assert high_frequency_share(X.astype(dtype)) == 0


def test_high_frequencies_lose_no_digits_to_a_common_offset():
    """Integers above 2^52: their sum is not exact, their differences are."""
    X = np.random.default_rng(0).integers(0, 100, (64, 2)).astype(np.float64)
    exact = X - X.sum(axis=0) / 64
    far = X + 2.0**52
    assert_allclose(split_frequencies(far)[1], exact, rtol=1e-15)
    share = np.linalg.norm(exact) / np.linalg.norm(far)
    assert_allclose(high_frequency_share(far), share, rtol=1e-14)


def test_share_of_very_small_and_large_tokens():
    for scale in [1e-320, 1e308]:
        # 1e-320 has three digits.
        assert_allclose(high_frequency_share([[0.7 * scale], [-0.1 * scale]]), 0.8, rtol=1e-3)
        assert_allclose(high_frequency_share([[scale], [-scale]]), 1, rtol=1e-15)


def test_share_of_float32_is_computed_in_float64():
    X = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32) + np.float32(1e3)
    exact = X.astype(np.float64)
    share = np.linalg.norm(exact - exact.mean(axis=0)) / np.linalg.norm(exact)
    assert_allclose(high_frequency_share(X), share, rtol=1e-10)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_ao_spec_spectrum_is_the_product_of_three_matrices(seed, n):
    A, F = smoother(n, seed), fourier(n)
    spectrum, intensity = attention_spectrum(A)
    assert_allclose(spectrum, F @ A @ F.conj().T, atol=1e-12)
    assert_allclose(intensity, np.linalg.norm(spectrum, axis=1))
    assert_allclose(spectrum[:, 0], np.eye(n)[0], atol=1e-12)
    assert_allclose(np.linalg.norm(intensity), np.linalg.norm(A), rtol=1e-12)
    assert_allclose(intensity[1:], intensity[:0:-1], rtol=1e-10)
    V = np.random.default_rng(seed + 1).standard_normal((n, 2))
    assert_allclose(spectrum @ (F @ V), F @ (A @ V), atol=1e-12)


@given(seed=st.integers(0, 10**6))
def test_ao_l7_hc_is_the_distance_to_equal_tokens(seed):
    X = np.random.default_rng(seed).standard_normal((6, 3))
    z = np.linalg.lstsq(np.ones((6, 1)), X, rcond=None)[0]
    distance = np.linalg.norm(X - np.ones((6, 1)) @ z)
    assert_allclose(np.linalg.norm(split_frequencies(X)[1]), distance, rtol=1e-10)
