"""Elliptical attention: the estimated metric, what it sees, and a given one."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import anisotropic_nonlocal_means
from twinsolve.unrolled import Attention, Context, Elliptical, Softmax
from twinsolve.unrolled.kernel_smoothing import elliptical_weights

from .fused_kernel import EXPLICIT, FUSED, dispatched_attention

SHAPE = (2, 3, 9, 6)


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator, dtype=dtype)


def qkv():
    return tokens(seed=0), tokens(seed=1), tokens(seed=2)


def values():
    return Context(values=tokens(seed=3), previous_values=tokens(seed=4))


def metric_over(keys):
    """``mean |v - v'|`` over the keys, divided by its maximum, written out for each head."""
    changes = (values().values - values().previous_values)[..., keys, :].abs().mean(dim=-2)
    return changes / changes.max(dim=-1, keepdim=True).values


def test_the_first_layer_is_plain_attention():
    q, k, v = qkv()
    assert_close(Elliptical()(q, k, v, context=Context(values=v)), Softmax()(q, k, v))
    still = Context(values=v, previous_values=v)
    assert_close(Elliptical()(q, k, v, context=still), Softmax()(q, k, v))


def test_the_metric_is_estimated_from_consecutive_values():
    q, k, v = qkv()
    M = metric_over(slice(None))[..., None, :]
    expected = torch.softmax((q * M) @ k.mT / 6**0.5, dim=-1) @ v
    assert_close(Elliptical()(q, k, v, context=values()), expected, atol=1e-13, rtol=0)
    # The step between layers cancels.
    halves = Context(values=values().values / 2, previous_values=values().previous_values / 2)
    assert_close(Elliptical()(q, k, v, context=halves), expected, atol=1e-13, rtol=0)
    assert (Softmax()(q, k, v) - expected).abs().max() > 1e-2


def test_each_query_has_the_metric_of_the_keys_that_it_sees():
    q, k, v = qkv()
    pairs = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.6
    padding = (torch.arange(9) < 5)[None]
    triangle = torch.ones(9, 9, dtype=torch.bool).tril()
    cases = {
        "causal": ({"is_causal": True}, triangle),
        "pairs": ({"mask": pairs}, pairs),
        "padding": ({"mask": padding}, padding.expand(9, 9)),
        "both": ({"mask": padding, "is_causal": True}, triangle & padding),
    }
    for arguments, visible in cases.values():
        found = Elliptical()(q, k, v, context=values(), **arguments)
        for i in range(9):
            seen, row = visible[i], slice(i, i + 1)
            scaled = q[..., row, :] * metric_over(seen)[..., None, :]
            A = torch.softmax(scaled @ k[..., seen, :].mT / 6**0.5, dim=-1)
            assert_close(found[..., row, :], A @ v[..., seen, :], atol=1e-12, rtol=0)


def test_a_mean_over_all_tokens_would_leak_the_future():
    """As in published code: the metric of all tokens in causal rows."""
    q, k, v = qkv()
    changed = values()  # of new tensors each time
    changed.values[..., -1, 0] += 100
    ours, theirs = [], []
    for context in (values(), changed):
        ours.append(Elliptical()(q, k, v, is_causal=True, context=context))
        M = elliptical_weights(context.values, context.previous_values)
        theirs.append(Softmax()(q * M, k, v, is_causal=True))
    assert_close(ours[0][..., :-1, :], ours[1][..., :-1, :], atol=0, rtol=0)
    assert (theirs[0] - theirs[1])[..., :-1, :].abs().max() > 1e-2


def test_shells_hand_values_from_layer_to_layer():
    torch.manual_seed(0)
    first, second = (Attention(18, 3, operator=Elliptical()).double() for _ in range(2))
    x, context = tokens(2, 9, 18), Context()
    y, _, context = first(x, x, x, context=context)
    found, weights, _ = second(y, y, y, context=context, average_attn_weights=False)
    q, k, v = second.project(y, y, y)
    M = elliptical_weights(v, first.project(x, x, x)[2])
    A = torch.softmax((q * M) @ k.mT / 6**0.5, dim=-1)
    assert_close(weights, A, atol=1e-12, rtol=0)
    expected = second.out_proj((A @ v).transpose(1, 2).flatten(2))
    assert_close(found, expected, atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="context: Elliptical needs values"):
        second(y, y, y)


@pytest.mark.parametrize("per_head", [False, True])
def test_a_given_metric_scales_the_queries(per_head):
    q, k, v = qkv()
    metric = torch.rand(*((3, 6) if per_head else (6,)), dtype=torch.float64)
    rows = metric[:, None] if per_head else metric
    expected = Softmax()(q * rows, k, v)
    layer = Elliptical(metric)
    assert_close(layer(q, k, v), expected, atol=1e-13, rtol=0)
    assert_close(layer.matrix(q, k) @ v, expected, atol=1e-12, rtol=0)
    assert_close(Elliptical(metric.tolist())(q, k, v), expected, atol=1e-13, rtol=0)
    exported = torch.export.export(layer, (q, k, v)).module()
    assert_close(exported(q, k, v), expected, atol=1e-12, rtol=0)
    assert "metric of shape" in repr(layer)


def test_on_keys_of_equal_norm_in_the_metric_it_is_anisotropic_nonlocal_means_if31():
    m = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    x, v = tokens(9, 6), tokens(9, 2, seed=1)
    x = x / ((x**2) @ m)[:, None] ** 0.5
    h = (2 * 6**0.5) ** 0.5
    expected = anisotropic_nonlocal_means(x.numpy(), v.numpy(), metric=m.numpy(), h=h)
    assert_close(Elliptical(m)(x, x, v).numpy(), expected, atol=1e-12, rtol=0)


def test_metrics_and_values_that_do_not_fit_are_named():
    q, k, v = qkv()
    for shape in ((5,), (2, 6)):
        with pytest.raises(ValueError, match="metric: has shape"):
            Elliptical(torch.ones(shape))(q, k, v)
    for name in ("values", "previous_values"):
        for shape, message in (((2, 3, 8, 6), "must have as many"), ((2, 3, 9, 5), "must be of 9")):
            context = values()._replace(**{name: tokens(*shape)})
            with pytest.raises(ValueError, match=rf"context\.{name}: {message}"):
                Elliptical()(q, k, v, context=context)


@pytest.mark.parametrize("is_causal", [False, True])
def test_reaches_the_fused_kernel_forward_and_backward(is_causal):
    q = tokens(2, 3, 300, 16, dtype=torch.float32).requires_grad_()
    context = Context(values=torch.sin(q), previous_values=torch.cos(q))
    found = dispatched_attention(
        lambda: Elliptical()(q, q, q, is_causal=is_causal, context=context).sum().backward()
    )
    assert {FUSED, f"{FUSED}_backward"} <= found
    assert EXPLICIT not in found
