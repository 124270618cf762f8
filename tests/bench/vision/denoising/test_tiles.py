"""Tiles of large images against the whole."""

import numpy as np
import pytest
import torch

from twinsolve.bench.vision.denoising.networks import in_tiles
from twinsolve.unrolled.models.denoisers import (
    FilterDiffusionDenoiser,
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    NonlocalFilterDiffusionDenoiser,
    NonLocalMeansDenoiser,
    PatchCodingDenoiser,
)

NETWORKS = {
    "diffusion": lambda: FilterDiffusionDenoiser(n_layers=2, filter_size=3),
    "similar windows": lambda: NonlocalFilterDiffusionDenoiser(
        n_layers=1, filter_size=3, window=2, n_similar=4
    ),
    "patches": lambda: PatchCodingDenoiser(2, patch_size=4, n_frequencies=5),
    "groups": lambda: GroupCodingDenoiser(2, patch_size=3, n_frequencies=4, window=2, n_similar=4),
    "experts": lambda: MixtureOfExpertsDenoiser(2),
    "means": lambda: NonLocalMeansDenoiser(2, patch_size=3, patch_distance=2),
}


@pytest.fixture
def image():
    return np.random.default_rng(0).random((31, 42))


def perturbed(make, dtype):
    """Away from the start, so that similar patches count."""
    network = make().to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.02 * noise
    return network


def function(network, dtype):
    @torch.no_grad()
    def denoise(part):
        return network(torch.from_numpy(np.ascontiguousarray(part)).to(dtype)[None, None])[0, 0]

    return denoise


@pytest.mark.parametrize("name", NETWORKS)
def test_tiles_are_the_whole(name, image):
    dtype = torch.float64
    network = perturbed(NETWORKS[name], dtype)
    denoise, margin = function(network, dtype), network.margin
    whole = denoise(image).numpy()
    found = in_tiles(denoise, image, margin=margin, side=11)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)
    # Without the margin it would not be.
    assert np.abs(in_tiles(denoise, image, margin=0, side=16) - whole).max() > 1e-4


@pytest.mark.parametrize("numbers", [{"margin": -1}, {"margin": 0, "side": 0}])
def test_numbers_out_of_range(numbers, image):
    with pytest.raises(ValueError, match="margin, side"):
        in_tiles(lambda part: part, image, **numbers)
