"""Groups of similar patches, denoised by layers."""

import numpy as np
import pandas as pd
import pytest
from group_attention import LAYERS, best_factors, denoise_groups, psnr_lines

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


def test_the_best_factor_of_the_tuning_pictures_is_taken_and_compared_on_others():
    def row(layer, factor, sigma, image, psnr, *, tuning):
        return {
            "layer": layer, "factor": factor, "sigma": sigma, "image": image, "tuning": tuning,
            "psnr": psnr,
        }  # fmt: skip

    tried = pd.DataFrame(
        row(layer, f, sigma, image, -abs(f - sigma), tuning=True)
        for layer in LAYERS
        for f in (15.0, 26.0)
        for sigma in (15, 25, 50)
        for image in range(3)
    )
    best = best_factors(tried)
    assert {(sigma, f) for _, sigma, f in best} == {(15, 15.0), (25, 26.0), (50, 26.0)}
    test = pd.DataFrame(
        row(layer, f, sigma, i, 30 + (1 + 0.01 * i) * (layer == "exact coding rate"), tuning=False)
        for layer, sigma, f in best
        for i in range(4)
    )
    _, lines = psnr_lines(pd.concat([tried, test]))
    assert {line[-1] for line in lines if line[1] == "exact coding rate"} == {"ahead"}
    assert len(lines) == 9
