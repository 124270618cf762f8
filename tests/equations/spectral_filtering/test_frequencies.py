import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from .formulas import fourier, mean_absolute_cosine, smoother


def test_errata_e1_a_and_e1_b_the_printed_transform_and_inverse():
    n = 6
    k = np.arange(n)
    printed = np.exp(-2j * np.pi * np.outer(k, k)) / np.sqrt(n)
    assert_allclose(printed, 1 / np.sqrt(n), atol=1e-12)
    assert np.abs(printed @ printed.conj().T - np.eye(n)).max() > 0.9
    F = fourier(n)
    assert_allclose(F @ F.conj().T, np.eye(n), atol=1e-12)
    assert np.abs(F @ F - np.eye(n)).max() > 0.9


@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_ao_l8_and_erratum_e1_i_the_best_dc_filter_inside_attention(seed, n):
    A = smoother(n, seed)
    for uniform, best in [(np.ones((n, n)) / n, 1.0), (np.ones((n, n)), 1 / n)]:
        beta = np.linalg.lstsq(uniform.reshape(-1, 1), A.reshape(-1), rcond=None)[0]
        assert_allclose(beta, best, rtol=1e-10)


@given(seed=st.integers(0, 10**6))
def test_ao_75_and_ao_76_mean_cosines_see_directions_only(seed):
    """Neither the sizes and signs of rows nor a rotation of the features nor their order."""
    rng = np.random.default_rng(seed)
    X, turn = rng.standard_normal((5, 3)), np.linalg.qr(rng.standard_normal((3, 3)))[0]
    sizes = rng.uniform(0.1, 10, (5, 1)) * rng.choice([-1, 1], (5, 1))
    found = mean_absolute_cosine(X)
    assert 0 <= found <= 1
    for same in (sizes * X, X @ turn, X[rng.permutation(5)]):
        assert_allclose(mean_absolute_cosine(same), found, rtol=1e-12)
    # The mean square, from the Gram matrix, is at most the mean, and that at most its root.
    gram = X / np.linalg.norm(X, axis=1, keepdims=True)
    squares = ((np.linalg.svd(gram, compute_uv=False) ** 4).sum() - 5) / 20
    assert squares <= found * (1 + 1e-12)
    assert found <= np.sqrt(squares) * (1 + 1e-12)
