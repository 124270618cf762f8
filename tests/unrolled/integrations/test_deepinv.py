"""Networks of deepinv that start at solved codes, and its loops with our denoiser."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.autograd import grad

from twinsolve.datasets import load_photographs
from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_ista
from twinsolve.unrolled.integrations import deepinv_start
from twinsolve.unrolled.models.denoisers import NoiseLevelDiffusionDenoiser

from ..draws import tokens, uniform

NOISE = SimpleNamespace(A_adjoint=lambda y: y)
SIGMA = 25 / 255


def test_the_start_is_what_the_solver_makes_of_the_image():
    D, images = dct_dictionary(3, 4), uniform(2, 1, 9, 8)
    found, other = deepinv_start(torch.from_numpy(D), lam=0.2)(images, NOISE)
    assert other is found
    for image, (start,) in zip(images, found, strict=True):
        solved = denoise_ista(image[0].numpy(), D, lam=0.2, n_iter=3000)
        assert np.abs(start.numpy() - solved).max() < 1e-8
    assert (found - images).abs().max() > 0.1


def test_colours_are_patches_too_and_dictionaries_are_trained():
    D = (tokens(40, 12) / 3).requires_grad_()
    lam = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    start, _ = deepinv_start(D, lam=lam)(uniform(1, 3, 5, 4), NOISE)
    assert start.shape == (1, 3, 5, 4)
    assert all(g.abs().sum() > 0 for g in grad(start.square().sum(), (D, lam)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 2, 9, 9), "dictionary: atoms must be square patches"), ((1, 1, 2, 9), "images: must be")],
)
def test_what_does_not_fit_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        deepinv_start(tokens(12, 9), lam=0.1)(uniform(*shape), NOISE)


def quality(found, image):
    return f"{-10 * (found - image).square().mean().log10():.2f}"


@pytest.mark.peers
def test_an_unfolded_network_begins_at_the_start_and_keeps_it_at_small_steps():
    deepinv = pytest.importorskip("deepinv")
    image = torch.from_numpy(load_photographs().images[0])[None, None, 100:228, 200:328]
    y = image + SIGMA * tokens(*image.shape)
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    start = deepinv_start(torch.from_numpy(dct_dictionary(8, 11)), lam=3 * SIGMA)
    variation, identity = deepinv.optim.TVPrior(), deepinv.models.DnCNN(1, 1, 4, pretrained=None)
    for parameter in list(identity.parameters())[-2:]:
        torch.nn.init.zeros_(parameter)  # of the last layer, which is added to the input

    def run(prior, step, n_steps, begin):
        network = deepinv.optim.PGD(
            deepinv.optim.L2(), prior, stepsize=step, lambda_reg=0.05, g_param=SIGMA,
            max_iter=n_steps, unfold=True, trainable_params=["stepsize"], custom_init=begin,
        )  # fmt: skip
        with torch.no_grad():
            return network.double()(y, physics)

    begun = start(y, physics)[0]
    assert torch.equal(run(variation, 0.1, 0, start), begun)
    found = [quality(y, image), quality(begun, image)]
    plugged = deepinv.optim.PnP(identity)
    for setting in ((variation, 0.1, 5), (variation, 0.5, 5), (plugged, 0.05, 3)):
        found += [quality(run(*setting, begin), image) for begin in (None, start)]
    assert found == ["20.10", "23.17", "22.04", "23.07", "22.67", "22.66", "20.10", "23.34"]
    page = (Path(__file__).parents[3] / "docs/solved.md").read_text()
    assert all(f"{number} dB" in page for number in found)


@pytest.mark.peers
def test_plug_and_play_of_deepinv_calls_the_denoiser_of_all_noise_levels():
    """Its proximal gradient steps of length 1 put back known pixels and denoise."""
    deepinv = pytest.importorskip("deepinv")
    image = torch.from_numpy(load_photographs().images[0])[None, None, 100:164, 200:264]
    known = (uniform(*image.shape) < 0.5).double()
    physics = deepinv.physics.Inpainting((1, 64, 64), mask=known[0])
    y = physics.A(image)
    network = NoiseLevelDiffusionDenoiser(n_layers=2, dtype=torch.float64).requires_grad_(False)
    loop = deepinv.optim.PGD(
        deepinv.optim.L2(), deepinv.optim.PnP(network), stepsize=1.0, g_param=SIGMA, max_iter=6
    )
    expected = known * image
    for _ in range(6):
        expected = network(known * image + (1 - known) * expected, SIGMA)
    with torch.no_grad():
        found = loop.double()(y, physics)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (found - image).square().mean() < (y - image).square().mean() / 2  # it is a third
