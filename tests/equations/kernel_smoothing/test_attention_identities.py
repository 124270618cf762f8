"""Attention and kernel regression: SE-1 to SE-8 and their like, but for the bilateral family."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax

from .formulas import attention, draw, norms


def test_rows_of_attention_average_the_values_se1_se2_se4(tokens, sdpa, rounding):
    q, k, v = tokens @ draw(4, 5), tokens @ draw(4, 5, seed=2), tokens @ draw(4, 3, seed=3)
    A = softmax(q @ k.T / np.sqrt(5), axis=1)
    assert (A >= 0).all()
    assert_allclose(A.sum(axis=1), 1, rtol=1e-14)
    atol = rounding(v, norms(q).max() * norms(k).max())
    assert_allclose(sdpa(q, k, v), A @ v, atol=atol)


def test_printed_column_form_is_the_transpose_se1_se2(tokens, sdpa, rounding):
    X, Wq, Wk, Wv = tokens.T, draw(5, 4), draw(5, 4, seed=2), draw(3, 4, seed=3)
    Q, K, V = Wq @ X, Wk @ X, Wv @ X
    Z = V @ softmax(K.T @ Q / np.sqrt(5), axis=0)
    atol = rounding(V, norms(Q.T).max() * norms(K.T).max())
    assert_allclose(Z, sdpa(Q.T, K.T, V.T).T, atol=atol)


def test_second_line_of_eq3_is_attention_and_the_first_is_not_if3_if4_erratum_e0a(sdpa):
    x, Wq, Wk, v = draw(6, 4), draw(4, 4, seed=2), draw(4, 4, seed=3), draw(6, 2, seed=4)

    def token_by_token(left, right):
        out = np.zeros_like(v)
        for i in range(6):
            weights = np.array([np.exp(x[i] @ left @ right.T @ x[j] / 2) for j in range(6)])
            out[i] = sum(w * y for w, y in zip(weights, v, strict=True)) / weights.sum()
        return out

    expected = sdpa(x @ Wq, x @ Wk, v)
    assert_allclose(token_by_token(Wq, Wk), expected, rtol=1e-12)
    assert np.abs(token_by_token(Wk, Wq) - expected).max() > 1e-2
    assert_allclose(token_by_token(Wq, Wq), sdpa(x @ Wq, x @ Wq, v), rtol=1e-12)


@given(n=st.integers(1, 200), half=st.integers(1, 32))
def test_norms_and_products_of_position_encodings_if5(encode, n, half):
    p = encode(n, 2 * half)
    i = np.arange(n)
    angles = (i[:, None] - i)[..., None] / 1e4 ** (2 * np.arange(half) / (2 * half))
    # Angles up to n err by ulps of n, over d / 2 terms.
    assert_allclose(p @ p.T, np.cos(angles).sum(axis=-1), atol=1e-12 * half)
    assert_allclose((p**2).sum(axis=1), half, rtol=1e-13)


def test_logits_of_token_plus_position_are_four_terms_if6(tokens, encode, sdpa, rounding):
    p, v = encode(len(tokens), 4), draw(len(tokens), 2)
    Wq, Wk = draw(4, 4), draw(4, 4, seed=2)
    W = Wq @ Wk.T
    terms = [left @ W @ right.T / 2 for left in (tokens, p) for right in (tokens, p)]
    x = tokens + p
    assert_allclose(sdpa(x @ Wq, x @ Wk, v), attention(sum(terms), v), atol=4 * rounding(v, *terms))


def test_elliptical_attention_rescales_the_queries_if31(tokens, sdpa, rounding):
    q, k, v = tokens @ draw(4, 4), tokens @ draw(4, 4, seed=2), draw(len(tokens), 2)
    for M in (np.diag([0.3, 2.0, 0.0, 1.0]), np.zeros((4, 4)), np.eye(4)):
        expected = attention(q @ M @ k.T / 2, v)
        atol = rounding(v, norms(q @ M).max() * norms(k).max())
        assert_allclose(sdpa(q @ M, k, v), expected, atol=atol)
    assert_allclose(sdpa(q, k, v), expected, atol=atol)


def test_logistic_attention_has_rank_one_ao68(tokens, rounding):
    u_q, u_k, b = draw(4), draw(4, seed=2), 0.7
    logits = (tokens @ u_q)[:, None] + tokens @ u_k + b
    A = softmax(logits, axis=1)
    a = softmax(tokens @ u_k)
    assert_allclose(A, np.broadcast_to(a, A.shape), atol=rounding(A, logits))
    high = A @ tokens - (A @ tokens).mean(axis=0)
    assert_allclose(high, 0, atol=rounding(tokens, logits))


def test_tupe_is_one_attention_on_concatenated_features_if30(tokens, encode, sdpa, rounding):
    n, d = len(tokens), 3
    p, v, b = encode(n, 4), draw(n, 2), draw(n, n, seed=9)
    Wq, Wk, Hq, Hk = (draw(4, d, seed=seed) for seed in range(4))
    logits = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            content = tokens[i] @ Wq @ Wk.T @ tokens[j]
            logits[i, j] = (content + p[i] @ Hq @ Hk.T @ p[j]) / np.sqrt(2 * d) + b[i, j]
    q, k = np.hstack([tokens @ Wq, p @ Hq]), np.hstack([tokens @ Wk, p @ Hk])
    atol = rounding(v, 4 * norms(tokens) ** 2, b)
    assert_allclose(sdpa(q, k, v, mask=b), attention(logits, v), atol=atol)


def test_a_local_mask_misses_what_lies_beyond_its_windows_se_2_4():
    """A token of 12 moves: softmax feels it in one layer, windows of 5 in six at the earliest."""
    x = draw(12, 4)
    moved = x + np.eye(12)[:, -1:]
    near = np.abs(np.subtract.outer(np.arange(12), np.arange(12))) <= 2

    def first_token(tokens, mask, depth):
        for _ in range(depth):
            tokens = attention(np.where(mask, tokens @ tokens.T / 2, -np.inf), tokens)
        return tokens[0]

    everywhere = np.ones_like(near)
    assert np.abs(first_token(moved, everywhere, 1) - first_token(x, everywhere, 1)).max() > 1e-3
    felt = [(first_token(moved, near, k) != first_token(x, near, k)).any() for k in range(1, 8)]
    assert felt == [False] * 5 + [True] * 2
