"""Layers of learned filters on images, and the networks of them."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.fft import dctn, idctn
from sklearn.exceptions import ConvergenceWarning
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.solvers.nonlocal_energy import minimize_convex_ridge
from twinsolve.unrolled import ConvexRidge, FilterDiffusion
from twinsolve.unrolled.models.denoisers import (
    ConvexRidgeDenoiser,
    FilterDiffusionDenoiser,
    NonlocalFilterDiffusionDenoiser,
)
from twinsolve.unrolled.nonlocal_energy import (
    NonlocalFilterDiffusion,
    filter_banks,
    filter_gradient,
)
from twinsolve.unrolled.nonlocal_energy.filter_banks import influence
from twinsolve.unrolled.sparse_coding.patches import Similar
from twinsolve.unrolled.twins.families.nonlocal_energy.image_energies import ridge_of

from .draws import moved, uniform

DOUBLE = {"dtype": torch.float64}
KNOTS = (0.3, 1.0, 3.0)


def explicit_gradient(u, filters, weights, knots):
    bank = filters.unflatten(1, 2 * (math.isqrt(filters.shape[1]),))[:, None]
    z = F.conv2d(u[:, None], bank)
    parts = [w[:, None, None] * z.clamp(-t, t) for t, w in zip(knots, weights.mT, strict=True)]
    return F.conv_transpose2d(sum(parts), bank)[:, 0]


def gradient_inputs():
    u, filters, weights = (
        uniform(3, 9, 11),
        uniform(8, 9, seed=1) - 0.5,
        uniform(8, 3, seed=2) - 0.5,
    )
    return tuple(x.requires_grad_() for x in (3 * u, filters, weights))


@pytest.mark.parametrize("n_windows", [1, 70, 4096])
def test_gradient_is_that_of_convolutions_however_it_is_cut(n_windows, monkeypatch):
    monkeypatch.setattr(filter_banks, "_N_WINDOWS", n_windows)
    inputs = gradient_inputs()
    found, expected = (f(*inputs, KNOTS) for f in (filter_gradient, explicit_gradient))
    assert_close(found, expected)
    above = uniform(*found.shape, seed=3)
    gradients = (torch.autograd.grad(x, inputs, above) for x in (found, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e)


def thresholded_windows(image, size, t):
    total, counts = np.zeros(image.shape), np.zeros(image.shape)
    for y in range(image.shape[0] - size + 1):
        for x in range(image.shape[1] - size + 1):
            place = np.s_[y : y + size, x : x + size]
            c = dctn(image[place], norm="ortho")
            mean = c[0, 0]
            c = np.sign(c) * np.maximum(np.abs(c) - t, 0)
            c[0, 0] = mean
            total[place] += idctn(c, norm="ortho")
            counts[place] += 1
    return total / counts


def test_first_layer_of_the_network_is_soft_thresholding_fe_2():
    image = uniform(1, 1, 12, 15)
    network = FilterDiffusionDenoiser(n_layers=1, threshold=1.5, **DOUBLE)
    expected = thresholded_windows(image[0, 0].numpy(), 7, 1.5 * 25 / 255)
    assert_allclose(network(image)[0, 0].detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [FilterDiffusionDenoiser, ConvexRidgeDenoiser])
def test_state_is_restored_and_channels_are_apart(make):
    images, network = uniform(2, 3, 12, 15), moved(make(**DOUBLE))
    other = make(**DOUBLE)
    other.load_state_dict(network.state_dict())
    out = other(images)
    assert_close(out, network(images))
    assert_close(out[:, 1:2], network(images[:, 1:2]), atol=2e-4, rtol=0)


def test_memory_does_not_hold_all_responses():
    network, image = FilterDiffusionDenoiser(n_layers=1), torch.rand(1, 1, 600, 600)
    shapes = []
    original = filter_banks._cut_windows

    def recorded(u, size):
        windows = original(u, size)
        shapes.append(windows.numel())
        return windows

    filter_banks._cut_windows = recorded
    try:
        network(image).sum().backward()
    finally:
        filter_banks._cut_windows = original
    assert max(shapes) <= 49 * 6000


def exact_ridge(layer, image):
    bank, potentials = ridge_of(layer)
    return minimize_convex_ridge(image, bank, potentials, lam=1.0, tol=1e-11, max_iter=20_000)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-2), (torch.float64, 1e-4)])
def test_certified_distance_holds_against_a_hundred_times_the_accuracy_fe_3(tol, dtype):
    network = moved(ConvexRidgeDenoiser(tol=tol, dtype=dtype))
    noisy = uniform(2, 2, 14, 16).to(dtype)
    with torch.no_grad():
        denoised = network(noisy)
    certified = network.certificate(noisy, denoised)
    assert certified.dtype == torch.float64
    assert certified.shape == (2, 2)
    assert certified.max() <= tol * (1 + 1e-3)
    for place in np.ndindex(2, 2):
        exact = exact_ridge(network.ridge, noisy[place].double().numpy())
        assert exact.gap <= tol / 100
        distance = np.sqrt(((denoised[place].double().numpy() - exact.coef) ** 2).mean())
        assert 0 < distance <= float(certified[place]) + exact.gap


def test_an_image_that_is_not_finite_is_not_returned_as_it_came():
    noisy = torch.rand(2, 1, 16, 16)
    noisy[0, 0, 3, 3] = torch.nan
    layer = ConvexRidge(0.02, 0.02)
    found = layer(noisy.requires_grad_())
    assert found[0].isnan().all()
    assert layer.certificate(noisy, found)[0].isnan()
    assert layer.certificate(noisy, found)[1] <= 1e-6
    found[1].sum().backward()
    assert noisy.grad[1].isfinite().all()


def test_too_few_iterations_warn():
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        ConvexRidgeDenoiser(max_iter=2)(uniform(1, 1, 12, 12))


AROUND = {"window": 2, "n_similar": 4}


def test_starts_as_the_local_step_and_returns_to_it():
    u, f = uniform(2, 1, 9, 11), uniform(2, 1, 9, 11, seed=1)
    layer = NonlocalFilterDiffusion(0.2, lam=0.1, filter_size=3, **DOUBLE)
    similar = Similar.around(f, 3, **AROUND)
    expected = FilterDiffusion(0.2, lam=0.1, filter_size=3, **DOUBLE)(u, f)
    assert_close(layer(u, f, similar), expected, rtol=0, atol=1e-14)
    assert abs(moved(layer)(u, f, similar) - expected).max() > 1e-3
    layer.reset_parameters()
    assert_close(layer(u, f, similar), expected, rtol=0, atol=1e-14)


def test_network_starts_as_the_local_one():
    images = uniform(2, 3, 12, 15)
    found, expected = (
        network(**DOUBLE)(images)
        for network in (NonlocalFilterDiffusionDenoiser, FilterDiffusionDenoiser)
    )
    assert_close(found, expected, rtol=0, atol=1e-13)


def test_influence_is_a_sum_of_clippings():
    z, weights = 3 * uniform(20, 4) - 1.5, uniform(4, 3, seed=1) - 0.5
    knots = (0.3, 0.5, 1.2)
    expected = sum(w * z.clamp(-t, t) for t, w in zip(knots, weights.mT, strict=True))
    assert_close(influence(z, weights, knots), expected)
    inputs = [x.clone().requires_grad_() for x in (z, weights)]
    assert torch.autograd.gradcheck(lambda z, w: influence(z, w, knots), inputs)
    out = influence(*inputs, knots).square().sum()
    (gradient,) = torch.autograd.grad(out, inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        gradient.sum().backward()
