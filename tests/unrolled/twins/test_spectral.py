"""Twins of frequency scales, residual connections and token graying: faults that they find."""

import numpy as np
import pytest
import torch

import twinsolve
from twinsolve.unrolled import (
    AttnScale,
    FeatScale,
    Gaussian,
    GeneralizedResidual,
    ReAttention,
    Softmax,
    TokenGraying,
)
from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.conditioning import cosine_transform
from twinsolve.unrolled.spectral_filtering import LayerScale
from twinsolve.unrolled.twins.relations import layer_output, solver_output

from .conftest import TWINS, built, small_inputs

DTYPES = [torch.float64, torch.float32]


def measured(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)

    return replace


@pytest.mark.parametrize("dtype", DTYPES)
def test_finds_a_correction_that_is_added_twice(patch, dtype):
    right = AttnScale._omega_for
    patch("spectral_filtering.attention_scaling.AttnScale._omega_for",
          lambda self, q: 2 * right(self, q))  # fmt: skip
    assert not measured("attn-scale", dtype).passed


def test_finds_a_start_that_is_not_the_base(patch):
    patch(
        "spectral_filtering.attention_scaling.AttnScale._omega_for",
        lambda self, q: self.omega + 1e-6,
    )
    assert not measured("attn-scale-init").passed


def test_finds_high_frequencies_beyond_the_bound(patch):
    right = Gaussian.attend
    patch(
        "kernel_smoothing.gaussian.Gaussian.attend",
        lambda self, call: call.v + right(self, call),
    )
    assert not measured("attn-scale-gain").passed


@pytest.mark.parametrize("name", ["feat-scale", "feat-scale-gain"])
def test_finds_features_scaled_twice(patch, name):
    right = FeatScale.forward
    patch("spectral_filtering.feature_scaling.FeatScale.forward",
          lambda self, y: right(self, right(self, right(self, y))))  # fmt: skip
    assert not measured(name).passed


def test_finds_a_factor_that_is_added(patch):
    right = LayerScale.forward
    patch("spectral_filtering.feature_scaling.LayerScale.forward",
          lambda self, y: y + right(self, y))  # fmt: skip
    assert not measured("layer-scale").passed


def test_finds_heads_mixed_the_wrong_way_round(patch):
    right = ReAttention._mix_heads

    def transposed(self, A, mask, theta, gamma, beta):
        return right(self, A, mask, theta.mT, gamma, beta)

    patch("spectral_filtering.reattention.ReAttention._mix_heads", transposed)
    assert not measured("re-attention").passed


MASKS = {
    "causal": lambda n: torch.ones(n, n).tril().bool(),
    "padding": lambda n: (torch.arange(n) < n - 5).expand(n, n),
    "pairs": lambda n: torch.eye(n).bool() | (torch.arange(n * n).reshape(n, n) % 3 > 0),
}


def masked_difference(name, mask):
    """Of layer and solver where the mask hides keys."""
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    found = layer_output(twin, layer, inputs, mask=mask)
    return np.abs(found - solver_output(twin, layer, inputs, visible=mask.numpy())).max()


@pytest.mark.parametrize("mask", MASKS)
def test_re_attention_mixes_heads_over_the_keys_that_are_seen(mask):
    assert masked_difference("re-attention", MASKS[mask](24)) < 1e-12


@pytest.mark.parametrize("mask", ["causal", "pairs"])  # values of padding are dropped besides
def test_finds_re_attention_that_shows_what_is_hidden(patch, mask):
    right = ReAttention._mix_heads
    patch("spectral_filtering.reattention.ReAttention._mix_heads",
          lambda self, A, mask, *rest: right(self, A, None, *rest))  # fmt: skip
    assert masked_difference("re-attention", MASKS[mask](24)) > 1e-3


def test_finds_the_bandwidth_of_one_head_for_all(patch):
    right = Positive.forward
    patch(
        "attention.parameters.Positive.forward",
        lambda self: right(self).flatten()[0].expand(self.log.shape),
    )
    twin = TWINS["re-attention"]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    wrong = layer_output(twin, layer, inputs)
    patch("attention.parameters.Positive.forward", right)
    assert np.abs(wrong - solver_output(twin, layer, inputs)).max() > 1e-3


BOOSTED = ["boosted-residual", "boosted-residual-limit", "boosted-residual-lipschitz"]
REINJECTED = ["generalized-residual", "generalized-residual-limit"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BOOSTED + REINJECTED)
def test_finds_another_weight_of_the_earlier_tokens(patch, name, dtype):
    right = GeneralizedResidual._find_earlier_tokens
    patch("boosting.GeneralizedResidual._find_earlier_tokens",
          lambda self, context: 1.01 * right(self, context))  # fmt: skip
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", BOOSTED)
def test_finds_a_second_branch_that_is_not_weighted(patch, name):
    def definition(self, x, y, context):
        return x + y + self.t * context.first_tokens

    patch("boosting.GeneralizedResidual.forward", definition)
    assert not measured(name).passed
    assert measured("boosted-residual-init").passed


@pytest.mark.parametrize(
    "name", ["boosted-residual", "boosted-residual-init", "generalized-residual"]
)
def test_finds_a_stack_that_keeps_its_first_kernel(patch, name):
    right = Gaussian.forward
    first = {}

    def keeps(self, q, k, v, **masks):
        return right(self, *2 * (first.setdefault(id(self), q),), v, **masks)

    patch("kernel_smoothing.gaussian.Gaussian.forward", keeps)
    assert not measured(name).passed


def test_finds_a_residual_that_starts_elsewhere(patch):
    patch("boosting.GeneralizedResidual.reset_parameters",
          lambda self: torch.nn.init.constant_(self.t, 1e-3))  # fmt: skip
    assert not measured("boosted-residual-init").passed


def test_finds_the_latest_block_in_place_of_the_named_one(patch):
    patch("boosting.GeneralizedResidual._find_earlier_tokens",
          lambda self, context: context.history[-1])  # fmt: skip
    assert not measured("generalized-residual").passed


def test_finds_a_residual_that_takes_the_size_away(patch):
    patch(
        "boosting.Residual.forward",
        lambda self, x, y, context=None: (x + y) / (x + y).norm(),
    )
    assert not measured("residual-snr").passed


GRAYINGS = ["token-graying-svd", "token-graying-dct"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*GRAYINGS, "token-graying-condition"])
def test_finds_another_power(patch, name, dtype):
    right = TokenGraying.forward

    def stronger(self, X):
        layer = TokenGraying(self.transform, eps=0.9 * self.eps)
        return right(layer, X)

    patch("conditioning.TokenGraying.forward", stronger)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["token-graying-svd", "token-graying-condition"])
def test_finds_the_printed_listing(patch, name):
    """Erratum E4-i: the largest singular value becomes 1."""
    right = TokenGraying.forward
    patch("conditioning.TokenGraying.forward",
          lambda self, X: right(self, X) / torch.linalg.matrix_norm(X, 2))  # fmt: skip
    assert not measured(name).passed


def test_finds_the_printed_transform(patch):
    """Erratum E4-j: the matrix of the inverse."""
    patch("conditioning.cosine_transform", lambda n, like: cosine_transform(n, like).mT)
    assert not measured("token-graying-dct").passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_finds_a_softmax_that_is_too_sharp(patch, dtype):
    right = Softmax.attend
    patch(
        "kernel_smoothing.softmax.Softmax.attend",
        lambda self, call: right(self, call._replace(q=40 * call.q)),
    )
    assert not measured("softmax-stability", dtype).passed


def test_a_users_layer_with_heads_is_checked():
    X = small_inputs(TWINS["feat-scale"], torch.float64)[0]
    layer = AttnScale(Gaussian(1.0), num_heads=3).double()
    layer.omega.data += 0.3
    report = twinsolve.check(layer, X)
    assert report.twin == "attn-scale"
    assert report.correct
    assert report.origin["distance"] > 0.01
    for module in (FeatScale(6), TokenGraying("svd"), TokenGraying("dct"), LayerScale(6)):
        assert twinsolve.check(module.double(), X).correct
    assert twinsolve.check(GeneralizedResidual().double(), X).correct
