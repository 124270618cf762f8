import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers.conditioning import (
    attention_condition_bound,
    condition_number,
    feed_forward_condition_bound,
    skip_condition_bound,
)

SEEDS = st.integers(0, 10**6)


def orthonormal(rng, n, d):
    return np.linalg.qr(rng.standard_normal((n, d)))[0]


def with_condition(rng, n, d, kappa, s1=1.0):
    s = s1 * np.geomspace(1, 1 / kappa, d)
    return (orthonormal(rng, n, d) * s) @ orthonormal(rng, d, d).T


def log_gap(kappa, bound):
    return np.log(kappa) - np.log(bound)


@given(seed=SEEDS, extra=st.integers(0, 4), adversarial=st.booleans())
def test_sk_5_attention_without_skip(seed, extra, adversarial):
    rng = np.random.default_rng(seed)
    d = 4
    X = with_condition(rng, d + extra, d, 30.0)
    Wq, Wk, Wv = (with_condition(rng, d, d, kappa) for kappa in (3.0, 5.0, 2.0))
    if adversarial:
        # All factors stretch and shrink the same directions.
        R = np.linalg.svd(X)[2].T
        Wq, Wk, Wv = ((R * np.geomspace(1, 1 / kappa, d)) @ R.T for kappa in (3.0, 5.0, 2.0))
    kappa, bound = attention_condition_bound(X, Wq, Wk, Wv)
    assert_allclose(bound, 30.0 * 30**3, rtol=1e-9)
    out = X @ Wq @ Wk.swapaxes(-1, -2) @ X.swapaxes(-1, -2) @ X @ Wv
    assert_allclose(kappa, np.linalg.norm(out, 2) * np.linalg.norm(np.linalg.pinv(out), 2))
    # Rounding of a condition number of at most 8e5.
    assert log_gap(kappa, bound) <= 1e-9
    if adversarial:
        assert_allclose(kappa, bound, rtol=1e-9)


def rotation():
    """An orthogonal matrix whose leading 3 x 3 block has condition number 1e4."""
    cosines = np.array([1.0, 1.0, 1e-4])
    C, S = np.diag(cosines), np.diag(np.sqrt(1 - cosines**2))
    return np.block([[C, S], [-S, C]])


def test_erratum_e4_a_fewer_tokens_than_features():
    """An orthogonal Wq, and a bound of 1 that fails by a factor of 1e4."""
    X, Wq, eye = np.eye(3, 6), rotation(), np.eye(6)
    assert_allclose(Wq @ Wq.T, eye, atol=1e-15)
    assert_allclose(condition_number(X @ Wq @ eye @ X.T @ X @ eye), 1e4)
    printed = condition_number(Wq) * condition_number(eye) ** 2 * condition_number(X) ** 3
    assert_allclose(printed, 1)
    with pytest.raises(ValueError, match=r"^X: must have at least as many tokens"):
        attention_condition_bound(X, Wq, eye, eye)


def test_erratum_e4_b_the_constant_is_not_near_one(record_property):
    rng = np.random.default_rng(0)
    weights = condition_number(rng.standard_normal((100, 64, 64)))
    X, (Wq, Wk, Wv) = rng.standard_normal((40, 128, 64)), rng.standard_normal((3, 40, 64, 64))
    out = X @ Wq @ Wk.swapaxes(-1, -2) @ X.swapaxes(-1, -2) @ X @ Wv
    effective = condition_number(out) / condition_number(X) ** 3
    record_property("median kappa of a 64 x 64 Gaussian", float(np.median(weights)))
    record_property("median kappa(out) / kappa(X)^3", float(np.median(effective)))
    assert np.median(weights) > 50
    assert np.median(effective) > 100


@given(seed=SEEDS)
def test_erratum_e4_c_attention_need_not_be_ill_conditioned(seed):
    X = with_condition(np.random.default_rng(seed), 7, 4, 20.0)
    Wq = np.linalg.inv(X.T @ X)
    kappa, bound = attention_condition_bound(X, Wq, np.eye(4), np.eye(4))
    assert_allclose(kappa, 20, rtol=1e-9)
    assert bound > 1e5


@given(seed=SEEDS, extra=st.integers(0, 3), hidden=st.integers(4, 9), out=st.integers(1, 4))
def test_sk_6_feed_forward(seed, extra, hidden, out):
    rng = np.random.default_rng(seed)
    X = with_condition(rng, 4 + extra, 4, 50.0)
    up, down = rng.standard_normal((4, hidden)), rng.standard_normal((hidden, out))
    kappa, bound = feed_forward_condition_bound(X, up, down)
    assert_allclose(kappa, condition_number(X @ up @ down), rtol=1e-12 * kappa + 1e-10)
    s = np.linalg.svd(up @ down, compute_uv=False)
    assert_allclose(bound, 50 * s[0] / s[-1], rtol=1e-12 * s[0] / s[-1] + 1e-10)
    assert log_gap(kappa, bound) <= 1e-9


def test_erratum_e4_d_shapes_and_order_of_the_feed_forward_layer():
    """Tokens are rows, X is n x d, Wup d x k and Wdown k x m: only X Wup Wdown has inner sizes."""
    rng = np.random.default_rng(0)
    X, up, down = (rng.standard_normal(shape) for shape in [(6, 4), (4, 5), (5, 3)])
    kappa, bound = feed_forward_condition_bound(X, up, down)
    assert_allclose(kappa, condition_number(X @ up @ down), rtol=1e-10)
    assert kappa <= bound

    wide, tall = np.eye(3, 6), rotation()[:, :3]
    assert_allclose(condition_number(wide) * condition_number(tall), 1)
    assert_allclose(condition_number(wide @ tall), 1e4)
    with pytest.raises(ValueError, match=r"^X: must have at least as many tokens"):
        feed_forward_condition_bound(wide, tall, np.eye(3))


def test_erratum_e4_d_two_constants_do_not_do_with_more_hidden_units_than_features():
    """Wup is d x 4d and Wdown 4d x d in the paper: wide times tall, for any number of tokens."""
    X, up, down = np.eye(3), np.eye(3, 12), np.vstack([rotation()[:, :3], np.zeros((6, 3))])
    assert_allclose([condition_number(factor) for factor in (X, up, down)], 1)
    kappa, bound = feed_forward_condition_bound(X, up, down)
    assert_allclose([kappa, bound], 1e4)


@given(seed=SEEDS, extra=st.integers(0, 3), rank=st.integers(0, 4), scale=st.floats(0.01, 100))
def test_sk_7_skip_with_positive_semidefinite_weights(seed, extra, rank, scale):
    rng = np.random.default_rng(seed)
    X, B = with_condition(rng, 4 + extra, 4, 40.0), rng.standard_normal((4, rank))
    M = scale * B @ B.T
    kappa, bound = skip_condition_bound(X, M)
    shifted = condition_number(M + np.eye(4))
    # M is made symmetric to the last digit: kappa times rounding.
    assert_allclose(kappa, condition_number(X @ M + X), rtol=1e-15 * kappa + 1e-12)
    assert_allclose(bound, 40 * shifted, rtol=1e-9)
    assert log_gap(kappa, bound) <= 1e-9
    assert shifted <= condition_number(M) * (1 + 1e-9)


def test_erratum_e4_e_the_skip_may_harm_even_for_positive_definite_weights():
    X = with_condition(np.random.default_rng(0), 6, 4, 10.0)
    s, R = np.linalg.svd(X)[1:]
    M = (R.T / s) @ R
    assert_allclose(condition_number(X @ M), 1, rtol=1e-9)
    kappa, bound = skip_condition_bound(X, M)
    assert_allclose(kappa, (1 + s[0]) / (1 + s[-1]), rtol=1e-9)
    assert 1.5 < kappa <= bound


def test_erratum_e4_f_the_skip_may_explode_for_other_weights():
    X = np.diag([2.0, 1.0])
    M = np.diag([1.0, 8e-6 - 1.0])
    assert condition_number(X @ M) < 2.1
    assert condition_number(X @ M + X) > 4.9e5
    with pytest.raises(ValueError, match=r"^M: must be positive semidefinite"):
        skip_condition_bound(X, M)


def test_erratum_e4_g_the_scale_of_the_weights_matters():
    """Weights of condition 1, as in the printed bound without their scale."""
    X = with_condition(np.random.default_rng(0), 6, 4, 10.0)
    s = np.linalg.svd(X, compute_uv=False)
    scale = 20.0
    kappa, bound = skip_condition_bound(X, scale * X.T @ X)
    printed = (s[0] ** 3 + s[0]) / (s[-1] ** 3 + s[-1])
    corrected = (scale * s[0] ** 3 + s[0]) / (scale * s[-1] ** 3 + s[-1])
    assert kappa > 5 * printed
    assert_allclose([kappa, bound], corrected, rtol=1e-9)


def test_erratum_e4_h_random_weights_are_helped_the_more_the_smaller_they_are(record_property):
    rng = np.random.default_rng(0)
    n, d, draws = 64, 32, 200
    shares = {}
    for std in (1.0, d**-0.5, 0.02):
        X = rng.standard_normal((draws, n, d))
        Wq, Wk, Wv = std * rng.standard_normal((3, draws, d, d))
        out = X @ Wq @ Wk.swapaxes(-1, -2) @ X.swapaxes(-1, -2) @ X @ Wv
        shares[std] = (condition_number(out + X) < condition_number(out)).mean()
        record_property(f"share helped at std {std:.3g}", float(shares[std]))
    first, second, third = shares.values()
    assert 0.4 < first < second <= third
    assert third > 0.99


def test_sk_7_bound_holds_for_what_rounding_makes_slightly_indefinite():
    """The bound is that of M + I as it is, and no eigenvalue is moved to 0."""
    for large in (1e2, 1e6, 1e10):
        M = np.diag([large, -0.5])
        with pytest.raises(ValueError, match=r"^M: must be positive semidefinite"):
            skip_condition_bound(np.eye(2), M)
    # In float32 it is rounding, and the bound is that of M + I.
    kappa, bound = skip_condition_bound(np.eye(2), np.diag([1e10, -0.5]).astype(np.float32))
    assert_allclose([kappa, bound], (np.float32(1e10) + 1.0) / 0.5, rtol=1e-9)
    for least in (-1.0, -2.0):
        with pytest.raises(ValueError, match=r"^M: must be positive semidefinite"):
            skip_condition_bound(np.eye(2), np.diag([1e10, least]).astype(np.float32))


def test_sk_7_what_counts_as_rounding_follows_the_dtype():
    X = np.eye(2)
    for dtype, small, large in [(np.float64, 1e-14, 1e-11), (np.float32, 1e-6, 1e-3)]:
        for sign, words in [(0, "symmetric"), (-1, "positive semidefinite")]:
            off = np.array([[0.0, 1.0], [0.0, 0.0]]) if sign == 0 else np.diag([0.0, -1.0])
            flat = np.diag([1.0, 0.0]) + small * off
            kappa, bound = skip_condition_bound(X, flat.astype(dtype))
            # The symmetric part is within the rounding of this dtype.
            assert_allclose([kappa, bound], 2, rtol=2 * small)
            with pytest.raises(ValueError, match=f"^M: must be {words}"):
                skip_condition_bound(X, (np.diag([1.0, 0.0]) + large * off).astype(dtype))


def test_condition_numbers_have_no_scale():
    for scale in [1e-300, 1e-150, 1.0, 1e150, 1e300]:
        X, eye = np.diag([2.0, 1.0]), np.eye(2)
        for factors in [(scale * X, eye, eye, eye), (X, scale * eye, eye, scale * eye)]:
            assert attention_condition_bound(*factors) == (8, 8)
        for factors in [(scale * X, eye, X), (X, scale * eye, scale * X)]:
            assert feed_forward_condition_bound(*factors) == (4, 4)
        assert_allclose(skip_condition_bound(scale * X, 3 * X), 3.5, rtol=1e-14)


def test_e4_a_and_e4_g_the_scale_of_linear_attention_matters_only_with_the_skip():
    """In the experiments it is (1 / 16) Q K^T V."""
    X = with_condition(np.random.default_rng(0), 6, 4, 10.0, s1=4.0)
    s, eye = np.linalg.svd(X, compute_uv=False), np.eye(4)
    plain = attention_condition_bound(X, eye, eye, eye)
    assert attention_condition_bound(X, eye / 16, eye, eye) == plain
    found = [skip_condition_bound(X, c * X.T @ X)[0] for c in (1, 1 / 16)]
    for kappa, c in zip(found, (1, 1 / 16), strict=True):
        assert_allclose(kappa, (c * s[0] ** 3 + s[0]) / (c * s[-1] ** 3 + s[-1]), rtol=1e-9)
    assert found[0] > 5 * found[1]
