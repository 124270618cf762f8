"""Sinkhorn balancing of attention."""

import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    Gaussian,
    Operator,
    Sinkhorn,
)

SHAPE = (2, 3, 9, 6)


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator, dtype=dtype)


def qkv():
    return tokens(seed=0), tokens(seed=1), tokens(seed=2)


def test_entries_that_underflow_are_balanced_still():
    """A key far from all queries: in float32 its column is zero, and cannot be divided by."""
    q, k = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [20.0]])
    assert (Gaussian(1.0).matrix(q, k)[:, 2] == 0).all()
    expected = Gaussian(1.0).matrix(q.double(), k.double())
    for _ in range(5):
        expected = expected / expected.sum(-2, keepdim=True)
        expected = expected / expected.sum(-1, keepdim=True)
    found = Sinkhorn(Gaussian(1.0), n_iter=5).matrix(q, k)
    # Logits of 200 in float32, four times rounded.
    assert_close(found.double(), expected, atol=1e-4, rtol=0)


def test_zeros_of_the_base_remain_and_give_no_nan():
    class Band(Operator):
        nonnegative = True

        def coefficients(self, call):
            q, k = call.q, call.k
            near = (torch.arange(9)[:, None] - torch.arange(9)).abs() < 2
            return torch.exp(q @ k.mT / 6).masked_fill(~near, 0)

    q, k, v = (x.requires_grad_() for x in qkv())
    layer = Sinkhorn(Band(), n_iter=2000)
    P = layer.matrix(q, k)
    assert ((Band().matrix(q, k) == 0) == (P == 0)).all()
    assert (P.sum(-2) - 1).abs().max() < 1e-6
    layer.n_iter = 5
    layer(q, k, v).square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))
