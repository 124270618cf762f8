"""Bilateral attention, ALiBi, Tupe and stored biases."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from twinsolve.unrolled import (
    ALiBi,
    Attention,
    Biased,
    Bilateral,
    ClassAttentionTransformer,
    Context,
    Softmax,
    Tupe,
    VisionTransformer,
    WindowedTransformer,
)
from twinsolve.unrolled.kernel_smoothing import store_positions

from .draws import tokens
from .recording import BLOCKED, EXPLICIT, FUSED, dispatched_attention

SHAPE = (2, 3, 9, 6)


def positions(seed=7, *, shape=SHAPE[1:]):
    return Context(
        projected_positions=(tokens(*shape, seed=seed), tokens(*shape, seed=seed + 1)),
        positions=tokens(shape[-2], 18, seed=seed),
    )


def qkv():
    return tuple(tokens(*SHAPE, seed=seed) for seed in range(3))


def test_distances_are_the_bilateral_filter_if13_e0b():
    y, p = tokens(*SHAPE), tokens(*SHAPE[1:], seed=1)
    context = Context(projected_positions=(p, p))
    near, alike = ((x[..., :, None, :] - x[..., None, :, :]).square().sum(dim=-1) for x in (p, y))
    A = torch.softmax(-near / (2 * 0.8**2) - alike / (2 * 1.3**2), dim=-1)
    expected = A @ y
    layer = Bilateral(0.8, 1.3, distances=True)
    assert_close(layer(y, y, y, context=context), expected, atol=1e-12, rtol=0)
    printed = Bilateral(0.8 / 2**0.5, 1.3 / 2**0.5, distances=True)(y, y, y, context=context)
    assert (printed - expected).abs().max() > 1e-2


def test_positions_may_lack_the_batch_and_must_fit():
    q, k, v = qkv()
    p_q, p_k = tokens(*SHAPE, seed=3)[:1], tokens(*SHAPE, seed=4)[:1]
    short = Bilateral()(q, k, v, context=Context(projected_positions=(p_q[0], p_k[0])))
    full = Context(projected_positions=(p_q.expand(SHAPE), p_k.expand(SHAPE)))
    assert_close(short, Bilateral()(q, k, v, context=full), atol=0, rtol=0)
    for shape in ((8, 6), (4, 9, 6)):
        wrong = Context(projected_positions=(tokens(*shape), p_k))
        with pytest.raises(ValueError, match=r"context\.projected_positions: shape .* does not"):
            Bilateral()(q, k, v, context=wrong)
    with pytest.raises(ValueError, match=r"context\.positions, projected to 2 heads"):
        Tupe(18, 2, head_dim=6).double()(q, k, v, context=Context(positions=tokens(9, 18)))


@pytest.mark.parametrize(("distances", "per_head"), [(False, True), (True, False)])
def test_stored_position_logits_change_nothing(distances, per_head):
    q, k, v = qkv()
    given = {"num_heads": 3, "learnable": True} if per_head else {}
    layer = Bilateral(0.8, 1.3, distances=distances, dtype=torch.float64, **given)
    context = positions()
    stored = layer.precompute(context)
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.7
    additive = torch.zeros(9, 9).masked_fill(~mask, -torch.inf).double() + 0.3 * tokens(9, 9)
    for masks in ({}, {"is_causal": True}, {"mask": mask}, {"mask": additive}):
        expected = layer(q, k, v, context=context, **masks)
        assert_close(stored(q, k, v, **masks), expected, atol=1e-12, rtol=0)
        assert_close(stored.matrix(q, k, **masks) @ v, expected, atol=1e-12, rtol=0)
    assert not stored.bias.requires_grad
    with pytest.raises(ValueError, match="bias: is for 9 queries and 9 keys, got 9 queries and 8"):
        stored(q, k[..., :8, :], v[..., :8, :])
    with pytest.raises(ValueError, match="context: must hold projected positions"):
        layer.precompute(Context())
    with pytest.raises(ValueError, match="context: must hold projected positions"):
        Bilateral(math.inf).precompute(context)


@pytest.mark.parametrize("make", [VisionTransformer, ClassAttentionTransformer])
def test_a_model_that_stores_positions_costs_what_softmax_does(make):
    """Table V of the paper; without, a layer projects positions on every call."""
    torch.manual_seed(0)
    sizes = (8, 2, 1, 5, 12, 2, 3)
    models = {
        name: make(*sizes, operator=name).double().eval() for name in ("bilateral", "softmax")
    }
    images = tokens(2, 1, 8, 8)
    models["stored"] = store_positions(models["bilateral"], images)
    assert_close(models["stored"](images), models["bilateral"](images), atol=1e-12, rtol=0)
    flops = {}
    for name, model in models.items():
        counter = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), counter:
            model.requires_grad_(False)(images)
        flops[name] = counter.get_total_flops()
    assert flops["stored"] == flops["softmax"] < flops["bilateral"]
    operators = [x.operator for x in models["stored"].modules() if isinstance(x, Attention)]
    assert sum(isinstance(x, Biased) for x in operators) == 2
    assert not any(isinstance(x, Biased) for x in models["bilateral"].modules())


class Shared(torch.nn.Module):
    """Two layers that share an operator, of which the second may run again."""

    def __init__(self, n_calls=1):
        super().__init__()
        operator, self.n_calls = Bilateral(), n_calls
        self.first, self.second = (Attention(18, 3, operator=operator) for _ in range(2))

    def forward(self, x):
        for call, layer in enumerate((self.first, *[self.second] * self.n_calls)):
            positions = tokens(*x.shape[1:], seed=call).to(x.dtype)
            context = Context(positions=positions)
            x = layer(x, x, x, need_weights=False, context=context)[0]
        return x


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Shared(), tokens(2, 9, 18)),
        (Shared(n_calls=2), tokens(2, 9, 18)),
        (WindowedTransformer(8, 1, 1, 5, 8, (2,), (2,), operator="bilateral"), tokens(2, 1, 8, 8)),
    ],
)
def test_stored_positions_are_the_layers_own_or_stay_as_they_are(model, inputs):
    model = model.double().eval()
    stored = store_positions(model, inputs)
    assert_close(stored(inputs), model(inputs), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_causal_alibi_keeps_its_digits_in_half_precision(dtype):
    """One bf16 feature rounds m j to 8 bits: 512 next to 514 at the end of 1000 tokens."""
    n, width = 1000, 32
    q, k, v = (tokens(1, 4, n, width, seed=s).to(dtype) for s in range(3))
    layer = ALiBi(4)
    expected = layer(*(x.double() for x in (q, k, v)), is_causal=True)
    error = (layer(q, k, v, is_causal=True).double() - expected).abs().max()
    index = torch.arange(n)[:, None] * layer.slopes_for(q) * width**0.5
    naive = Softmax(width**-0.5)(
        torch.cat([q, q.new_ones(1, 4, n, 1)], dim=-1),
        torch.cat([k, index.to(dtype)[None]], dim=-1),
        v,
        is_causal=True,
    )
    # Inputs and outputs of up to 4 have 2^-7 of rounding in bf16, as plain attention has.
    assert error < 0.02
    if dtype == torch.bfloat16:
        assert (naive.double() - expected).abs().max() > 5 * error


def long(*shape, seed=0):
    return tokens(*shape, seed=seed, dtype=torch.float32).requires_grad_()


def test_stored_logits_reach_kernels_without_the_matrix():
    """The centre of distances has no common place under a stored bias: these go by blocks."""
    q, p = long(2, 3, 300, 16), long(3, 300, 16)
    for distances, kernel in ((False, FUSED), (True, BLOCKED)):
        layer = Bilateral(2.0, 3.0, distances=distances, learnable=True)
        stored = layer.precompute(Context(projected_positions=(p, p)))
        found = dispatched_attention(lambda stored=stored: stored(q, q, q).sum().backward())
        assert kernel in found
        assert EXPLICIT not in found


def test_a_bias_that_needs_a_gradient_leaves_the_fused_kernel():
    """So `Biased` stores constants; learned slopes leave it only in two-sided ALiBi."""
    q = long(2, 3, 300, 16)
    bias = torch.zeros(300, 300, requires_grad=True)
    assert EXPLICIT in dispatched_attention(lambda: Softmax()(q, q, q, mask=bias))
    assert EXPLICIT not in dispatched_attention(lambda: Biased(Softmax(), bias)(q, q, q))
    layer = ALiBi(3, learnable=True)
    assert EXPLICIT not in dispatched_attention(lambda: layer(q, q, q, is_causal=True))
    assert EXPLICIT in dispatched_attention(lambda: layer(q, q, q))
    with torch.no_grad():
        assert EXPLICIT not in dispatched_attention(lambda: layer(q, q, q))
