import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.solvers import locally_linear_weights
from twinsolve.unrolled import LocallyLinear
from twinsolve.unrolled.locally_linear import affine_weights

from .draws import tokens


def test_equally_distant_keys_are_taken_in_order_on_both_sides():
    grid = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).double()
    for n_neighbors in (1, 3, 7):
        expected = locally_linear_weights(grid, n_neighbors=n_neighbors).toarray()
        found = LocallyLinear(n_neighbors, zero_diagonal=True).matrix(grid, grid)
        assert_close(found.numpy(), expected, atol=1e-10, rtol=0)
    between = LocallyLinear(2).matrix(grid[:1] + 0.5, grid)[0]
    assert between.nonzero().ravel().tolist() == [0, 1]


def test_weights_for_absent_keys_are_zero():
    """With fewer keys than neighbours, whether they are hidden or not there at all."""
    q, k = tokens(4, 3), tokens(5, 3, seed=1)
    weights, indices = affine_weights(q, k, n_neighbors=7, reg=1e-3)
    expected = affine_weights(q, k, n_neighbors=5, reg=1e-3)[0]
    assert_close(weights, F.pad(expected, (0, 2)), atol=1e-12, rtol=0)
    assert (indices < 5).all()


def test_far_from_the_origin_the_weights_stay():
    x = tokens(60, 3)
    C = LocallyLinear(5, zero_diagonal=True).matrix(x, x)
    moved = LocallyLinear(5, zero_diagonal=True).matrix(x + 1e8, x + 1e8)
    # Coordinates are rounded to 1e-8 there, and local systems have condition up to 5 / reg.
    assert_close(moved, C, atol=1e-4, rtol=0)


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_short_sequences_use_the_keys_that_there_are(zero_diagonal):
    """As many as there are, as `TopK` does, and the regularisation is that of these."""
    for n in (2, 5, 9):
        x = tokens(n, 3)
        layer = LocallyLinear(16, zero_diagonal=zero_diagonal)
        q = x if zero_diagonal else tokens(n, 3, seed=1)
        expected = locally_linear_weights(
            x, n_neighbors=n - zero_diagonal, queries=None if zero_diagonal else q
        ).toarray()
        assert_close(layer.matrix(q, x).numpy(), expected, atol=1e-10, rtol=0)
        assert_close(layer(q, x, x).numpy(), expected @ x.numpy(), atol=1e-10, rtol=0)
    alone = LocallyLinear(16, zero_diagonal=zero_diagonal)(tokens(1, 3), tokens(1, 3), tokens(1, 3))
    assert_close(alone, torch.zeros_like(alone) if zero_diagonal else tokens(1, 3), atol=0, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_the_matrix(is_causal):
    """Their own backward pass, in blocks and with absent neighbours, and the second derivative."""
    q, k, v, g = (tokens(150, 4, seed=seed)[None].requires_grad_() for seed in range(4))
    layer = LocallyLinear(6)
    outputs = (
        layer(q, k, v, is_causal=is_causal),
        layer.matrix(q, k, is_causal=is_causal) @ v,
    )
    firsts, seconds = [], []
    for out in outputs:
        first = torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
        twice = torch.autograd.grad(out, (q, k, v), g, create_graph=True)
        assert_close(first, tuple(x.detach() for x in twice), atol=1e-9, rtol=1e-9)
        firsts.append(first)
        seconds.append(torch.autograd.grad(sum(x.square().sum() for x in twice), (q, k, v, g)))
    assert_close(*firsts, atol=1e-9, rtol=1e-9)
    assert_close(*seconds, atol=1e-5, rtol=1e-7)


def test_keys_that_tie_are_taken_in_order_by_the_layer_too():
    """Products do not see which of equal keys is the first: they leave such rows to distances."""
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(12, 3, generator=generator).double().repeat(3, 1)
    v = torch.eye(36, dtype=k.dtype)
    layer = LocallyLinear(2)
    assert_close(layer(k, k, v), layer.matrix(k, k), atol=1e-12, rtol=0)
    assert layer(k, k, v)[0].nonzero().ravel().tolist() == [0, 12]
