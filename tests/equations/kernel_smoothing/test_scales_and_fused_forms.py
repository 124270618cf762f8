"""The scale dictionary, line by line, and the fused forms of kernel smoothers as NumPy algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from .formulas import draw, norms, square


def biased(q, k, bias):
    """``q' = [q, 1]`` and ``k' = [k, bias]``: a bias of the keys as one more feature."""
    one = np.ones((len(q), 1), q.dtype)
    return np.hstack([q, one]), np.hstack([k, bias[:, None]])


@pytest.mark.parametrize("s", [0.3, 1.0, 10.0])
def test_key_norm_as_a_feature_ff4(tokens, s, sdpa, rounding):
    q, v = tokens[::-1] + 0.5, draw(len(tokens), 2)
    k = tokens
    q1, k1 = biased(q, k, -(norms(k) ** 2) / 2)
    atol = rounding(v, norms(q) ** 2 / s**2, norms(k) ** 2 / s**2)
    expected = softmax(-square(q, k) / (2 * s**2), axis=1) @ v
    assert_allclose(sdpa(q1, k1, v, scale=1 / s**2), expected, atol=atol)
    padding = np.zeros((len(tokens), 3))
    q0, k0 = np.hstack([q1, padding]), np.hstack([k1, padding])
    assert_allclose(sdpa(q0, k0, v, scale=1 / s**2), expected, atol=atol)


def bilateral_features(y, p, h_y, h_p):
    """The features of FF-5, whose dot products are bilateral logits at scale 1."""
    features = np.hstack([np.sqrt(2) * y / h_y, np.sqrt(2) * p / h_p]).astype(y.dtype)
    bias = -((y**2).sum(axis=1) / h_y**2 + (p**2).sum(axis=1) / h_p**2)
    return biased(features, features, bias.astype(y.dtype))


@pytest.mark.parametrize(("h_y", "h_p"), [(0.3, 0.8), (1.0, 1e8), (5.0, 0.1)])
def test_bilateral_features_ff5(tokens, encode, h_y, h_p, sdpa, rounding):
    y, p = tokens, encode(len(tokens), 4)
    q, k = bilateral_features(y, p, h_y, h_p)
    expected = softmax(-square(p, p) / h_p**2 - square(y, y) / h_y**2, axis=1) @ y
    atol = rounding(y, 2 * norms(y) ** 2 / h_y**2, 2 * norms(p) ** 2 / h_p**2)
    assert_allclose(sdpa(q, k, y, scale=1.0), expected, atol=atol)


def test_fused_distances_are_to_be_centred_in_float32_ff4_note_b():
    """At an offset of 100, |k|^2 / 2 is 4e4 in float32: an ulp of it is 4e-3 in a logit."""
    x, v = (draw(64, 8) + 100).astype(np.float32), draw(64, 4, seed=2).astype(np.float32)
    exact = softmax(-square(x.astype(float), x.astype(float)) / 2, axis=1) @ v

    def fused(k):
        q1, k1 = biased(k, k, -(k**2).sum(axis=1) / 2)
        found = softmax(q1 @ k1.T, axis=1) @ v
        assert found.dtype == np.float32
        return np.abs(found - exact).max()

    assert fused(x) > 1e-3
    assert fused(x - x.mean(axis=0)) < 3e-6


def test_fused_bilateral_is_to_be_centred_in_float32_ff5_note_b(encode):
    y, p = (draw(64, 4) + 100).astype(np.float32), encode(64, 4).astype(np.float32)
    v = draw(64, 4, seed=2).astype(np.float32)
    wide = y.astype(float), p.astype(float)
    exact = softmax(-square(wide[0], wide[0]) - square(wide[1], wide[1]), axis=1) @ v

    def fused(y):
        q, k = bilateral_features(y, p, 1.0, 1.0)
        return np.abs(softmax(q @ k.T, axis=1) @ v - exact).max()

    assert fused(y) > 1e-3
    assert fused(y - y.mean(axis=0)) < 3e-6


@pytest.mark.parametrize("own", [False, True])
def test_bsa_and_tupe_features_ff6(tokens, encode, own, sdpa, rounding):
    """TUPE has projections of its own for the positions, and scale 1 / sqrt(2 d)."""
    n, d = len(tokens), 3
    p, v = encode(n, 4), draw(n, 2)
    Wq, Wk, Hq, Hk = (draw(4, d, seed=seed) for seed in range(4))
    if not own:
        Hq, Hk = Wq, Wk
    h_y, h_p, scale = (1.0, 1.0, (2 * d) ** -0.5) if own else (0.7, 1.5, 1.0)
    q = np.hstack([tokens @ Wq / h_y, p @ Hq / h_p])
    k = np.hstack([tokens @ Wk / h_y, p @ Hk / h_p])
    content, position = (tokens @ Wq) @ (tokens @ Wk).T, (p @ Hq) @ (p @ Hk).T
    logits = scale * (content / h_y**2 + position / h_p**2)
    atol = rounding(v, norms(q).max() * norms(k).max(), logits)
    assert_allclose(sdpa(q, k, v, scale=scale), softmax(logits, axis=1) @ v, atol=atol)


@pytest.mark.parametrize("m", [0.0, 0.25, 30.0])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_causal_alibi_needs_no_mask_ff7c(tokens, m, scale, sdpa, rounding):
    """``-m (i - j)``: the i part is constant in a row, the j part a feature of the key."""
    n = len(tokens)
    j, v = np.arange(n), draw(n, 2)
    q, k = biased(tokens[::-1], tokens, m * j / scale)
    logits = scale * tokens[::-1] @ tokens.T - m * np.abs(j[:, None] - j)
    logits = np.where(j[:, None] >= j, logits, -np.inf)
    atol = rounding(v, scale * norms(tokens) ** 2, 2 * m * n)
    expected = softmax(logits, axis=1) @ v
    assert_allclose(sdpa(q, k, v, scale=scale, is_causal=True), expected, atol=atol)
    bias = np.where(j[:, None] >= j, -m * np.abs(j[:, None] - j), -np.inf)
    assert_allclose(sdpa(tokens[::-1], tokens, v, mask=bias, scale=scale), expected, atol=atol)
