"""Layers of learned filters on images, and the networks of them."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers.nonlocal_energy import minimize_convex_ridge
from twinsolve.twins.families.nonlocal_energy.image_energies import ridge_of
from twinsolve.unrolled import ConvexRidge
from twinsolve.unrolled.models.denoisers import ConvexRidgeDenoiser, FilterDiffusionDenoiser
from twinsolve.unrolled.nonlocal_energy import filter_banks

from .draws import moved, uniform


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
