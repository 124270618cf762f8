import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import softmax

from twinsolve.solvers.boosting import (
    residual_noise_share,
    signal_to_noise_ratio,
    snr_gain_bound,
)

SEED = st.integers(0, 10**6)
SHARE = st.floats(0, 3)
OBTUSE = st.floats(-0.9, 1)  # nearer to -1 the signals cancel to rounding errors


def gain(u, n, u_hat, n_hat):
    """SNR(y + y^) / SNR(y) for y = u + n and y^ = u^ + n^."""
    return signal_to_noise_ratio(u + u_hat, n + n_hat) / signal_to_noise_ratio(u, n)


def at_angle(vector, cosine, length, rng):
    """A vector of the given length at the given cosine to another."""
    other = rng.standard_normal(vector.shape)
    other -= (other * vector).sum() / (vector**2).sum() * vector
    along, across = (part / np.linalg.norm(part) for part in (vector, other))
    return length * (cosine * along + np.sqrt(1 - cosine**2) * across)


@given(seed=SEED, a=SHARE, b=OBTUSE, above=st.floats(0, 1), g=SHARE, turn=st.floats(-1, 1))
@example(seed=0, a=0.5, b=0.5, above=0.0, g=0.4, turn=1.0)
@example(seed=0, a=1.0, b=-0.9, above=0.0, g=3.0, turn=1.0)
@example(seed=0, a=0.0, b=0.0, above=0.0, g=3.0, turn=1.0)
@example(seed=0, a=3.0, b=1.0, above=0.0, g=1.0, turn=-1.0)
def test_gain_is_at_least_the_bound_if18(seed, a, b, above, g, turn):
    """Prop III.1: cos(u, u^) >= b, and noise left over in any direction."""
    rng = np.random.default_rng(seed)
    u, n = rng.standard_normal((2, 4, 2))
    cosine = min(b + above * (1 - b), 1.0)
    u_hat = at_angle(u, cosine, a * np.linalg.norm(u), rng)
    n_hat = at_angle(n, turn, g * np.linalg.norm(n), rng)
    assert gain(u, n, u_hat, n_hat) >= snr_gain_bound(a, b, g) * (1 - 1e-12)


@given(seed=SEED, a=SHARE, b=OBTUSE, g=SHARE)
def test_bound_is_attained_by_aligned_noise(seed, a, b, g):
    rng = np.random.default_rng(seed)
    u, n = rng.standard_normal((2, 4, 2))
    u_hat = at_angle(u, b, a * np.linalg.norm(u), rng)
    assert_allclose(gain(u, n, u_hat, g * n), snr_gain_bound(a, b, g), rtol=1e-12)
    assert_allclose(snr_gain_bound(a, b, g), np.sqrt(1 + 2 * a * b + a**2) / (1 + g), rtol=1e-12)


def test_printed_condition_is_not_enough_e0d():
    """min(a, b) > g, and yet the ratio falls: 0.945 for aligned noise."""
    rng = np.random.default_rng(0)
    a = b = 0.5
    g = 0.4
    u, n = rng.standard_normal((2, 6, 1))
    ratio = gain(u, n, at_angle(u, b, a * np.linalg.norm(u), rng), g * n)
    assert min(a, b) > g
    assert_allclose(ratio, np.sqrt(1.75) / 1.4, rtol=1e-12)
    assert round(ratio, 3) == 0.945
    # The proof's last step, 2 a b for 2 g, needs a b >= g.
    assert a * b < g


def test_ratio_is_of_norms_and_degenerate_cases_are_right():
    u = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert signal_to_noise_ratio(u, 0.1 * u) == pytest.approx(10)
    assert signal_to_noise_ratio(u[..., None], np.ones((2, 2, 1))) == pytest.approx(2.5)
    assert signal_to_noise_ratio(u, 0 * u) == np.inf
    assert signal_to_noise_ratio(0 * u, u) == 0


def test_ratio_of_parts_of_any_size():
    for scale in [1e-320, 1e308]:
        u = scale * np.array([[0.75, 0.0], [0.0, 1.0]])
        # 1e-320 has three digits.
        assert_allclose(signal_to_noise_ratio(u, u / 2), 2, rtol=1e-3)
        assert_allclose(signal_to_noise_ratio(u, u[::-1]), 1, rtol=1e-12)
    u = np.array([[1.0, 2.0]])
    for signal, noise in [(1, 1e-200), (1e-200, 1), (1e150, 1e-150)]:
        assert_allclose(signal_to_noise_ratio(signal * u, noise * u), signal / noise, rtol=1e-12)


def test_ratio_and_share_of_float32_are_computed_in_float64():
    rng = np.random.default_rng(0)
    u, n = rng.standard_normal((2, 300, 7)).astype(np.float32)
    exact = np.linalg.norm(u.astype(np.float64)) / np.linalg.norm(n.astype(np.float64))
    assert_allclose(signal_to_noise_ratio(u, n), exact, rtol=1e-13)
    A = softmax(rng.standard_normal((300, 300)), axis=1).astype(np.float32)
    kept = A.astype(np.float64) @ n
    share = np.linalg.norm(kept) / np.linalg.norm(n.astype(np.float64))
    assert_allclose(residual_noise_share(A, u, n), share, rtol=1e-12)


def test_noise_share_of_a_matrix_does_not_depend_on_the_signal_or_the_scale():
    """The difference A (u + n) - A u loses noise that is small next to the signal."""
    for scale in [1e-300, 1e200]:
        rng = np.random.default_rng(0)
        A = softmax(rng.standard_normal((6, 6)), axis=1)
        u, n = 1e6 * rng.standard_normal((6, 2)), rng.standard_normal((6, 2))
        share = np.linalg.norm(A @ n) / np.linalg.norm(n)
        for matrix in (A, csr_array(A), A.tolist()):
            assert_allclose(residual_noise_share(matrix, u, scale * n), share, rtol=1e-12)


def test_noise_share_of_a_filter_that_is_not_linear_depends_on_the_signal():
    n = np.full((2, 2), 0.1)
    clip = lambda v: np.clip(v, 0, 1)  # noqa: E731
    assert residual_noise_share(clip, np.full((2, 2), 0.5), n) == pytest.approx(1)
    assert residual_noise_share(clip, np.full((2, 2), 2.0), n) == 0
