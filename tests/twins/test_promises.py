"""Layers that iterate to a tolerance of their own: right ones pass, faults above it do not."""

import numpy as np
import pytest
import torch

import twinsolve
from twinsolve.unrolled import Gaussian, Neutreno, Solved, SparseCoding, VisionTransformer
from twinsolve.unrolled.nonlocal_energy import convex_ridge

from .conftest import TWINS, built, small_inputs


def promising(name):
    """The layer of a twin, and its parts that have a tolerance."""
    layer = built(TWINS[name], small_inputs(TWINS[name], torch.float64))
    return layer, [part for part in layer.modules() if "tol" in vars(part)]


NAMES = [name for name in TWINS if promising(name)[1]]


def layer_and_data(name, dtype, tol, moved=0.0):
    layer, parts = promising(name)
    for part in parts:
        part.tol = tol
    rng = np.random.default_rng(0)
    for parameter in layer.parameters():
        size = parameter.detach().abs().mean()
        noise = torch.from_numpy(rng.standard_normal(parameter.shape))
        parameter.data += moved * size * noise
    return layer.to(dtype), small_inputs(TWINS[name], dtype)[0][0]


@pytest.mark.parametrize("moved", [0.0, 0.2])
@pytest.mark.parametrize(("tol", "dtype"), [(1e-4, torch.float32), (1e-8, torch.float64)])
@pytest.mark.parametrize("name", NAMES)
def test_a_right_layer_is_correct_at_any_tolerance_dtype_and_parameters(name, dtype, tol, moved):
    report = twinsolve.check(*layer_and_data(name, dtype, tol, moved))
    assert report, report


@pytest.mark.parametrize("lam", [0.02, 0.6])
def test_so_is_a_layer_of_a_model(lam):
    torch.manual_seed(0)
    operator = Solved(Neutreno(Gaussian(1.0), lam), tol=1e-4)
    model = VisionTransformer(8, 2, 1, 10, 16, 2, 2, operator=operator)
    for parameter in model.parameters():  # so that attention is not uniform
        parameter.data *= 3
    report = twinsolve.check(model, torch.randn(2, 1, 8, 8))
    assert report, report


def weaker_ridge(monkeypatch):
    right = convex_ridge.filter_gradient
    monkeypatch.setattr(convex_ridge, "filter_gradient", lambda *a: 1.01 * right(*a))


def less_accurate_ridge(monkeypatch):
    right = convex_ridge._Energy.distance
    monkeypatch.setattr(convex_ridge._Energy, "distance", lambda *a: right(*a) / 30)


def larger_penalty(monkeypatch):
    right = SparseCoding.penalties
    monkeypatch.setattr(SparseCoding, "penalties", lambda self, *call: 1.01 * right(self, *call))


def stronger_pull(monkeypatch):
    right = Neutreno.iteration

    def iteration(self, call, *, relaxed):
        step = right(self, call, relaxed=relaxed)
        return lambda u: 1.001 * step(u)

    monkeypatch.setattr(Neutreno, "iteration", iteration)


FAULTS = {
    "convex-ridge": (weaker_ridge, less_accurate_ridge),
    "neutreno-solved": (stronger_pull,),
    "sparse-coding-solved": (larger_penalty,),
}


@pytest.mark.parametrize(
    ("name", "plant"), [(name, plant) for name in FAULTS for plant in FAULTS[name]]
)
def test_a_fault_of_a_hundredth_is_found_at_a_coarse_tolerance(monkeypatch, name, plant):
    plant(monkeypatch)
    report = twinsolve.check(*layer_and_data(name, torch.float64, 1e-4))
    assert not report, report
