"""Attention and kernel regression: SE-1 to SE-8 and their like, but for the bilateral family."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from twinsolve.solvers import nadaraya_watson

from ...equations.kernel_smoothing.formulas import attention, draw, norms, on_sphere

KERNELS = {
    "gaussian": lambda r: np.exp(-(r**2) / 2),
    "laplace": lambda r: np.exp(-r),
    "cauchy": lambda r: 1 / (1 + r**2),
    "epanechnikov": lambda r: np.maximum(1 - r**2, 0),
}


@pytest.mark.parametrize("name", KERNELS)
def test_any_kernel_is_attention_with_its_logarithm_as_logits_se5(tokens, name, sdpa, rounding):
    k, v, s = tokens, draw(len(tokens), 2), 1 + np.abs(tokens).max() / 2
    q = tokens + 0.1 * s
    with np.errstate(divide="ignore"):
        logits = np.log(KERNELS[name](cdist(q, k) / s))
    expected = sdpa(q, 0 * k, v, mask=logits)
    kernel = name if name in ("gaussian", "laplace") else KERNELS[name]
    found = nadaraya_watson(q, k, v, bandwidth=s, kernel=kernel)
    # Weights err by ulps of the squared points, on a mass of at least the largest weight.
    mass = np.exp(logits.max(axis=1).min())
    assert_allclose(found, expected, atol=rounding(v, (norms(k).max() / s) ** 2 / mass))


def test_exp_of_minus_dist2_is_laplace_if_dist2_is_the_distance_minor_erratum_se():
    q, k, v = draw(5, 3), draw(7, 3, seed=2), draw(7, 2, seed=3)
    for kernel, bandwidth, dist2 in (
        ("laplace", 1.0, cdist(q, k)),
        ("gaussian", np.sqrt(0.5), cdist(q, k) ** 2),
    ):
        found = nadaraya_watson(q, k, v, bandwidth=bandwidth, kernel=kernel)
        assert_allclose(found, attention(-dist2, v), rtol=1e-12)
    # As printed, dist is a distance, and its square gives no Laplace kernel of any bandwidth:
    # logits of the one are the squares of the other's, and no multiple.
    printed = attention(-(cdist(q, k) ** 2), v)
    for bandwidth in np.geomspace(0.1, 10, 21):
        laplace = nadaraya_watson(q, k, v, bandwidth=bandwidth, kernel="laplace")
        assert np.abs(laplace - printed).max() > 1e-2


def test_a_wasserstein_kernel_of_sets_of_numbers_is_a_gaussian_one_if_sorted_se_3_1():
    """Tokens are six numbers in any order; their distances are of the best assignments."""
    q, k, v = draw(5, 6), draw(7, 6, seed=2), draw(7, 2, seed=3)

    def square(x, y):
        costs = np.subtract.outer(x, y) ** 2
        return costs[linear_sum_assignment(costs)].mean()

    expected = attention(-np.array([[square(x, y) for y in k] for x in q]), v)
    found = nadaraya_watson(np.sort(q), np.sort(k), v, bandwidth=np.sqrt(3))
    assert_allclose(found, expected, rtol=1e-12)
    unsorted = nadaraya_watson(q, k, v, bandwidth=np.sqrt(3))
    assert np.abs(unsorted - expected).max() > 1e-2


@pytest.mark.parametrize("s", [1e-2, 1.0])
def test_gaussian_logits_are_a_dot_product_with_a_key_bias_se6(tokens, s, sdpa, rounding):
    """No norm is assumed: the query norm cancels, the key norm is the bias."""
    q, k, v = tokens[::-1] + 0.3, tokens, draw(len(tokens), 2)
    atol = rounding(v, norms(q) ** 2 / s**2, norms(k) ** 2 / s**2)
    found = nadaraya_watson(q, k, v, bandwidth=s)
    bias = -(norms(k) ** 2) / (2 * s**2)
    assert_allclose(found, attention(q @ k.T / s**2 + bias, v), atol=atol)
    assert_allclose(found, attention(-cdist(q, k, "sqeuclidean") / (2 * s**2), v), atol=atol)
    assert_allclose(found, sdpa(q, k, v, mask=bias[None] + 0 * q[:, :1], scale=s**-2), atol=atol)


def test_small_bandwidths_take_the_nearest_and_share_among_ties_se6(tokens, rounding):
    q, k, v = tokens + 0.01 * np.abs(tokens).max(), tokens, draw(len(tokens), 2)
    square = cdist(q, k, "sqeuclidean")
    nearest = square <= square.min(axis=1, keepdims=True) + 1e-12 * norms(k).max() ** 2
    others = np.where(nearest, np.inf, square - square.min(axis=1, keepdims=True))
    # The nearest others weigh exp(-50).
    s = min(np.sqrt(others.min() / 100), np.abs(tokens).max())
    expected = nearest / nearest.sum(axis=1, keepdims=True) @ v
    atol = rounding(v, norms(q) ** 2 / s**2) + 1e-20
    assert atol < 1e-4
    assert_allclose(nadaraya_watson(q, k, v, bandwidth=s), expected, atol=atol)


def test_equal_key_norms_make_it_dot_product_attention_for_any_queries_se7(tokens, sdpa, rounding):
    q, k, v = 3 * tokens[::-1], on_sphere(tokens), draw(len(tokens), 2)
    s = 4**0.25
    atol = rounding(v, norms(q) ** 2, 1)
    found = nadaraya_watson(q, k, v, bandwidth=s)
    assert_allclose(found, attention(q @ k.T / s**2, v), atol=atol)
    assert_allclose(found, sdpa(q, k, v), atol=atol)


def test_scores_over_two_s2_as_printed_are_not_it_erratum_e3a():
    q, k, v = draw(6, 3), on_sphere(draw(9, 3, seed=2)), draw(9, 2, seed=3)
    printed = attention(q @ k.T / (2 * 0.6**2), v)
    assert np.abs(nadaraya_watson(q, k, v, bandwidth=0.6) - printed).max() > 1e-2


def test_mahalanobis_dot_product_alone_needs_equal_mahalanobis_norms_se7m():
    x, v, W = draw(6, 4), draw(6, 2, seed=2), draw(4, 4, seed=3)
    settings = {"bandwidth": 1.0, "precision": W @ W.T}
    without_bias = attention(x @ W @ W.T @ x.T, v)
    assert np.abs(nadaraya_watson(x, x, v, **settings) - without_bias).max() > 1e-2
    x = x / norms(x @ W)[:, None]
    assert_allclose(
        nadaraya_watson(x, x, v, **settings), attention(x @ W @ W.T @ x.T, v), rtol=1e-11
    )
