"""Every twin of the catalogue, and the faults that the check has to find."""

import copy

import numpy as np
import pytest
import torch

from twinsolve.unrolled import (
    Gaussian,
    LocallyLinear,
    NonLocalMeansAttention,
    SparseCoding,
    Twicing,
)
from twinsolve.unrolled.sparse_coding import safe_step, soft_threshold
from twinsolve.unrolled.twins import Measurement, Twin, catalogue
from twinsolve.unrolled.twins.relations import Identity, Limit, Rate, layer_output, solver_output

from .conftest import TWINS, built, small_inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_holds_on_small_data(twin, dtype):
    inputs = small_inputs(twin, dtype)
    assert twin.relation.measure(twin, built(twin, inputs), inputs).passed


def test_says_where_it_comes_from(twin):
    assert twin.name
    assert twin.equation
    assert twin.source
    assert twin.relation.tolerance <= (1.0 if isinstance(twin.relation, Rate) else 1e-7)


def test_builds_in_float64_and_measures_zero_against_itself(twin):
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    expected = solver_output(twin, layer, inputs)
    assert expected.dtype == np.float64
    assert layer_output(twin, layer, inputs).shape == expected.shape


def measured(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)

    return replace


ISTA = ["sparse-coding-iterates", "self-expression-iterates"]
LIMITS = ["sparse-coding-limit", "self-expression-limit"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ISTA + LIMITS)
def test_finds_a_threshold_scaled_by_two(patch, name, dtype):
    patch("sparse_coding.soft_threshold", lambda z, t: soft_threshold(z, 2 * t))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ISTA)
@pytest.mark.parametrize("factor", [1.001, 1.5, 4.0])
def test_finds_a_step_that_is_too_long(patch, name, factor, dtype):
    patch("sparse_coding.safe_step", lambda *a: factor * safe_step(*a))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["sparse-coding-rate", "self-expression-rate"])
def test_a_diverging_step_breaks_the_proved_rate(patch, name):
    patch("sparse_coding.safe_step", lambda *a: 6 * safe_step(*a))
    assert not measured(name).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["self-expression-iterates", "self-expression-limit"])
def test_finds_a_diagonal_left_in(patch, name, dtype):
    patch("sparse_coding.SparseCoding._allowed", lambda self, visible, *a: visible)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "name", ["gaussian-attention", "mahalanobis-attention", "twicing-attention"]
)
def test_finds_a_bandwidth_squared_wrongly(patch, name, dtype):
    right = Gaussian.bandwidth_for
    patch("kernel_smoothing.Gaussian.bandwidth_for", lambda self, q: right(self, q) ** 2)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["gaussian-attention", "nonlocal-means", "twicing-attention"])
def test_finds_missing_key_norms(patch, name):
    patch("kernel_smoothing._key_norms", lambda k: torch.zeros_like(k[..., :1]))
    assert not measured(name).passed


def test_finds_a_wrong_sign_of_the_residual(patch):
    def smooth_twice(self, q, k, v, **_):
        once = self.base(q, k, v)
        return once + self.base(q, k, once - v)

    patch("boosting.Twicing.forward", smooth_twice)
    assert not measured("twicing-attention").passed


@pytest.mark.parametrize("name", ["locally-linear", "locally-linear-attention"])
def test_finds_another_regularisation(patch, name):
    right = LocallyLinear.__init__

    def twice(self, n_neighbors, **arguments):
        right(self, n_neighbors, **arguments)
        self.solver_reg, self.reg = self.reg, 2 * self.reg

    patch("locally_linear.LocallyLinear.__init__", twice)
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    reference = copy.deepcopy(layer)
    reference.reg = layer.solver_reg
    expected = solver_output(twin, reference, inputs)
    assert np.abs(layer_output(twin, layer, inputs) - expected).max() > 1e-6


@pytest.mark.parametrize("name", ["nonlocal-means", "nonlocal-means-windowed"])
def test_finds_a_decay_squared_wrongly(patch, name):
    right = NonLocalMeansAttention.forward

    def squared(self, image):
        changed = copy.deepcopy(self)
        changed.h.log.mul_(2)
        return right(changed, image)

    patch("image_filters.NonLocalMeansAttention.forward", squared)
    assert not measured(name).passed


def test_nan_never_passes():
    assert not Measurement(float("nan"), 1.0).passed

    class Broken(Gaussian):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * float("nan")

    twin = TWINS["gaussian-attention"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Broken(1.0).double(), inputs).passed


def test_one_bad_iterate_among_good_ones_counts():
    class Late(SparseCoding):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            return out * (float("nan") if self.n_iter == 5 else 1)

    twin = TWINS["sparse-coding-iterates"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Late(0.5).double(), inputs).passed


def test_float32_tolerance_scales_with_steps_and_logits():
    twin = TWINS["twicing-attention"]
    inputs = small_inputs(twin, torch.float32)
    layer = built(twin, inputs)
    logits = twin.logit_range(layer, *(x.double().numpy() for x in inputs))
    assert logits > 1
    expected = 32 * torch.finfo(torch.float32).eps * 2 * logits
    assert twin.relation.measure(twin, layer, inputs).tolerance == pytest.approx(expected)


def test_limits_need_a_problem():
    twin = TWINS["gaussian-attention"]
    inputs = small_inputs(twin, torch.float64)
    for relation in (Rate(), Limit()):
        with pytest.raises(ValueError, match=r"needs Twin\.problem"):
            relation.measure(twin, built(twin, inputs), inputs)


def test_twicing_finds_the_twin_of_any_base():
    twin = TWINS["twicing-attention"]
    inputs = small_inputs(twin, torch.float64)
    for base in (LocallyLinear(5), Twicing(Gaussian(1.0).double())):
        layer = Twicing(base)
        # Locally linear weights solve systems: 1e-8, twice.
        assert Identity(1e-8).measure(twin, layer, inputs).passed


def test_the_catalogue_is_complete_and_typed():
    twins = catalogue()
    assert all(isinstance(twin, Twin) for twin in twins)
    assert {twin.family for twin in twins} >= {
        "kernel_smoothing", "image_filters", "boosting", "sparse_coding", "self_expression",
        "locally_linear",
    }  # fmt: skip
