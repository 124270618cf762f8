"""Faults that the check has to find in the base smoothers and their bounds."""

import pytest
import torch

from twinsolve.unrolled import (
    CrissCross,
    Local,
    Logistic,
    Softmax,
    Symmetric,
    TopK,
)
from twinsolve.unrolled.kernel_smoothing import (
    linear_attention,
    project_on_simplex,
    spatial_gaussian,
)
from twinsolve.unrolled.kernel_smoothing.logits import block_softmax

from .conftest import TWINS, built, small_inputs


def passes(name):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    return twin.relation.measure(twin, built(twin, inputs), inputs).passed


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.kernel_smoothing.{target}", value)

    return replace


@pytest.mark.parametrize(
    "name", ["gaussian-kernel", "laplace-kernel", "exponential-kernel", "student-kernel"]
)
def test_finds_logits_scaled_wrongly(patch, name):
    patch("kernel.block_softmax", lambda logits, mask: block_softmax(1.001 * logits, mask))
    assert not passes(name)


def test_finds_a_squared_distance_in_the_laplace_kernel(patch):
    patch("kernel.distances", lambda q, k: torch.cdist(q, k).square())
    assert not passes("laplace-kernel")


def test_finds_a_small_number_added_to_the_mass(patch):
    patch("kernel._divide", lambda sums, mass: sums / (mass + 1e-6))
    assert not passes("feature-kernel")


@pytest.mark.parametrize("name", ["linear-attention", "linear-attention-ridge-bound"])
def test_finds_another_scale_of_linear_attention(patch, name):
    patch("linear.linear_attention", lambda *x, **y: 1.001 * linear_attention(*x, **y))
    assert not passes(name)


def test_finds_other_neighbours(patch):
    window, cross = Local.near, CrissCross.near
    patch("local.Local.near", lambda self, r, c: window(self, r - 1, c))
    patch("local.CrissCross.near", lambda self, r, c: cross(self, r, c) & ((r != 0) | (c != 0)))
    assert not passes("local-window")
    assert not passes("criss-cross")


def test_finds_one_key_more(patch):
    right = TopK._weights
    patch(
        "softmax.TopK._weights",
        lambda self, *x: right(TopK(self.n_largest + 1, scale=self.scale), *x),
    )
    assert not passes("top-k")


@pytest.mark.parametrize(
    ("way", "option"), [("_smooth_rows", "sequence"), ("_smooth_grid", "class-tokens")]
)
def test_finds_a_missing_two_of_the_spatial_width(patch, way, option):
    """Erratum E0-b: h^2 is 2 s^2."""
    twin, right = TWINS["spatial-gaussian"], getattr(spatial_gaussian, way)
    inputs = small_inputs(twin, torch.float64)
    layer = twin.options[option](*(x.numpy() for x in inputs))
    assert twin.relation.measure(twin, layer, inputs).passed
    place = 2 if way == "_smooth_rows" else 1

    def narrow(*x):
        return right(*x[:place], x[place] / 2**0.5, *x[place + 1 :])

    patch(f"spatial_gaussian.{way}", narrow)
    assert not twin.relation.measure(twin, layer, inputs).passed


def test_finds_a_threshold_that_is_off(patch):
    patch("simplex.project_on_simplex", lambda z: (project_on_simplex(z) - 1e-6).relu())
    assert not passes("sparsemax-attention")


def test_finds_queries_in_symmetric_attention(patch):
    patch("softmax.Symmetric.attend", lambda self, call: Softmax(self.scale)(*call[:3]))
    assert not passes("symmetric-attention")


@pytest.mark.parametrize("name", ["symmetric-attention", "symmetric-attention-descent"])
def test_finds_a_step_that_is_too_long(patch, name):
    right = Symmetric.attend

    def attend(self, call):
        return call.v + 2.5 * (right(self, call) - call.v)

    patch("softmax.Symmetric.attend", attend)
    assert not passes(name)


def test_finds_a_step_that_is_too_short_to_mix(patch):
    right = Symmetric.attend

    def attend(self, call):
        return (call.v + right(self, call)) / 2

    patch("softmax.Symmetric.attend", attend)
    assert not passes("symmetric-attention-mixing")


@pytest.mark.parametrize("name", ["logistic-attention", "graph-attention"])
def test_finds_terms_scaled_wrongly(patch, name):
    patch("logistic.block_softmax", lambda logits, mask: block_softmax(1.001 * logits, mask))
    assert not passes(name)


def test_finds_rows_that_are_not_normalised(patch):
    patch("logistic.block_softmax", lambda logits, mask: (3 * logits).exp())
    assert Logistic(4).row_stochastic
    assert not passes("graph-attention-gain-bound")


@pytest.mark.parametrize("name", ["softmax-gain-bound", "softmax-depth-bound", "random-walk"])
def test_finds_a_skip_connection(patch, name):
    """What keeps high frequencies breaks the bounds that hold for attention alone."""
    right = Softmax.attend
    patch("softmax.Softmax.attend", lambda self, call: (call.v + right(self, call)) / 2)
    assert not passes(name)


@pytest.mark.parametrize("name", ["random-walk", "random-walk-limit"])
def test_finds_another_walk(patch, name):
    right = Softmax.attend
    patch(
        "softmax.Softmax.attend",
        lambda self, call: right(Softmax(1.001 * self.scale), call),
    )
    assert not passes(name)
