"""Measures taken from models while they run."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from twinsolve.unrolled import (
    Attention,
    Context,
    Gaussian,
    Neutreno,
    Softmax,
    Solved,
    SpatialGaussian,
    Symmetric,
    Twicing,
    VisionTransformer,
)
from twinsolve.unrolled import diagnostics as d
from twinsolve.unrolled.diagnostics import ARRAYS, MEASURES, record


class Block(nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.attention = Attention(8, 2, operator=operator, dtype=torch.float64)

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(Softmax()), Block(Twicing(Gaussian(1.5))), Block(Softmax()))


X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def value(rows, layer, measure):
    found = [r["value"] for r in rows if r["layer"] == layer and r["measure"] == measure]
    assert len(found) == 1
    return torch.tensor(found[0], dtype=torch.float64)


def test_every_measure_of_every_layer_is_recorded_once(model):
    with record(model) as rows:
        out = model(X)
    names = [f"{i}.attention" for i in range(3)]
    for layer, name in enumerate(names):
        measured = [row["measure"] for row in rows if row["name"] == name]
        missing = {"regularized_energy"} | ({"map_similarity_to_previous"} if layer == 0 else set())
        assert sorted(measured) == sorted(set(MEASURES) - missing)
        assert {row["layer"] for row in rows if row["name"] == name} == {layer}
    assert_close(value(rows, 2, "token_similarity"), d.token_similarity(out).mean())


def test_values_are_those_of_the_functions(model):
    with record(model) as rows:
        model(X)
    first = model[0](X)
    layer = model[1].attention
    q, k, v = layer.project(first, first, first)
    A = layer.operator.matrix(q, k)
    q0, k0, _ = model[0].attention.project(X, X, X)
    before = Softmax().matrix(q0, k0)
    after, bands = model[1](first), d.attention_spectrum(A)[1]
    expected = {
        "token_similarity": d.token_similarity(after),
        "absolute_token_similarity": d.token_similarity(after, absolute=True),
        "high_frequency_share": d.high_frequency_share(after),
        "high_band_intensity": bands[..., 1:].sum(dim=-1) / 5 / bands[..., 0],
        "map_similarity": d.map_similarity(A),
        "map_similarity_to_previous": d.map_similarity(A, before),
        "nonzero_share": torch.ones((), dtype=torch.float64),
        "smoothness": d.kernel_energy(A @ v, k),
        "gradient_cosine": d.gradient_cosine(q, k, v),
        "method_noise_share": d.method_noise_share(v, A @ v),
        "log_condition_number": d.condition_number(model[1](first)).log(),
    }
    for name, tensor in expected.items():
        assert_close(value(rows, 1, name), tensor.mean(), atol=1e-10, rtol=1e-10)


def test_passes_are_numbered_and_hooks_go_away(model):
    with record(model, {"share": lambda seen: d.high_frequency_share(seen.tokens)}) as rows:
        model(X)
        model(X[:1])
    assert [(r["call"], r["layer"]) for r in rows] == [(c, i) for c in range(2) for i in range(3)]
    model(X)
    assert len(rows) == 6
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_output_and_gradients_are_untouched(model):
    expected = model(X)
    with record(model):
        x = X.clone().requires_grad_()
        found = model(x)
        found.sum().backward()
    assert_close(found, expected, atol=0, rtol=0)
    assert x.grad is not None


def test_masks_reach_the_measures(model):
    layer = model[0].attention
    padding = torch.arange(6).expand(2, 6) >= 4
    with record(layer) as rows:
        layer(X, X, X, padding, need_weights=False)
    q, k, v = layer.project(X, X, X)
    mask = ~padding[:, None, None, :]
    expected = d.kernel_energy(Softmax()(q, k, v, mask=mask), k, mask=mask)
    assert_close(value(rows, 0, "smoothness"), expected.mean())
    assert value(rows, 0, "nonzero_share") == 1


def test_what_an_operator_does_not_read_is_not_measured():
    """Such queries and keys are no projections, only tokens of the right shape."""
    torch.manual_seed(0)
    for operator, missing in (
        (Symmetric(), {"gradient_cosine"}),
        (SpatialGaussian(1.0), {"gradient_cosine", "smoothness"}),
    ):
        block = Block(operator)
        with record(block) as rows:
            block(X)
        never = {"regularized_energy", "map_similarity_to_previous"}
        assert {row["measure"] for row in rows} == set(MEASURES) - missing - never


def test_a_model_without_operators_is_refused():
    with (
        pytest.raises(ValueError, match="model: must be or contain an Operator, got Linear"),
        record(nn.Linear(2, 2)),
    ):
        pass


class ReadsPrevious(Softmax):
    needs = ("previous_values",)

    def logits(self, call):
        before = call.context.previous_values
        bias = 0 if before is None else before.sum(dim=-1)[..., None, :]
        return super().logits(call) + bias

    def attend(self, call):
        return call.matrix_of(self) @ call.v


def test_matrices_are_those_of_the_context_in_which_the_layer_ran():
    """Not of the one that it gives to the next layer, with its own values as the previous ones."""
    layer = Attention(8, 2, operator=ReadsPrevious(), dtype=torch.float64)
    difference = {"difference": lambda seen: (seen.matrix @ seen.v - seen.output).abs().amax()}
    context = Context(previous_values=torch.randn(2, 2, 6, 4, dtype=torch.float64))
    with record(layer, difference) as rows:
        layer(X, X, X, need_weights=False, context=context)
    assert rows[0]["value"] < 1e-12


def test_recomputed_layers_are_not_measured_again(model):
    def run(x):
        return checkpoint(model, x, use_reentrant=False)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return run(x)

    whole = Checkpointed()
    with record(whole, {"share": lambda seen: d.high_frequency_share(seen.tokens)}) as rows:
        whole(X.clone().requires_grad_()).sum().backward()
    assert [(r["call"], r["layer"]) for r in rows] == [(0, 0), (0, 1), (0, 2)]


def test_other_methods_of_a_model_count_as_passes_of_their_own():
    torch.manual_seed(0)
    vit = VisionTransformer(8, 4, 1, 3, 8, 2, 2)
    images = torch.randn(2, 1, 8, 8)
    with record(vit) as rows:
        vit.intermediates(images)
        vit.forward_features(images + 1)
        vit(images)
    energy = [r for r in rows if r["measure"] == "smoothness"]
    assert [(r["call"], r["layer"]) for r in energy] == [(c, i) for c in range(3) for i in range(2)]
    assert [r["value"] for r in energy[:2]] == [r["value"] for r in energy[4:]]
    with record(vit) as alone:
        vit(images + 1)
    alone = [r["value"] for r in alone if r["measure"] == "smoothness"]
    assert [r["value"] for r in energy[2:4]] == alone


@pytest.mark.parametrize("wrap", [Twicing, Solved])
def test_the_energy_is_that_of_the_layers_own_penalty(wrap):
    def make(num_heads, head_dim):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(Neutreno(Softmax(), 0.6, num_heads=num_heads, learnable=True))

    torch.manual_seed(0)
    vit = VisionTransformer(8, 4, 1, 3, 8, 2, 2, operator=make, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if name.endswith("lam.log"):
                parameter[1] += 0.5
    lam = torch.tensor([0.6, 0.6 * math.exp(0.5)]).double()[:, None, None]

    def literal(seen):
        return d.kernel_energy(seen.output, seen.k, f=seen.first_values, lam=lam)

    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with record(vit, MEASURES | {"literal": literal}) as rows:
        vit(images)
    for layer in range(2):
        found = value(rows, layer, "regularized_energy")
        assert_close(found, value(rows, layer, "literal"), rtol=1e-6, atol=0)
        assert found > value(rows, layer, "smoothness")


@pytest.mark.parametrize("wrap", [lambda x: x, Twicing, Solved])
@pytest.mark.parametrize("base", [Softmax, lambda: Twicing(Gaussian(1.5))])
def test_attention_matrices_of_neutreno_are_those_of_its_smoother(wrap, base):
    def make(num_heads, head_dim):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(Neutreno(base(), 0.6))

    def show(seen):
        A, smoother = seen.attention_matrix, base().matrix(seen.q, seen.k, **seen.masks)
        assert_close(A, smoother, rtol=0, atol=1e-14)
        assert seen.matrix is not A
        if isinstance(seen.operator, Neutreno):
            assert_close(seen.matrix, A - 0.6 * torch.eye(A.shape[-1]).to(A), rtol=0, atol=1e-7)
        expected = {"map_similarity": d.map_similarity(A)}
        expected["high_band_intensity"] = (
            d.attention_spectrum(A)[1][..., 1:].mean(-1) / (d.attention_spectrum(A)[1][..., 0])
        )
        if seen.previous is not None:
            before = seen.previous.attention_matrix
            expected["map_similarity_to_previous"] = d.map_similarity(A, before)
        for name, found in expected.items():
            assert_close(MEASURES[name](seen), found, rtol=0, atol=1e-12)
        assert_close(ARRAYS["attention_map"](seen), A, rtol=0, atol=0)

    torch.manual_seed(0)
    vit = VisionTransformer(8, 4, 1, 3, 8, 2, 2, operator=make, dtype=torch.float64)
    with record(vit, {"show": show}):
        vit(torch.randn(2, 1, 8, 8, dtype=torch.float64))


def test_arrays_are_recorded_whole(model):
    layer, before = model[2].attention, model[1](model[0](X))
    A = layer.operator.matrix(*layer.project(before, before, before)[:2])
    with record(model, {}, arrays=ARRAYS) as rows:
        out = model(X)
        model.float()(X.float())
    assert len(rows) == 2 * 3 * len(ARRAYS)
    s = torch.linalg.svdvals
    expected = {
        "attention_map": A,
        "map_singular_values": s(A),
        "band_intensity": d.attention_spectrum(A)[1],
        "token_singular_values": s(out),
    }
    assert set(expected) == set(ARRAYS)
    for row in rows:
        assert isinstance(row["value"], np.ndarray)
        assert row["value"].dtype == (np.float64 if row["call"] == 0 else np.float32)
        if row["layer"] == 2:
            target = expected[row["measure"]].detach().numpy()
            tolerance = 1e-12 if row["call"] == 0 else 1e-5
            np.testing.assert_allclose(row["value"], target, rtol=0, atol=tolerance)
