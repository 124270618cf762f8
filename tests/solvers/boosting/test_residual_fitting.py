import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.linalg import matrix_power
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, csr_matrix
from scipy.special import softmax

from twinsolve.solvers import (
    boost,
    l2_boosting,
    nadaraya_watson,
    nonlocal_means,
    smoother_matrix,
    twicing,
)
from twinsolve.solvers.boosting import method_noise, residual_noise_share

SHRINKAGE = st.floats(0.01, 1.0)


def smoother_and_values(seed=0):
    rng = np.random.default_rng(seed)
    return softmax(rng.standard_normal((5, 5)), axis=1), rng.standard_normal((5, 2))


def test_printed_sign_smooths_twice_instead_e0n():
    A, V = smoother_and_values()
    Y = A @ V
    printed = Y + A @ (Y - V)  # erratum E0-n
    assert_allclose(printed, A @ A @ V, atol=1e-14)
    assert np.abs(twicing(A, V) - printed).max() > 1e-2


def test_takes_a_function_and_a_sparse_matrix():
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((6, 2)), rng.standard_normal((6, 3))
    A = smoother_matrix(X, X, bandwidth=0.5)
    expected = twicing(A, V)
    found = twicing(lambda values: nadaraya_watson(X, X, values, bandwidth=0.5), V)
    assert_allclose(found, expected, atol=1e-14)
    for sparse in (csr_array, csr_matrix):
        assert_allclose(twicing(sparse(A), V), expected, atol=1e-14)
    assert_allclose(twicing(A.tolist(), V.tolist()), expected, atol=1e-14)


@given(seed=st.integers(0, 200), n_iter=st.integers(0, 12), nu=SHRINKAGE)
def test_steps_are_one_minus_the_power_of_what_is_left(seed, n_iter, nu):
    A, y = smoother_and_values(seed)
    operator = np.eye(5) - matrix_power(np.eye(5) - nu * A, n_iter)
    # |I - nu A| is at most 1 + nu in the maximum norm, and so are rounding errors a step.
    found = l2_boosting(A, y, n_iter=n_iter, shrinkage=nu)
    assert_allclose(found, operator @ y, atol=1e-14 * (1 + nu) ** n_iter * 10)


def test_iterates_are_recorded_and_twicing_is_the_second():
    A, y = smoother_and_values()
    path = {}
    last = l2_boosting(A, y, n_iter=3, callback=path.__setitem__)
    assert list(path) == [0, 1, 2, 3]
    assert_array_equal(path[0], 0)
    assert_array_equal(path[1], A @ y)
    assert_array_equal(path[2], twicing(A, y))
    assert_array_equal(path[3], last)


def test_what_overflows_is_refused():
    for filter in [[[-1.0]], csr_array([[-1.0]]), lambda y: -y]:
        with pytest.raises(ValueError, match=r"smoother: iterate 102\d holds NaN or infinity"):
            l2_boosting(filter, [[1.0]], n_iter=2000)
        assert np.isfinite(l2_boosting(filter, [[1.0]], n_iter=1000)).all()


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 3)])
def test_images_and_filters_that_are_not_linear(shape):
    image = np.random.default_rng(0).random(shape)

    def smooth(y):
        axis = -1 if y.ndim == 3 else None
        return nonlocal_means(y, patch_size=3, patch_distance=2, h=0.3, channel_axis=axis)

    once = smooth(image)
    assert_array_equal(twicing(smooth, image), once + smooth(image - once))
    path = {}
    l2_boosting(smooth, image, n_iter=3, shrinkage=0.5, callback=path.__setitem__)
    for m in range(3):
        assert_allclose(path[m + 1], path[m] + 0.5 * smooth(image - path[m]), rtol=1e-15)


def test_filters_may_write_into_their_argument_and_reuse_their_output():
    y = np.random.default_rng(0).standard_normal((4, 2))
    kept, buffer = y.copy(), np.empty((4, 2))

    def halve(x):
        x *= 0.5
        buffer[:] = x
        return buffer

    assert_allclose(l2_boosting(halve, y, n_iter=3), 0.875 * y, rtol=1e-15)
    assert_allclose(boost(halve, y, t=0, n_iter=3), 1.5**3 * y, rtol=1e-15)
    assert_allclose(method_noise(halve, y), 0.5 * y, rtol=1e-15)
    assert residual_noise_share(halve, y, y) == 0.5
    assert_array_equal(y, kept)


def test_float32_is_kept():
    A, y = smoother_and_values()
    A32, y32 = A.astype(np.float32), y.astype(np.float32)
    exact = twicing(A, y)
    for smoother in (A32, csr_array(A32), lambda v: A @ v):
        found = twicing(smoother, y32)
        assert found.dtype == np.float32
        assert_allclose(found, exact, atol=20 * np.finfo(np.float32).eps)
    assert twicing(np.eye(2, dtype=int), np.ones((2, 1), dtype=int)).dtype == np.float64


def test_one_sample_zero_values_and_no_steps():
    assert_array_equal(twicing([[1.0]], [[3.0]]), 3.0)
    A, y = smoother_and_values()
    assert_array_equal(l2_boosting(A, 0 * y, n_iter=5), 0)
    assert_array_equal(l2_boosting(A, y, n_iter=0), 0)
