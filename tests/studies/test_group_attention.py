"""Groups of similar patches, denoised by layers."""

import numpy as np
import pytest
from group_attention import LAYERS, denoise_groups

from twinsolve.datasets import add_noise

CLEAN = np.tile(np.repeat([0.2, 0.7], 6), (24, 2))


@pytest.mark.parametrize("shape", [(24, 24), (17, 20)])
def test_a_layer_that_keeps_its_tokens_keeps_the_picture(shape):
    noisy = np.random.default_rng(0).random(shape)
    kept = denoise_groups(noisy, lambda q, k, v: v)
    np.testing.assert_allclose(kept, noisy, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_lowers_the_error(name):
    noisy = add_noise(CLEAN, sigma=0.1, random_state=0)
    build, factors = LAYERS[name]
    error = np.square(denoise_groups(noisy, build(factors[2], 0.1)) - CLEAN).mean()
    assert error < 0.6 * np.square(noisy - CLEAN).mean()
