"""Sinkhorn balancing of attention."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import sinkhorn
from twinsolve.solvers.kernel_smoothing import marginal_violation
from twinsolve.unrolled import (
    Bilateral,
    Context,
    Gaussian,
    Operator,
    Sinkhorn,
    Softmax,
    Twicing,
)

SHAPE = (2, 3, 9, 6)


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator, dtype=dtype)


def qkv():
    return tokens(seed=0), tokens(seed=1), tokens(seed=2)


@pytest.mark.parametrize("n_iter", [1, 3, 10])
def test_rows_are_exact_and_columns_come_nearer(n_iter):
    q, k, _ = qkv()
    P = Sinkhorn(Softmax(1.0), n_iter=n_iter).matrix(q, k)
    assert_close(P.sum(-1), torch.ones(2, 3, 9).double(), atol=1e-13, rtol=0)
    errors = [
        (Sinkhorn(Softmax(1.0), n_iter=n).matrix(q, k).sum(-2) - 1).abs().max()
        for n in (n_iter - 1, n_iter, n_iter + 10)
    ]
    assert errors[0] > errors[1] > 1.5 * errors[2]
    assert errors[1] > 1e-6


def test_the_limit_is_the_nearest_doubly_stochastic_matrix():
    q, k, _ = qkv()
    P = Sinkhorn(Softmax(), n_iter=200).matrix(q, k)
    logits = q @ k.mT / 6**0.5
    for b in range(2):
        for h in range(3):
            expected = sinkhorn(logits[b, h].numpy(), tol=1e-13)
            assert_close(P[b, h].numpy(), expected, atol=1e-10, rtol=0)
            assert marginal_violation(P[b, h].numpy()) < 1e-10


def test_visible_tokens_are_balanced_among_themselves():
    q, k, _ = qkv()
    visible = torch.arange(9) < 6
    P = Sinkhorn(Softmax(), n_iter=200).matrix(q, k, mask=visible[None])
    alone = Sinkhorn(Softmax(), n_iter=200).matrix(q[..., :6, :], k[..., :6, :])
    assert_close(P[..., :6, :6], alone, atol=1e-12, rtol=0)
    assert (P[..., 6:] == 0).all()
    assert_close(P[..., 6:, :].sum(-1), torch.ones(2, 3, 3).double(), atol=1e-12, rtol=0)


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


def test_balances_operators_with_positions_and_stands_inside_corrections():
    q, k, v = qkv()
    p = tokens(3, 9, 6, seed=5)
    context = Context(projected_positions=(p, p))
    layer = Sinkhorn(Bilateral(), n_iter=3)
    P = Bilateral().matrix(q, k, context=context)
    for _ in range(3):
        P = P / P.sum(-2, keepdim=True)
        P = P / P.sum(-1, keepdim=True)
    assert_close(layer(q, k, v, context=context), P @ v, atol=1e-12, rtol=0)
    twicing = Twicing(layer)(q, k, v, context=context)
    assert_close(twicing, (2 * P - P @ P) @ v, atol=1e-12, rtol=0)
