"""`replace_attention` is exact or refused by name, and a refusal leaves no trace."""

import copy
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from twinsolve.unrolled import Attention, Softmax, replace_attention

from .examples import Block, VisionAttention, tokens, traces
from .foreign_attention import (
    REFUSED,
    SERVED,
    Banded,
    HeadsFirst,
    LocalWindows,
    Plain,
    SharedNorm,
    WholeWindows,
    WithParameter,
)

X = tokens(1, 17)


def model_with(attention, dtype=torch.float64):
    """A block of ours whose attention is another, after one that can be served."""
    block = Block()
    block.attn = attention
    return nn.Sequential(Block(), block, nn.BatchNorm1d(17)).to(dtype)


@pytest.mark.parametrize("kind", SERVED)
def test_attention_like_that_of_vision_transformers_is_served_exactly(kind):
    torch.manual_seed(0)
    model = model_with(SERVED[kind]()).eval()
    original = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), original.parameters(), strict=True):
            other.copy_(parameter.normal_())
    if "dropout" in kind:
        with pytest.warns(UserWarning, match="dropout of attention weights"):
            replace_attention(model, Softmax())
    else:
        replace_attention(model, Softmax())
    assert isinstance(model[1].attn.operator, Softmax)
    assert_close(model(X), original(X), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", REFUSED)
def test_attention_that_differs_is_refused_by_name_without_a_trace(kind):
    torch.manual_seed(0)
    attention = kind(qk_norm=True) if kind is SharedNorm else kind()
    model = model_with(attention).train(kind is not HeadsFirst)
    model[0](X).sum().backward()
    model[2].register_forward_hook(lambda *_: None)
    before, state = traces(model), copy.deepcopy(model.state_dict())
    message = rf"model: the attention at '1\.attn' \({kind.__name__}\) .*{REFUSED[kind]}"
    with pytest.raises(ValueError, match=message):
        replace_attention(model, "logistic", positions=torch.zeros(17, 12))
    assert traces(model) == before
    assert_close(model.state_dict(), state, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("kind", "name", "window"),
    [
        (LocalWindows, "window_size", 33), (LocalWindows, "block", 100), (Banded, "radius", 32),
        (Banded, "window_size", 512), (WholeWindows, "chunk_size", 65),
    ],
)  # fmt: skip
def test_windows_of_a_sequence_are_refused_whatever_they_are_called(kind, name, window):
    model = model_with(kind(name, window), torch.float32)
    told = "a window that may hold" if "window" in name and window > 32 else "relative error of"
    with pytest.raises(ValueError, match=rf"\({kind.__name__}\) .*{told}"):
        replace_attention(model, "softmax")


def test_a_window_that_the_class_tells_of_and_too_large_a_pair_are_refused():
    class OfClass(LocalWindows):
        reach = 90

    with pytest.raises(ValueError, match=r"\(2, 92, 12\) .* relative error"):
        replace_attention(model_with(OfClass("other", 90)), "softmax")
    attention = Plain()
    attention.window_size = (32, 64)
    with pytest.raises(ValueError, match=r"window_size=\(32, 64\), a window that may hold 2048"):
        replace_attention(model_with(attention), "softmax")


@pytest.mark.parametrize("name", ["temperature", "norm_table"])
def test_parameters_of_unknown_purpose_are_refused_at_any_value(name):
    for value in (torch.zeros(()), torch.ones(3)):
        attention = WithParameter(name, value)
        with pytest.raises(ValueError, match=rf"\(WithParameter\) has {name}: not served"):
            replace_attention(model_with(attention), "softmax")


def test_a_layer_that_is_refused_can_be_left_alone():
    model = model_with(HeadsFirst())
    replace_attention(model, lambda name: "twicing" if name == "0.attn" else None)
    assert type(model[1].attn) is HeadsFirst


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision_is_judged_by_its_rounding(dtype):
    torch.manual_seed(0)
    attention = VisionAttention(scale=1.0, qk_norm=True)
    assert replace_attention(model_with(attention, dtype), "softmax")
    with pytest.raises(ValueError, match=r"\(HeadsFirst\) .* relative error of"):
        replace_attention(model_with(HeadsFirst(), dtype), "softmax")
    with pytest.raises(ValueError, match=r"\(SharedNorm\) .* relative error of"):
        replace_attention(model_with(SharedNorm(qk_norm=True), dtype), "softmax")


@pytest.mark.parametrize("surroundings", [torch.inference_mode, lambda: torch.autocast("cpu")])
def test_what_surrounds_the_call_does_not_matter(surroundings):
    good, bad = model_with(Plain(), torch.float32), model_with(HeadsFirst(), torch.float32)
    with surroundings():
        replace_attention(good, "softmax")
        with pytest.raises(ValueError, match=r"\(HeadsFirst\) .* relative error"):
            replace_attention(bad, "softmax")


def test_hooks_stay_with_the_attention_and_do_not_see_the_trial():
    seen = []
    model = model_with(Plain())
    model[1].attn.qkv.register_forward_hook(lambda *_: seen.append("qkv"))
    handle = model[1].attn.register_forward_hook(lambda module, args, out: 2 * out)
    model.eval()
    expected = model(X)
    seen.clear()
    replace_attention(model, "softmax")
    assert not seen
    assert_close(model(X), expected, atol=1e-10, rtol=1e-10)
    assert seen == ["qkv"]
    handle.remove()
    assert (model(X) - expected).abs().max() > 1e-3


# nn.MultiheadAttention and our shell


class OwnForward(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class OwnShell(Attention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def patched():
    module = nn.MultiheadAttention(12, 3)
    plain = module.forward
    module.forward = types.MethodType(
        lambda self, q, k, v, **options: plain(q, k, 2 * v, **options), module
    )
    return module


def weight_norm():
    module = nn.MultiheadAttention(12, 3)
    return nn.utils.parametrizations.weight_norm(module, "in_proj_weight")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MultiheadAttention(12, 3, add_bias_kv=True), "has add_bias_kv=True"),
        (lambda: nn.MultiheadAttention(12, 3, add_zero_attn=True), "has add_zero_attn=True"),
        (lambda: OwnForward(12, 3), "has a forward of its own"),
        (lambda: OwnShell(12, 3, operator=Softmax()), "is of a class of its own"),
        (patched, "relative error of"),
        (weight_norm, r"has parametrizations\.in_proj_weight\.original0"),
    ],
)
def test_multihead_attention_that_differs_is_refused_by_name_without_a_trace(make, message):
    model = nn.Sequential(Block(), make())
    before = traces(model)
    name = type(model[1]).__name__
    with pytest.raises(ValueError, match=rf"attention at '1' \({name}\) .*{message}.*: not served"):
        replace_attention(model, "softmax")
    assert traces(model) == before


def test_multihead_attention_of_lower_precision_is_served():
    model = nn.Sequential(nn.MultiheadAttention(12, 3, kdim=5, vdim=9, dtype=torch.float16))
    assert isinstance(replace_attention(model, "softmax")[0].operator, Softmax)


@pytest.mark.parametrize("part", ["qkv", "proj"])
def test_what_changes_with_each_pass_is_said_to(part):
    """Spectral normalisation iterates in training; weight normalisation does not."""
    for wrap, refused in (
        (parametrizations.spectral_norm, True),
        (parametrizations.weight_norm, False),
    ):
        attention = Plain()
        setattr(attention, part, wrap(getattr(attention, part)))
        model = model_with(attention, torch.float32)
        if not refused:
            replace_attention(model, Softmax())
            continue
        with pytest.raises(ValueError, match="changes its output with each forward pass in train"):
            replace_attention(model, Softmax())
