import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax

from .formulas import high, logits_of

SEEDS = st.integers(0, 10**6)


KINDS = st.sampled_from(["gaussian", "signs", "two groups", "one hot", "constant", "offset rows"])


def test_erratum_e1_e_corollary_2_fails_in_the_limit_of_depth():
    """All layers are positive, but growing logits let the high frequencies through."""
    n, product, norms = 4, np.eye(4), {}
    for layer in range(1, 4001):
        product = softmax((2 * np.log(layer + 1) + 3) * np.eye(n), axis=1) @ product
        norms[layer] = np.linalg.norm(high(product), 2)
    assert norms[4000] > 0.85
    assert norms[2000] - norms[4000] < 1e-4
    first = softmax((2 * np.log(2) + 3) * np.eye(n), axis=1)
    assert np.linalg.norm(high(np.linalg.matrix_power(first, 4000)), 2) < 1e-14


@given(seed=SEEDS)
def test_ao_6_logits_of_bounded_tokens(seed):
    rng = np.random.default_rng(seed)
    X, (Wq, Wk) = rng.standard_normal((8, 4)), rng.standard_normal((2, 4, 3))
    gamma = np.linalg.norm(X, axis=1).max()
    alpha = gamma**2 * np.linalg.norm(Wq @ Wk.T, 2) / np.sqrt(3)
    assert np.abs(X @ Wq @ (X @ Wk).T / np.sqrt(3)).max() <= alpha + 1e-12


@settings(deadline=None)
@given(seed=SEEDS, n=st.integers(2, 10), kind=KINDS, alpha=st.floats(0.05, 3))
def test_ao_6_layers_decay_if_the_weights_are_smaller_than_the_logits_allow(seed, n, kind, alpha):
    """If ``alpha + log|W|_2 < 0``; the paper asks for less than ``log((N - 1) / N) / 2``."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    # Between the two conditions.
    size = np.exp(-alpha) * (1 - 0.5 * (1 - np.sqrt((n - 1) / n)))
    assert np.log((n - 1) / n) / 2 < alpha + np.log(size) < 0
    before, layers = np.linalg.norm(high(X)), 5
    for layer in range(1, layers + 1):
        A = softmax(logits_of(kind, n, alpha, seed + layer), axis=1)
        X = A @ X @ (size * np.linalg.qr(rng.standard_normal((3, 3)))[0])
        factor = (size * np.exp(alpha)) ** layer
        assert factor < 1
        assert np.linalg.norm(high(X)) <= factor * before + 1e-12


def test_erratum_e1_h_a_skip_connection_does_not_prevent_smoothing():
    X = np.random.default_rng(0).standard_normal((6, 4))
    A = softmax(30 * np.eye(6), axis=1)
    assert np.linalg.norm(high(X + A @ X @ -np.eye(4))) < 1e-10 * np.linalg.norm(high(X))


def test_ao_p5_a_skip_connection_may_take_the_mean_away_alone():
    """So it need not treat low and high frequencies alike, nor end in a low-pass filter."""
    X = np.random.default_rng(0).standard_normal((6, 4)) + 3
    A = softmax(np.zeros((6, 6)), axis=1)
    out = X + A @ X @ -np.eye(4)
    assert_allclose(out, high(X), atol=1e-14)
    assert_allclose(out.mean(axis=0), 0, atol=1e-14)


@given(seed=SEEDS, b=st.floats(-3, 3), adversarial=st.booleans())
def test_ao_68b_and_ao_69b_bounds_of_the_logits(seed, b, adversarial):
    rng = np.random.default_rng(seed)
    X, (u_query, u_key) = rng.standard_normal((6, 4)), rng.standard_normal((2, 4))
    Wq, Wk = rng.standard_normal((2, 4, 3))
    if adversarial:
        X[0] = 3 * u_key / np.linalg.norm(u_key)
        u_query, X[1] = 2 * u_key, -X[0]
        Wk = -Wq
    gamma = np.linalg.norm(X, axis=1).max()
    P = (X @ u_query)[:, None] + X @ u_key + b
    norms = np.linalg.norm(u_key), np.linalg.norm(u_query)
    assert np.abs(P).max() <= sum(norms) * gamma + abs(b) + 1e-12
    assert np.ptp(P, axis=1).max() / 2 <= norms[0] * gamma + 1e-12
    tau = 1.7
    L2 = -(((X @ Wq)[:, None] - X @ Wk) ** 2).sum(-1) / tau
    sizes = np.linalg.norm(Wq, 2) + np.linalg.norm(Wk, 2)
    assert np.abs(L2).max() <= sizes**2 * gamma**2 / tau + 1e-12


def test_erratum_e1_j_the_printed_bound_fails_for_a_negative_bias():
    X, u, b = np.array([[1.0], [-1.0]]), 1.0, -1.5
    largest = np.abs(u * X + u * X.T + b).max()
    printed, corrected = abs((u + u) * 1.0 + b), (u + u) * 1.0 + abs(b)
    assert largest > printed + 1
    assert_allclose(largest, corrected)


def test_ao_d2_counterexample_to_an_inequality_of_dong_et_al():
    """``|D 1 softmax(r)'|_1`` (largest column sum) is not at most ``|D 1|_inf``: 4 against 3."""
    D, r = np.diag([2.0, 3.0]), np.log([0.8, 0.2])
    ones = np.ones((2, 1))
    assert_allclose(np.linalg.norm(D @ ones @ softmax(r)[None], 1), 4)
    assert_allclose(np.linalg.norm(D @ ones, np.inf), 3)
