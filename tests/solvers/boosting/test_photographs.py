"""Boosting of non-local means on noisy photographs: algebra; gains are recorded, not asserted."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skimage.metrics import peak_signal_noise_ratio

from twinsolve.datasets import load_photographs, make_noisy_crop
from twinsolve.solvers import boost, l2_boosting, nonlocal_means, sos_boosting, twicing
from twinsolve.solvers.boosting import method_noise, residual_noise_share, sos_tau_max
from twinsolve.solvers.image_filters import nonlocal_means_matrix

SIGMA = 25 / 255
SETTINGS = {"patch_size": 5, "patch_distance": 5, "h": 0.6 * SIGMA, "sigma": SIGMA}


def denoise(image):
    return nonlocal_means(image, **SETTINGS)


@pytest.fixture(scope="module", params=[0, 1])
def crop(request):
    image = load_photographs().images[request.param]
    return make_noisy_crop(image, size=48, sigma=SIGMA, random_state=0)


def test_iterates_are_what_they_say(crop, record_property):
    noisy, clean = crop
    once = denoise(noisy)
    l2, sos = {}, {}
    twice = twicing(denoise, noisy)
    l2_boosting(denoise, noisy, n_iter=3, shrinkage=0.5, callback=l2.__setitem__)
    sos_boosting(denoise, noisy, n_iter=3, rho=0.5, tau=0.9, callback=sos.__setitem__)
    assert_array_equal(method_noise(denoise, noisy), noisy - once)
    assert_array_equal(twice, once + denoise(noisy - once))
    for k in range(3):
        assert_allclose(l2[k + 1], l2[k] + 0.5 * denoise(noisy - l2[k]), atol=1e-14)
        expected = 0.9 * denoise(noisy + 0.5 * sos[k]) - (0.9 * 1.5 - 1) * sos[k]
        assert_allclose(sos[k + 1], expected, atol=1e-14)
    for name, u in {"filter": once, "twicing": twice, "l2": l2[3], "sos": sos[3]}.items():
        assert np.isfinite(u).all()
        psnr = peak_signal_noise_ratio(clean, u, data_range=1.0)
        record_property(f"psnr_{name}", float(psnr))


def test_frozen_weights_make_the_filter_linear(crop):
    """A of the noisy crop is row stochastic: constants survive, and SOS has its closed form."""
    noisy, clean = (part[:16, :16] for part in crop)
    A = nonlocal_means_matrix(noisy, **SETTINGS)
    y, noise = noisy.reshape(-1, 1), (noisy - clean).reshape(-1, 1)
    mu = np.linalg.eigvals(A)
    rho, n = 1.0, len(A)
    tau = 0.5 * sos_tau_max(mu, rho=rho)
    limit = np.linalg.solve(np.eye(n) + rho * (np.eye(n) - A), A @ y)
    rate = np.abs(1 - tau * (1 + rho * (1 - mu))).max()
    n_iter = int(np.ceil(np.log(1e-13) / np.log(rate)))
    assert_allclose(sos_boosting(A, y, n_iter=n_iter, rho=rho, tau=tau), limit, atol=1e-9)
    assert_allclose(twicing(A, y), 2 * A @ y - A @ (A @ y), atol=1e-14)
    assert_allclose(twicing(A, np.ones((n, 1))), 1, rtol=1e-13)
    assert_allclose(boost(A, np.ones((n, 1)), t=0.3, n_iter=1), 2, rtol=1e-13)
    share = residual_noise_share(A, clean.reshape(-1, 1), noise)
    assert_allclose(share, np.linalg.norm(A @ noise) / np.linalg.norm(noise), rtol=1e-12)
    assert share < 1
