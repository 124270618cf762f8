"""A shell has the projections that its operator reads, and no others."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import (
    Attention,
    AttnScale,
    Context,
    Logistic,
    Neutreno,
    Softmax,
    SpatialGaussian,
    Symmetric,
    replace_attention,
)

X = torch.randn(2, 10, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
READS = {
    "symmetric": (Symmetric, "kv"),
    "symmetric in a correction": (lambda: AttnScale(Symmetric()), "kv"),
    "symmetric neutreno": (lambda: Neutreno(Symmetric()), "kv"),
    "additive logits": (lambda: Logistic(4), "kv"),
    "graph attention": (lambda: Logistic(4, negative_slope=0.2), "qkv"),
    "positions alone": (lambda: SpatialGaussian(1.0), "v"),
    "softmax": (Softmax, "qkv"),
}


def shell(operator, **options):
    torch.manual_seed(0)
    layer = Attention(12, 3, operator=operator, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    return layer.double()


def attend(layer, query, key, value):
    return layer(query, key, value, need_weights=False, context=Context())[0]


@pytest.mark.parametrize("name", READS)
def test_the_output_is_that_of_all_three_projections(name):
    """Of a checkpoint that has them all, those that are not read change nothing."""
    (make, reads), bias = READS[name], name != "symmetric in a correction"
    layer = shell(make(), bias=bias)
    assert layer.in_proj_weight.shape == (12 * len(reads), 12)
    state = layer.state_dict()
    whole = shell(Softmax(), bias=bias)
    loaded = dict(state)
    for part in ("in_proj_weight", "in_proj_bias")[: 1 + bias]:
        loaded[part] = whole.state_dict()[part]
    given = dict(loaded)
    layer.load_state_dict(loaded)
    assert all(loaded[key] is given[key] for key in given)
    q, k, v = whole.project(X, X, X)
    expected = make().double()
    expected.load_state_dict(layer.operator.state_dict())
    out = expected(q, k, v, context=Context().enter(X, v))
    expected = layer.out_proj(out.transpose(1, 2).flatten(2))
    assert_close(attend(layer, X, X, X), expected, atol=1e-12, rtol=0)
    other, third = X.flip(0), 2 * X
    q, k, v = whole.project(X, other, third)
    again = layer.operator(q, k, v, context=Context().enter(X, v))
    expected = layer.out_proj(again.transpose(1, 2).flatten(2))
    assert_close(attend(layer, X, other, third), expected, atol=1e-12, rtol=0)


def test_queries_that_are_not_projected_give_their_number():
    layer = shell(Logistic(4))
    out, weights = layer(X[:, :4], X, X)
    assert out.shape == (2, 4, 12)
    assert weights.shape == (2, 4, 10)


def test_a_checkpoint_that_lacks_what_is_read_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for in_proj_weight"):
        shell(Softmax()).load_state_dict(shell(Symmetric()).state_dict())
    layer = shell(Symmetric())
    before = attend(layer, X, X, X)
    with pytest.raises(ValueError, match="operator: Softmax reads q, which the attention at 'a'"):
        replace_attention(nn.ModuleDict({"a": layer}), "softmax")
    assert_close(attend(layer, X, X, X), before, atol=0, rtol=0)


def test_a_foreign_model_keeps_projections_that_are_not_read():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    state = theirs.state_dict()
    layer = replace_attention(theirs, "symmetric")
    layer(X, X, X, need_weights=False)[0].sum().backward()
    assert layer.state_dict().keys() == state.keys()
    gradients = layer.in_proj_weight.grad.split(12)
    assert [bool((g != 0).any()) for g in gradients] == [False, True, True]
    ours = shell(Symmetric())
    ours.load_state_dict(state)
    assert_close(ours(X, X, X)[0], layer(X, X, X)[0], atol=1e-12, rtol=0)
