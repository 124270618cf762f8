"""Elliptical attention: the estimated metric, what it sees, and a given one."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import Context, Elliptical, Softmax

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


def test_a_given_metric_scales_the_queries():
    q, k, v = qkv()
    metric = torch.rand(3, 6, dtype=torch.float64)
    rows = metric[:, None]
    expected = Softmax()(q * rows, k, v)
    layer = Elliptical(metric)
    assert_close(layer(q, k, v), expected, atol=1e-13, rtol=0)
    assert_close(layer.matrix(q, k) @ v, expected, atol=1e-12, rtol=0)
    assert_close(Elliptical(metric.tolist())(q, k, v), expected, atol=1e-13, rtol=0)
    exported = torch.export.export(layer, (q, k, v)).module()
    assert_close(exported(q, k, v), expected, atol=1e-12, rtol=0)
    assert "metric of shape" in repr(layer)


def test_metrics_and_values_that_do_not_fit_are_named():
    q, k, v = qkv()
    for shape in ((5,), (2, 6)):
        with pytest.raises(ValueError, match="metric: must be of shape"):
            Elliptical(torch.ones(shape))(q, k, v)
    for name in ("values", "previous_values"):
        for shape, message in (((2, 3, 8, 6), "must have as many"), ((2, 3, 9, 5), "must be of 9")):
            context = values()._replace(**{name: tokens(*shape)})
            with pytest.raises(ValueError, match=rf"context\.{name}: {message}"):
                Elliptical()(q, k, v, context=context)
