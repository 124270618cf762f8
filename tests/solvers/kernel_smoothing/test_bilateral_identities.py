"""Filters as attention: data-dependent filters, bilateral filter, NLM, BSA and their limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers import nadaraya_watson, nonlocal_means
from twinsolve.solvers.kernel_smoothing import weighted_least_squares_residual

from ...equations.kernel_smoothing.formulas import (
    attention,
    concatenated,
    draw,
    norms,
    on_sphere,
    square,
)


def bilateral(y, p, v, h_y, h_p):
    """Bilateral filter on tokens by kernel regression: ``h^2 = 2 s^2`` at s^2 = 1/2."""
    features = np.hstack([y / h_y, p / h_p])
    return nadaraya_watson(features, features, v, bandwidth=np.sqrt(0.5))


@pytest.mark.parametrize("signed", [False, True])
def test_filter_is_the_unique_least_squares_estimate_if9_if10_if11_if12(tokens, signed):
    """``F(u + d) - F(u) = |d|^2 sum_j K_ij``: only the row sums of K must be positive."""
    n = len(tokens)
    y = tokens / norms(tokens).max()
    K = np.abs(draw(n, n)) * (draw(n, n, seed=2) > -0.5) + np.eye(n)
    if signed:
        K -= 0.4 * K.sum(axis=1, keepdims=True) / n
    u = K @ y / K.sum(axis=1, keepdims=True)
    if not signed:
        assert weighted_least_squares_residual(K, y, u).max() < 1e-14
    step = draw(n, 4, seed=3)

    def objective(estimate):
        return np.array([K[i] @ ((y - estimate[i]) ** 2).sum(axis=1) for i in range(n)])

    rise = objective(u + step) - objective(u)
    assert (K.sum(axis=1) > 0).all()
    assert_allclose(rise, (step**2).sum(axis=1) * K.sum(axis=1), rtol=1e-10)


def test_without_positive_mass_there_is_no_minimiser_if12():
    K, y = np.array([[1.0, -2.0]]), np.array([[0.0], [1.0]])
    stationary = K @ y / K.sum()
    values = [(K @ (y - u) ** 2).item() for u in (stationary, stationary + 5)]
    assert values[1] < values[0]
    for refused, words in ((K, "must be >= 0"), (0 * K, "every row must have a positive sum")):
        with pytest.raises(ValueError, match=f"weights: {words}"):
            weighted_least_squares_residual(refused, y, stationary)


@pytest.mark.parametrize("h_p", [1e-3, 0.7, 1e8])
@pytest.mark.parametrize("h_y", [1e-3, 0.9, 1e8])
def test_bilateral_filter_is_the_loop_if13(tokens, encode, h_y, h_p, rounding):
    p, y = encode(len(tokens), 4), tokens
    expected = np.zeros_like(y)
    for i in range(len(y)):
        range_, space = ((y - y[i]) ** 2).sum(axis=1), ((p - p[i]) ** 2).sum(axis=1)
        weights = np.exp(-space / h_p**2 - range_ / h_y**2)
        expected[i] = sum(w * value for w, value in zip(weights, y, strict=True)) / weights.sum()
    terms = norms(y) ** 2 / h_y**2, norms(p) ** 2 / h_p**2
    # A kernel of 1 at the token itself: where h is tiny, it alone is left, whatever the rounding.
    atol = min(rounding(y, *terms), 1e-6 * np.abs(y).max())
    assert_allclose(bilateral(y, p, y, h_y, h_p), expected, atol=atol)


def test_bilateral_bandwidth_is_h_not_s_erratum_e0b(encode):
    y, p = draw(8, 3), encode(8, 4)
    features = np.hstack([y / 0.9, p / 0.7])
    expected = attention(-square(y, y) / 0.9**2 - square(p, p) / 0.7**2, y)
    assert_allclose(bilateral(y, p, y, 0.9, 0.7), expected, rtol=1e-12)
    as_s = nadaraya_watson(features, features, y, bandwidth=1.0)
    assert np.abs(as_s - expected).max() > 1e-2
    # Equation 13 is written for scalars; a filter a feature is not that of the vectors.
    scalar = np.hstack([bilateral(y[:, [c]], p, y[:, [c]], 0.9, 0.7) for c in range(3)])
    assert np.abs(scalar - expected).max() > 1e-2


def test_bilateral_limits_are_nlm_and_the_gaussian_filter_if14(tokens, encode):
    p, y = encode(len(tokens), 4), tokens / norms(tokens).max()
    s = 0.4 / np.sqrt(2)
    nlm = nadaraya_watson(y, y, y, bandwidth=s)
    assert_allclose(bilateral(y, p, y, 0.4, 1e8), nlm, atol=1e-12)
    assert_allclose(bilateral(y, p, y, 1e8, 0.4), nadaraya_watson(p, p, y, bandwidth=s), atol=1e-12)


def test_nlm_of_an_image_is_the_bilateral_filter_of_its_patches_without_positions_if14():
    image = np.random.default_rng(0).random((5, 6))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, 1, mode="reflect"), (3, 3))
    y, p = windows.reshape(30, 9), np.indices((5, 6)).reshape(2, 30).T
    h = 0.3
    found = bilateral(y, p, image.reshape(30, 1), 3 * h, 1e8).reshape(5, 6)
    expected = nonlocal_means(image, patch_size=3, patch_distance=None, h=h)
    assert_allclose(found, expected, atol=1e-12)


def test_attention_is_the_filter_with_kernel_k_sa_if17_theorem_iii1(tokens, encode, sdpa, rounding):
    p = encode(len(tokens), 4)
    x = tokens + p
    u = sdpa(x, x, tokens)
    logits = x @ x.T / 2
    # The scale of a row of K_SA is free, so exp does not overflow.
    K = np.exp(logits - logits.max(axis=1, keepdims=True))
    tolerance = max(1e-10, rounding(np.ones(1), logits))
    assert weighted_least_squares_residual(K, tokens, u).max() < tolerance


def test_values_must_be_y_and_not_x_theorem_iii1_erratum_e0c(encode, sdpa):
    y, p = draw(8, 4), encode(8, 4)
    x = y + p
    A = softmax(x @ x.T / 2, axis=1)
    assert_allclose(sdpa(x, x, x) - sdpa(x, x, y), A @ p, atol=1e-13)
    assert np.abs(A @ p).max() > 0.5
    assert weighted_least_squares_residual(A, y, sdpa(x, x, y)).max() < 1e-14
    assert weighted_least_squares_residual(A, y, sdpa(x, x, x)).min() > 1e-2


def test_layers_are_filterings_with_the_kernel_recomputed_corollary_iii1(tokens, encode, sdpa):
    y, p = 2 * tokens / norms(tokens).max(), encode(len(tokens), 4)
    u = filtered = y
    for _ in range(4):
        K = np.exp((filtered + p) @ (filtered + p).T / 2)
        filtered = np.array([(row[:, None] * filtered).sum(axis=0) / row.sum() for row in K])
        last, u = u, sdpa(u + p, u + p, u)
        assert weighted_least_squares_residual(K, last, u).max() < 1e-10
        assert_allclose(u, filtered, atol=1e-12)


def test_natural_bandwidth_of_bsa_is_not_that_of_the_filter_erratum_e0q(encode):
    """Equation 21 needs ``h^2 = sqrt d`` where equation 13 needs ``2 sqrt d``."""
    y, p = draw(8, 4), encode(8, 4)
    q, _ = concatenated(y, p, np.eye(4), np.eye(4), 2, 2)
    whole, cross = (y + p) @ (y + p).T / 2, (y @ p.T + p @ y.T) / 2
    assert np.abs(attention(q @ q.T, y) - attention(whole - cross, y)).max() > 1e-2
    y = on_sphere(y)
    h = np.sqrt(2 * 2)
    assert_allclose(bilateral(y, p, y, h, h), attention(y @ y.T / 2 + p @ p.T / 2, y), atol=1e-13)
    wrong = bilateral(y, p, y, np.sqrt(2), np.sqrt(2))
    assert np.abs(wrong - attention(y @ y.T / 2 + p @ p.T / 2, y)).max() > 1e-2


@pytest.mark.parametrize(("h_y", "h_p"), [(1e-3, 1.0), (0.7, 0.4), (2.0, 5.0)])
def test_bsa_on_spheres_is_the_bilateral_filter_if21(tokens, encode, h_y, h_p, sdpa, rounding):
    """Dot products over ``h^2`` are distances over ``2 h^2``."""
    y, p = on_sphere(tokens), encode(len(tokens), 4)
    q, k = concatenated(y, p, np.eye(4), np.eye(4), h_y, h_p)
    expected = bilateral(y, p, tokens, np.sqrt(2) * h_y, np.sqrt(2) * h_p)
    atol = rounding(tokens, h_y**-2, norms(p) ** 2 / h_p**2)
    assert_allclose(sdpa(q, k, tokens, scale=1.0), expected, atol=atol)
