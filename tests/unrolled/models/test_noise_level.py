"""The denoiser that takes the noise level: of all images, of each, and of each pixel."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.datasets import load_photographs
from twinsolve.unrolled.models.denoisers import FilterDiffusionDenoiser, NoiseLevelDiffusionDenoiser

from ..draws import moved, uniform

SETTINGS = {"n_layers": 3, "filter_size": 4, "dtype": torch.float64}
LEVELS = (0.3, 0.1, 0.02, 0.001, 3.0)  # within the range, at an end, and far outside


@pytest.fixture
def network():
    return moved(NoiseLevelDiffusionDenoiser(**SETTINGS))


@pytest.fixture
def images():
    return uniform(3, 2, 13, 17)


def full(images, level):
    return torch.full(images.shape[-2:], level, dtype=images.dtype)


@pytest.mark.parametrize("level", LEVELS)
def test_each_way_to_tell_one_level_gives_the_network_of_that_level(level, network, images):
    expected = network.at(level)(images)
    assert type(network.at(level)) is FilterDiffusionDenoiser
    each = full(images, level).flatten()[:3]
    for told in (level, torch.tensor(level), each, each[:, None, None, None], full(images, level)):
        rounding = 1e-12 if torch.as_tensor(told).dtype == torch.float64 else 1e-6
        assert_close(network(images, told), expected, rtol=0, atol=max(rounding, 1e-12 * level))
    assert (expected - images).abs().max() > 1e-5


def test_the_start_is_the_start_for_the_level_and_scales_with_the_image(images):
    start = NoiseLevelDiffusionDenoiser(**SETTINGS)
    other = FilterDiffusionDenoiser(sigma=0.21, **SETTINGS)
    assert_close(start(images, 0.21), other(images), rtol=0, atol=1e-12)
    assert_close(start(3 * images, 0.3), 3 * start(images, 0.1), rtol=0, atol=1e-12)


def test_without_a_level_it_is_that_of_the_network(network, images):
    assert torch.equal(network(images), network(images, network.sigma))
    plain = FilterDiffusionDenoiser(**SETTINGS)
    plain.load_state_dict(network.state_dict(), strict=False)
    assert_close(network(images), plain(images), rtol=0, atol=1e-12)


def test_images_and_far_pixels_do_not_see_the_levels_of_others(network, images):
    levels = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)
    found = network(images, levels)
    for image, level, own in zip(images, levels, found, strict=True):
        assert_close(own, network(image[None], level)[0], rtol=0, atol=1e-12)
    wide = uniform(1, 1, 12, 60)
    halves = torch.full((12, 60), 0.05, dtype=torch.float64)
    halves[:, 30:] = 0.2
    seen, m = network(wide, halves), network.margin
    assert_close(seen[..., : 30 - m], network(wide, 0.05)[..., : 30 - m], rtol=0, atol=1e-12)
    assert_close(seen[..., 30 + m :], network(wide, 0.2)[..., 30 + m :], rtol=0, atol=1e-12)
    assert (seen - network(wide, 0.05)).abs().max() > 1e-3


def test_gradients_by_levels_and_every_parameter(network):
    images = uniform(2, 1, 6, 7)  # few, as an influence function has kinks
    levels = (0.05 + 0.1 * uniform(6, 7)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: network(images, s), levels)
    each = (0.05 + 0.1 * uniform(2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: network(images, s), each)
    for told in (levels.detach(), each.detach()):
        network.zero_grad()
        network(images, told).square().sum().backward()
        unmoved = {name for name, p in network.named_parameters() if not p.grad.any()}
        assert unmoved == {
            "steps.0.lam",
            "steps.0.lam_slopes",
        }  # it starts at f
        held, step = network.steps[1].weight_slopes, 1e-6
        found = float(held.grad[0, 2, 1])
        with torch.no_grad():
            held[0, 2, 1] += step
            above = network(images, told).square().sum()
            held[0, 2, 1] -= 2 * step
            below = network(images, told).square().sum()
            held[0, 2, 1] += step
        assert found == pytest.approx(float(above - below) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_keep_the_type_of_the_images(dtype, network, images):
    network = network.float()
    expected = network(images.float(), full(images, 0.1).float())
    found = network(images.to(dtype), full(images, 0.1))
    assert found.dtype == dtype
    assert_close(found.float(), expected, rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (-0.1, "must be finite and > 0"),
        (torch.tensor([0.1, torch.nan, 0.1]), "must be finite and > 0"),
        (torch.full((2,), 0.1), r"one for each of 3 images.*\(2,\)"),
        (torch.full((3, 1), 0.1), r"a map of 13 x 17 pixels, got shape \(3, 1\)"),
        (torch.full((17, 13), 0.1), "a map of 13 x 17"),
        (torch.full((5, 1, 13, 17), 0.1), "a map of 13 x 17"),
    ],
)
def test_other_levels_are_refused(told, message, network, images):
    with pytest.raises(ValueError, match=f"sigma: .*{message}"):
        network(images, told)


def test_it_runs_without_memory_and_exports_with_the_level_as_input(network):
    with torch.device("meta"):
        empty = NoiseLevelDiffusionDenoiser(**SETTINGS)
        image = torch.empty(2, 1, 9, 9, dtype=torch.float64)
        for told in (0.1, torch.empty(2), torch.empty(9, 9)):
            assert empty(image, told).shape == image.shape
    image, level = uniform(1, 1, 9, 9), torch.tensor(0.1, dtype=torch.float64)
    with torch.no_grad():
        exported = torch.export.export(network.eval(), (image, level)).module()
        for scale in (1, 2):
            expected = network(image, scale * level)
            assert_close(exported(image, scale * level), expected, rtol=0, atol=1e-12)


class Inpainting(nn.Module):
    """Plug-and-play by half-quadratic splitting, literally: unknown pixels of an image."""

    def __init__(self, denoiser):
        super().__init__()
        self.denoiser = denoiser

    def forward(self, y, known, n_steps=30):
        z = torch.where(known, y, y[known].mean())
        for sigma in np.geomspace(75 / 255, 5 / 255, n_steps):
            z = self.denoiser(torch.where(known, y, z), float(sigma))
        return torch.where(known, y, z)


def test_plug_and_play_fills_what_is_unknown():
    image = torch.from_numpy(load_photographs().images[0])[None, None, 100:164, 200:264]
    known = uniform(*image.shape) < 0.5
    network = NoiseLevelDiffusionDenoiser(n_layers=2, dtype=torch.float64).requires_grad_(False)
    found = Inpainting(network)(torch.where(known, image, torch.nan).nan_to_num(), known)
    flat = torch.where(known, image, image[known].mean())
    assert torch.equal(found[known], image[known])
    errors = [float((x - image)[~known].square().mean()) for x in (found, flat)]
    assert errors[0] < errors[1] / 2
