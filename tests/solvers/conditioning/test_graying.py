import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import gray_tokens
from twinsolve.solvers.conditioning import condition_number

from ...equations.conditioning.formulas import cosines

SEEDS = st.integers(0, 10**6)
EPS = st.floats(0.1, 1)
SIZES = st.integers(1, 8)


def tokens(n, d, kappa, seed=0, s1=3.0):
    rng = np.random.default_rng(seed)
    r = min(n, d)
    U, R = (np.linalg.qr(rng.standard_normal((size, r)))[0] for size in (n, d))
    return (U * (s1 * np.geomspace(1, 1 / kappa, r))) @ R.T


@given(seed=SEEDS, n=SIZES, d=SIZES, kappa=st.floats(1, 1e5), eps=EPS)
def test_sk_a1_raises_the_condition_number_to_the_power(seed, n, d, kappa, eps):
    X = tokens(n, d, kappa, seed)
    s = np.linalg.svd(X, compute_uv=False)
    found = gray_tokens(X, eps=eps)
    expected = s[0] * (s / s[0]) ** eps
    assert_allclose(np.linalg.svd(found, compute_uv=False), expected, rtol=1e-8)
    assert_allclose(condition_number(found), condition_number(X) ** eps, rtol=1e-8)
    # The singular vectors stay: both products are symmetric positive semidefinite.
    for product in (found @ X.T, X.T @ found):
        assert_allclose(product, product.T, atol=1e-13 * s[0] ** 2)
        assert np.linalg.eigvalsh(product).min() > -1e-12 * s[0] ** 2


@pytest.mark.parametrize(("transform", "dtype"), [("svd", np.float32), ("dct", np.float64)])
@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (1, 4), (1, 1)])
def test_sk_a1_and_sk_a2_eps_1_changes_nothing(shape, transform, dtype):
    X = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    found = gray_tokens(X, eps=1.0, transform=transform)
    assert found.dtype == dtype
    assert_allclose(found, X, atol=10 * np.finfo(dtype).eps * np.abs(X).max())
    assert not np.shares_memory(found, X)


def test_sk_a1_does_not_depend_on_the_order_of_pixels_and_sk_a2_does():
    X = tokens(8, 6, 100.0)
    order = np.random.default_rng(0).permutation(6)
    for transform, same in (("svd", True), ("dct", False)):
        found = gray_tokens(X[:, order], eps=0.7, transform=transform)
        expected = gray_tokens(X, eps=0.7, transform=transform)[:, order]
        assert np.allclose(found, expected, atol=1e-12) == same
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    assert_allclose(gray_tokens(X @ turn, eps=0.7), gray_tokens(X, eps=0.7) @ turn, atol=1e-12)


def test_erratum_e4_i_the_listing_loses_the_scale_but_not_the_condition():
    X = tokens(8, 6, 100.0)
    listing = gray_tokens(X, eps=0.9, keep_scale=False)
    kept = gray_tokens(X, eps=0.9)
    assert_allclose(np.linalg.norm(listing, 2), 1, rtol=1e-12)
    assert_allclose(np.linalg.norm(kept, 2), 3, rtol=1e-12)
    assert_allclose(condition_number(listing), condition_number(kept), rtol=1e-9)
    assert_allclose(gray_tokens(X, eps=1.0, keep_scale=False), X / 3, atol=1e-14)
    F = scipy.fft.dctn(gray_tokens(X, transform="dct", keep_scale=False), norm="ortho")
    assert_allclose(np.abs(F).max(), 1, rtol=1e-12)


@pytest.mark.parametrize(("shape", "eps"), [((40, 9), 0.05), ((9, 40), 0.3), ((20, 20), 0.95)])
@pytest.mark.parametrize("kappa", [10.0, 3e4, 9e5, 1e7, np.inf])
def test_sk_a1_float32_is_as_good_as_its_rounding(shape, kappa, eps):
    """By way of the Gram matrix or, where that has too few digits, not."""
    X = tokens(*shape, kappa if np.isfinite(kappa) else 10.0)
    if not np.isfinite(kappa):
        X[1], X[:, 1] = X[0], X[:, 0]
    X = X.astype(np.float32)
    found, expected = gray_tokens(X, eps=eps), gray_tokens(X.astype(np.float64), eps=eps)
    assert found.dtype == np.float32
    # One rounding to float32, at the size of the largest singular value.
    assert_allclose(found, expected, atol=6e-8 * 3)


@given(seed=SEEDS, eps=EPS)
def test_rank_deficient_tokens_stay_rank_deficient(seed, eps):
    X = tokens(7, 5, 10.0, seed)
    X[4:] = X[:3]
    X[:, 3] = X[:, 2]
    found = gray_tokens(X, eps=eps)
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    rank = np.linalg.matrix_rank(X)
    assert rank < 5
    expected = (U[:, :rank] * (s[0] * (s[:rank] / s[0]) ** eps)) @ Rt[:rank]
    # Rounding of s at the size of s_1, magnified by the slope of the power at kappa of about 100.
    assert_allclose(found, expected, atol=1e-12)
    assert condition_number(found) == np.inf


@pytest.mark.parametrize("transform", ["svd", "dct"])
def test_batches_are_grayed_one_by_one(transform):
    X = np.random.default_rng(0).standard_normal((2, 3, 6, 4))
    X[1, 2] = 0
    X[0, 1] *= 1e200
    X[0, 2] *= 1e-200
    found = gray_tokens(X, eps=0.8, transform=transform)
    assert not found[1, 2].any()
    for index in np.ndindex(2, 3):
        assert_allclose(found[index], gray_tokens(X[index], eps=0.8, transform=transform), rtol=0)
    small = gray_tokens(1e200 * X[0, 2], eps=0.8, transform=transform)
    assert_allclose(1e200 * found[0, 2], small, rtol=1e-10)


@given(seed=SEEDS, n=SIZES, d=SIZES, eps=EPS)
def test_sk_a2_keeps_the_largest_coefficient_and_all_signs(seed, n, d, eps):
    X = np.random.default_rng(seed).standard_normal((n, d))
    Dn, Dd = cosines(n), cosines(d)
    F = Dn @ X @ Dd.T
    m = np.abs(F).max()
    found = gray_tokens(X, eps=eps, transform="dct")
    expected = np.sign(F) * m * (np.abs(F) / m) ** eps
    assert_allclose(found, Dn.T @ expected @ Dd, atol=1e-10)
    F2 = Dn @ found @ Dd.T
    assert_allclose(np.abs(F2).max(), m, rtol=1e-10)
    clear = np.abs(F) > 1e-6 * m
    assert_allclose(np.sign(F2[clear]), np.sign(F[clear]))


def test_erratum_e4_k_the_cosine_form_may_raise_the_condition_number():
    rng = np.random.default_rng(0)
    X = np.array([np.linalg.qr(rng.standard_normal((16, 16)))[0] for _ in range(20)])
    raised = condition_number(gray_tokens(X, transform="dct"))
    assert raised.min() > 1.02
    assert_allclose(condition_number(gray_tokens(X)), 1, rtol=1e-12)


def image_like(rng, count, size, patch):
    """Patches of images with a 1/f amplitude spectrum and grey levels in [0, 1]."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.rfftfreq(size), indexing="ij"))
    frequency[0, 0] = 1 / size
    noise = np.fft.rfft2(rng.standard_normal((count, size, size))) / frequency
    images = np.fft.irfft2(noise, s=(size, size))
    images -= images.min(axis=(1, 2), keepdims=True)
    images /= images.max(axis=(1, 2), keepdims=True)
    grid = images.reshape(count, size // patch, patch, size // patch, patch)
    return grid.transpose(0, 1, 3, 2, 4).reshape(count, -1, patch**2)


def test_errata_e4_l_and_e4_m_shares_of_draws_with_a_lower_condition(record_property):
    rng = np.random.default_rng(0)
    changes = {}
    for name, X in [
        ("gaussian", rng.standard_normal((200, 16, 16))),
        ("image-like", image_like(rng, 50, 64, 4)),
    ]:
        grayed = gray_tokens(X, transform="dct")
        changes[name] = np.log(condition_number(grayed)) - np.log(condition_number(X))
        record_property(f"share lowered, {name}", float((changes[name] < 0).mean()))
        record_property(f"mean change of ln kappa, {name}", float(changes[name].mean()))
    assert 0.25 < (changes["gaussian"] < 0).mean() < 0.75
    assert (changes["image-like"] < 0).all()
