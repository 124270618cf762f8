"""Faults in layers with positions, metrics and balancing that the check has to find."""

import pytest
import torch

from twinsolve.unrolled import Bilateral, Gaussian, Sinkhorn, Softmax
from twinsolve.unrolled.attention import fused_attention
from twinsolve.unrolled.kernel_smoothing import alibi, elliptical_weights, gaussian_attention
from twinsolve.unrolled.twins import exact_twin

from .conftest import TWINS, built, small_inputs

DOT_PRODUCTS = ["bilateral-attention", "nonlocal-attention"]
DISTANCES = ["bilateral-tokens", "nonlocal-means-tokens", "bilateral-filter"]


def passes(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs).passed


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.kernel_smoothing.{target}", value)

    return replace


BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


@BOTH
@pytest.mark.parametrize("name", DOT_PRODUCTS + DISTANCES)
def test_finds_a_bandwidth_that_is_not_squared(patch, name, dtype):
    right = Bilateral.bandwidth_for
    patch("bilateral.Bilateral.bandwidth_for", lambda self, b, q: right(self, b, q) ** 0.5)
    assert not passes(name, dtype)


@BOTH
@pytest.mark.parametrize("name", DOT_PRODUCTS)
def test_finds_a_factor_of_two_in_dot_products(patch, name, dtype):
    def halved(*args, scale, **kwargs):
        return fused_attention(*args, scale=scale / 2, **kwargs)

    patch("bilateral.fused_attention", halved)
    assert not passes(name, dtype)


@BOTH
@pytest.mark.parametrize("name", DISTANCES)
def test_finds_the_printed_h_e0b(patch, name, dtype):
    def printed(*args, bandwidth, **kwargs):
        return gaussian_attention(*args, bandwidth=bandwidth / 2**0.5, **kwargs)

    patch("bilateral.gaussian_attention", printed)
    assert not passes(name, dtype)


@BOTH
@pytest.mark.parametrize("name", ["bilateral-attention", "bilateral-tokens", "bilateral-filter"])
def test_finds_positions_of_queries_and_keys_exchanged_or_dropped(patch, name, dtype):
    right = Bilateral._positions

    def shifted(self, call):
        p_q, p_k = right(self, call)
        return p_q, p_k.roll(1, dims=-2)

    patch("bilateral.Bilateral._positions", shifted)
    assert not passes(name, dtype)
    patch("bilateral.Bilateral._positions", lambda self, call: (None, None))
    assert not passes(name, dtype)


@BOTH
def test_finds_wrong_distances_and_slopes_of_alibi(patch, dtype):
    right = alibi._distances
    patch("alibi._distances", lambda *args: right(*args) ** 2)
    assert not passes("alibi", dtype)
    patch("alibi._distances", lambda *args: right(*args) + right(*args).tril())
    assert not passes("alibi", dtype)
    patch("alibi._distances", right)
    slopes = alibi.ALiBi.slopes_for
    patch("alibi.ALiBi.slopes_for", lambda self, q: slopes(self, q).flip(0))
    assert not passes("alibi", dtype)


@BOTH
def test_finds_the_scale_of_plain_attention_in_tupe(patch, dtype):
    def plain(*args, scale, **kwargs):
        return fused_attention(*args, scale=scale * 2**0.5, **kwargs)

    patch("tupe.fused_attention", plain)
    assert not passes("tupe", dtype)


@BOTH
def test_finds_another_norm_of_the_changes(patch, dtype):
    def of_squares(values, previous, **masks):
        return elliptical_weights(values**2, previous**2, **masks)

    patch("elliptical.elliptical_weights", of_squares)
    assert not passes("elliptical-attention", dtype)
    patch("elliptical.elliptical_weights", lambda v, w, **_: torch.ones_like(v[..., :1, :]))
    assert not passes("elliptical-attention", dtype)


@BOTH
def test_finds_a_metric_applied_to_both_sides(patch, dtype):
    right = elliptical_weights
    patch("elliptical.elliptical_weights", lambda *args, **masks: right(*args, **masks) ** 2)
    assert not passes("elliptical-attention", dtype)
    patch("elliptical._fit_metric", lambda metric, q: metric[:, None].to(q) ** 2)
    assert not passes("elliptical-given-metric", dtype)


@BOTH
@pytest.mark.parametrize("name", ["sinkhorn-iterates", "sinkhorn-limit", "sinkhorn-rate"])
def test_finds_columns_left_unscaled(patch, name, dtype):
    def rows_alone(logits, dim):
        total = torch.logsumexp(logits, dim=dim, keepdim=True)
        return -total if dim == -1 else torch.zeros_like(total)

    patch("balancing._potential", rows_alone)
    assert not passes(name, dtype)


@BOTH
def test_finds_one_iteration_more(patch, dtype):
    right = Sinkhorn.coefficients

    def once_more(self, call):
        self.n_iter += 1
        try:
            return right(self, call)
        finally:
            self.n_iter -= 1

    patch("balancing.Sinkhorn.coefficients", once_more)
    assert not passes("sinkhorn-iterates", dtype)


def test_sinkhorn_finds_the_twin_of_any_base():
    twin = TWINS["sinkhorn-iterates"]
    inputs = small_inputs(twin, torch.float64)
    for base in (Softmax(0.2), Gaussian(3.0), Sinkhorn(Gaussian(3.0), n_iter=1)):
        assert twin.relation.measure(twin, Sinkhorn(base), inputs).passed


def test_each_form_of_bilateral_attention_has_its_own_exact_twin():
    cases = {
        "bilateral-attention": Bilateral(),
        "nonlocal-attention": Bilateral(float("inf")),
        "bilateral-tokens": Bilateral(distances=True),
        "nonlocal-means-tokens": Bilateral(float("inf"), distances=True),
    }
    for name, layer in cases.items():
        twin = exact_twin(layer)
        assert twin.name == name
        inputs = small_inputs(twin, torch.float64)
        assert twin.relation.measure(twin, layer, inputs).passed
