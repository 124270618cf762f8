import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

from twinsolve.solvers import nonlocal_means, sos_boosting
from twinsolve.solvers.boosting import sos_tau_max


@given(seed=st.integers(0, 200), rho=st.floats(0.01, 5.0), peaked=st.floats(0.5, 8.0))
def test_converges_below_tau_max_and_not_above_it(seed, rho, peaked):
    """Any row-stochastic matrix, complex eigenvalues included: Re(mu) <= 1 and so tau_max > 0."""
    A = softmax(peaked * np.random.default_rng(seed).standard_normal((6, 6)), axis=1)
    mu = np.linalg.eigvals(A)
    bound = sos_tau_max(mu, rho=rho)
    assert bound > 0

    def radius(tau):
        step = tau * rho * A - (tau * rho + tau - 1) * np.eye(6)
        return np.abs(np.linalg.eigvals(step)).max()

    assert radius(0.98 * bound) < 1 < radius(1.02 * bound)


def test_tau_max_for_real_eigenvalues_and_the_defaults():
    mu = np.array([-0.2, 0.3, 1.0])
    assert_allclose(sos_tau_max(mu, rho=2.0), 2 / (1 + 2 * 1.2), rtol=1e-15)
    assert sos_tau_max([1e-3, 1.0]) > 1 > sos_tau_max([-1e-3, 1.0])
    assert sos_tau_max([2.0], rho=1.0) == 0.0
    assert sos_tau_max([2.5, 0.0], rho=1.0) == 0.0


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 3)])
def test_images_are_taken_through_the_stated_steps(shape):
    image = np.random.default_rng(0).random(shape)

    def denoise(y):
        axis = -1 if y.ndim == 3 else None
        return nonlocal_means(y, patch_size=3, patch_distance=2, h=0.3, channel_axis=axis)

    path = {}
    sos_boosting(denoise, image, n_iter=3, rho=0.8, tau=0.9, callback=path.__setitem__)
    assert_array_equal(path[0], 0)
    for k in range(3):
        strengthened = denoise(image + 0.8 * path[k])
        expected = 0.9 * strengthened - (0.9 * 0.8 + 0.9 - 1) * path[k]
        assert_allclose(path[k + 1], expected, rtol=1e-14)
