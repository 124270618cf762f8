"""Filters as attention: data-dependent filters, bilateral filter, NLM, BSA and their limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from scipy.special import softmax

from twinsolve.solvers import nadaraya_watson, nonlocal_means
from twinsolve.solvers.kernel_smoothing import weighted_least_squares_residual


def draw(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def norms(x):
    return np.linalg.norm(x, axis=1)


def on_sphere(x, radius=1.0):
    return radius * x / norms(x)[:, None]


def attention(logits, values):
    return softmax(logits, axis=1) @ values


def square(x, y):
    return cdist(x, y, "sqeuclidean")


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


def test_a_frozen_kernel_is_not_the_layers_corollary_iii1(encode, sdpa):
    y, p = draw(8, 4), encode(8, 4)
    first = softmax((y + p) @ (y + p).T / 2, axis=1)
    u = sdpa(y + p, y + p, y)
    assert np.abs(sdpa(u + p, u + p, u) - first @ first @ y).max() > 1e-2


def alpha(c, d):
    return np.exp((2 * c**2 + d) / np.sqrt(d))


def factors(y, p):
    """K_SA, the bilateral kernel and the cross factor at ``hp^2 = hy^2 = 2 sqrt d``."""
    h2 = 2 * np.sqrt(y.shape[1])
    K_SA = np.exp((y + p) @ (y + p).T / np.sqrt(y.shape[1]))
    K_BF = np.exp(-square(p, p) / h2 - square(y, y) / h2)
    return K_SA, K_BF, np.exp(-square(p, y) / h2 - square(y, p) / h2)


@pytest.mark.parametrize("c", [1e-3, 0.5, 1.0, 3.0])
def test_attention_kernel_factorises_on_a_sphere_if19_proposition_iii2(tokens, encode, c):
    y, p = on_sphere(tokens, c), encode(len(tokens), 4)
    K_SA, K_BF, cross = factors(y, p)
    assert_allclose(K_SA / (K_BF * cross) / alpha(c, 4), 1, atol=1e-10)


@given(
    n=st.integers(1, 12), half=st.integers(1, 40), c=st.floats(1e-3, 4), seed=st.integers(0, 10**6)
)
def test_attention_kernel_factorises_in_any_dimension_if19_proposition_iii2(
    encode, n, half, c, seed
):
    y, p = on_sphere(draw(n, 2 * half, seed=seed), c), encode(n, 2 * half)
    K_SA, K_BF, cross = factors(y, p)
    assert_allclose(K_SA / (K_BF * cross) / alpha(c, 2 * half), 1, atol=1e-10)


@pytest.mark.parametrize("d", [2, 4, 16, 64])
@pytest.mark.parametrize("c", [0.2, 2.0])
def test_constant_of_proposition_iii2_if19_erratum_e0f(encode, c, d):
    y, p = on_sphere(draw(7, d), c), encode(7, d)
    K_SA, K_BF, cross = factors(y, p)
    ratio = K_SA / (K_BF * cross)
    assert_allclose(ratio / alpha(c, d), 1, atol=1e-10)
    printed = np.exp(2 * c**2 + d / 2)
    assert np.abs(ratio / printed - 1).min() > 1e-2
    # A constant cancels in the softmax all the same.
    logits = np.log(K_BF * cross)
    assert_allclose(softmax(logits, axis=1), K_SA / K_SA.sum(axis=1, keepdims=True), atol=1e-13)


def test_without_a_sphere_there_is_no_constant_proposition_iii2(encode):
    K_SA, K_BF, cross = factors(draw(7, 4), encode(7, 4))
    ratio = K_SA / (K_BF * cross)
    assert ratio.max() > 2 * ratio.min()


def both_sides_of_proposition_iii2(y_q, y_k, p, v):
    """Attention and its factorised kernel for queries and keys that may differ."""
    h2 = 2 * np.sqrt(y_q.shape[1])
    distances = [square(p, p), square(y_q, y_k), square(p, y_k), square(y_q, p)]
    dot_products = (y_q + p) @ (y_k + p).T / np.sqrt(y_q.shape[1])
    return attention(dot_products, v), attention(-sum(distances) / h2, v)


def test_only_key_norms_need_be_equal_if19_erratum_e0f(tokens, encode, rounding):
    """ "Equivalent iff tokens lie on spheres" asks too much: queries may lie anywhere."""
    n = len(tokens)
    p, v = encode(n, 4), draw(n, 2)
    sides = both_sides_of_proposition_iii2(tokens, on_sphere(draw(n, 4, seed=2)), p, v)
    assert_allclose(*sides, atol=rounding(v, norms(tokens) ** 2, 4))


def test_spheres_of_queries_do_not_help_if19_erratum_e0f(encode):
    p, v = encode(7, 4), draw(7, 2)
    attention_, filter_ = both_sides_of_proposition_iii2(on_sphere(draw(7, 4)), draw(7, 4), p, v)
    assert np.abs(attention_ - filter_).max() > 1e-2


def concatenated(y, p, Wq, Wk, h_y, h_p):
    q = np.hstack([y @ Wq / h_y, p @ Wq / h_p])
    return q, np.hstack([y @ Wk / h_y, p @ Wk / h_p])


@pytest.mark.parametrize("h_p", [0.5, 2.0, 1e8])
@pytest.mark.parametrize("h_y", [0.5, 2.0])
def test_bsa_is_one_attention_on_concatenated_features_if21_ff6(
    tokens, encode, h_y, h_p, sdpa, rounding
):
    n = len(tokens)
    p, v, Wq, Wk = encode(n, 4), draw(n, 2), draw(4, 3, seed=2), draw(4, 3, seed=3)
    W = Wq @ Wk.T
    logits = p @ W @ p.T / h_p**2 + tokens @ W @ tokens.T / h_y**2
    q, k = concatenated(tokens, p, Wq, Wk, h_y, h_p)
    atol = rounding(v, norms(q).max() * norms(k).max(), logits)
    assert_allclose(sdpa(q, k, v, scale=1.0), attention(logits, v), atol=atol)


def test_bsa_is_attention_less_the_cross_terms_if21_erratum_e0q(tokens, encode, sdpa, rounding):
    n = len(tokens)
    p, v, Wq, Wk = encode(n, 4), draw(n, 2), draw(4, 4, seed=2), draw(4, 4, seed=3)
    W, root = Wq @ Wk.T, np.sqrt(4)
    x = tokens + p
    whole = (x @ Wq) @ (x @ Wk).T / root
    cross = (tokens @ W @ p.T + p @ W @ tokens.T) / root
    q, k = concatenated(tokens, p, Wq, Wk, np.sqrt(root), np.sqrt(root))
    atol = 4 * rounding(v, whole, cross, norms(q).max() * norms(k).max())
    assert_allclose(sdpa(q, k, v, scale=1.0), attention(whole - cross, v), atol=atol)
    assert_allclose(sdpa(x @ Wq, x @ Wk, v), attention(q @ k.T + cross, v), atol=atol)


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


def test_nlsa_is_the_limit_without_positions_if21(tokens, encode, sdpa, rounding):
    p, v, Wq, Wk = encode(len(tokens), 4), draw(len(tokens), 2), draw(4, 4), draw(4, 4, seed=2)
    q, k = concatenated(tokens, p, Wq, Wk, 4**0.25, 1e8)
    atol = max(1e-12, rounding(v, norms(q).max() * norms(k).max()))
    assert_allclose(sdpa(q, k, v, scale=1.0), sdpa(tokens @ Wq, tokens @ Wk, v), atol=atol)
