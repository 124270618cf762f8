"""Filters as attention: data-dependent filters, bilateral filter, NLM, BSA and their limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from .formulas import attention, concatenated, draw, norms, on_sphere, square


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


def test_nlsa_is_the_limit_without_positions_if21(tokens, encode, sdpa, rounding):
    p, v, Wq, Wk = encode(len(tokens), 4), draw(len(tokens), 2), draw(4, 4), draw(4, 4, seed=2)
    q, k = concatenated(tokens, p, Wq, Wk, 4**0.25, 1e8)
    atol = max(1e-12, rounding(v, norms(q).max() * norms(k).max()))
    assert_allclose(sdpa(q, k, v, scale=1.0), sdpa(tokens @ Wq, tokens @ Wk, v), atol=atol)
