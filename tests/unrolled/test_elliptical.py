"""Elliptical attention: the estimated metric, what it sees, and a given one."""

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


def test_the_first_layer_is_plain_attention():
    q, k, v = qkv()
    assert_close(Elliptical()(q, k, v, context=Context(values=v)), Softmax()(q, k, v))
    still = Context(values=v, previous_values=v)
    assert_close(Elliptical()(q, k, v, context=still), Softmax()(q, k, v))


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
