"""The scale dictionary, line by line, and the fused forms of kernel smoothers as NumPy algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.special import softmax
from sklearn.linear_model import Lasso

from twinsolve.solvers import (
    ista,
    nadaraya_watson,
    nonlocal_means,
    smoother_matrix,
    sparse_self_expression,
)
from twinsolve.solvers.oracles.sparse_coding import sparse_code

from ...equations.kernel_smoothing.formulas import draw, norms, on_sphere, square


def test_gaussian_bandwidths_s_h_and_tau_scale_dictionary_1(tokens, rounding):
    """SE's ``exp(-r^2 / (2 s^2))`` = IF's ``exp(-r^2 / h^2)`` = AO-69 at tau = h^2."""
    s = 0.7
    A = smoother_matrix(tokens, tokens, bandwidth=s)
    atol = rounding(A, norms(tokens) ** 2 / s**2)
    assert_allclose(A, softmax(-square(tokens, tokens) / (2 * s**2), axis=1), atol=atol)


def test_h_of_an_image_is_that_of_its_pixels_scale_dictionary_1():
    image = np.random.default_rng(0).random((4, 5))
    y = image.reshape(20, 1)
    found = nonlocal_means(image, patch_size=1, patch_distance=None, h=0.3)
    expected = nadaraya_watson(y, y, y, bandwidth=0.3 / np.sqrt(2))
    assert_allclose(found.reshape(20, 1), expected, atol=1e-13)
    assert np.abs(nadaraya_watson(y, y, y, bandwidth=0.3) - expected).max() > 1e-2


@pytest.mark.parametrize("d", [4, 64])
def test_scaled_dot_product_is_s2_root_d_and_h2_two_root_d_scale_dictionary_2(d, sdpa):
    q, k, v = 3 * draw(5, d), on_sphere(draw(7, d, seed=2), 2.0), draw(7, 2, seed=3)
    expected = sdpa(q, k, v)
    assert_allclose(nadaraya_watson(q, k, v, bandwidth=d**0.25), expected, atol=1e-13)
    distances = softmax(-square(q, k) / (2 * np.sqrt(d)), axis=1)
    assert_allclose(distances @ v, expected, atol=1e-13)
    wrong = nadaraya_watson(q, k, v, bandwidth=(2 * np.sqrt(d)) ** 0.5)
    assert np.abs(wrong - expected).max() > 1e-2


def test_dot_product_over_h2_is_distance_over_2_h2_scale_dictionary_3(tokens, rounding):
    y, h = on_sphere(tokens), 0.7
    A = softmax(y @ y.T / h**2, axis=1)
    assert_allclose(smoother_matrix(y, y, bandwidth=h), A, atol=rounding(A, h**-2))


def test_dot_product_over_h2_is_not_distance_over_h2_scale_dictionary_3():
    y = on_sphere(draw(6, 4))
    A = softmax(y @ y.T, axis=1)
    assert np.abs(smoother_matrix(y, y, bandwidth=np.sqrt(0.5)) - A).max() > 1e-2


def test_objective_is_a_half_one_and_a_lasso_scale_dictionary_4():
    """``|X - CX|^2 + lam |C|_1``: lam / 2 beside 1/2, and alpha = lam / (2 D) in scikit-learn."""
    X, lam = draw(7, 5), 0.6
    C = sparse_self_expression(X, lam=lam, tol=1e-12).coef.toarray()
    # Twice 1/2 |X - CX|^2 + (lam / 2) |C|_1, by interior points in the halved units.
    halved = sparse_code(X / np.sqrt(2), X / np.sqrt(2), lam=lam / 2, zero_diagonal=True)
    assert_allclose(C, halved, atol=1e-5)

    def lasso(i, alpha):
        model = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=10**6)
        others = np.arange(7) != i
        return others, model.fit(X[others].T, X[i]).coef_

    for i in range(7):
        others, code = lasso(i, lam / (2 * 5))
        assert_allclose(C[i, others], code, atol=1e-6)
    others, code = lasso(0, lam / 5)
    assert np.abs(C[0, others] - code).max() > 1e-2


def test_step_is_twice_the_proximal_gradient_step_scale_dictionary_5():
    Y, D, lam, eps = draw(3, 5), draw(6, 5, seed=2), 0.4, 0.03
    before, after = (ista(Y, D, lam=lam, n_iter=n, step=eps).coef for n in (3, 4))

    def smooth(c):
        return ((Y - c.reshape(3, 6) @ D) ** 2).sum()

    gradient = approx_fprime(before.ravel(), smooth, 1e-7).reshape(3, 6)
    assert_allclose(gradient, -2 * (Y - before @ D) @ D.T, atol=1e-4)
    exact = -2 * (Y - before @ D) @ D.T

    def step(length):
        z = before - length * exact
        return np.sign(z) * np.maximum(np.abs(z) - length * lam, 0)

    assert_allclose(after, step(eps / 2), atol=1e-14)
    assert np.abs(after - step(eps)).max() > 1e-3
