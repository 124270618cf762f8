"""Diffusion by learned filters that respond to similar windows as well."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import FilterDiffusion
from twinsolve.unrolled.models.denoisers import (
    FilterDiffusionDenoiser,
    NonlocalFilterDiffusionDenoiser,
)
from twinsolve.unrolled.nonlocal_energy import NonlocalFilterDiffusion
from twinsolve.unrolled.nonlocal_energy.filter_banks import influence
from twinsolve.unrolled.sparse_coding.patches import Similar

from .draws import moved, uniform

DOUBLE = {"dtype": torch.float64}
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
