import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.special import softmax

from twinsolve.solvers import (
    boost,
    l2_boosting,
    nonlocal_means,
    twicing,
)
from twinsolve.solvers.boosting import method_noise, residual_noise_share


def smoother_and_values(seed=0):
    rng = np.random.default_rng(seed)
    return softmax(rng.standard_normal((5, 5)), axis=1), rng.standard_normal((5, 2))


def test_printed_sign_smooths_twice_instead_e0n():
    A, V = smoother_and_values()
    Y = A @ V
    printed = Y + A @ (Y - V)  # erratum E0-n
    assert_allclose(printed, A @ A @ V, atol=1e-14)
    assert np.abs(twicing(A, V) - printed).max() > 1e-2


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
