"""The self-expressive network (CL-11)."""

import pytest
import torch
from scipy.sparse import csr_array
from torch.testing import assert_close

from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.unrolled import SelfExpressiveNetwork
from twinsolve.unrolled.self_expression import self_expressive_network as module

from .draws import tokens


def network(in_features=5, *, width=8, threshold=0.05, seed=0, **settings):
    torch.manual_seed(seed)
    return SelfExpressiveNetwork(
        in_features, hidden_features=(16,), width=width, threshold=threshold,
        dtype=torch.float64, **settings,
    )  # fmt: skip


def dense(layer, queries, keys=None):
    """The whole matrix, with gradients."""
    Q, K = layer.query(queries), layer.key(queries if keys is None else keys)
    products, b = Q @ K.T, layer.threshold()
    C = torch.where(products.abs() > b, products - b * products.sign(), 0) / layer.width
    return C if keys is not None else C * (1 - torch.eye(len(Q), dtype=C.dtype))


def dense_objective(layer, X):
    C, r = dense(layer, X), layer.l1_ratio
    penalty = r * C.abs().sum(1) + (1 - r) / 2 * C.square().sum(1)
    return layer.gamma / 2 * (X - C @ X).square().sum(1) + penalty


@pytest.fixture(params=[1024, 7])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
def test_blocks_give_what_the_whole_matrix_gives():
    layer, X, Y = network(), tokens(23, 5), tokens(9, 5, seed=1)
    for queries, keys in ((X, None), (Y, X)):
        C = dense(layer, queries, keys).detach()
        found = layer.coefficients(queries, keys)
        assert isinstance(found, csr_array)
        assert_close(found.toarray(), C.numpy(), atol=1e-15, rtol=0)
        assert found.nnz == int((C != 0).sum()) < C.numel()
        points = X if keys is None else keys
        assert_close(layer(queries, keys), C @ points, atol=1e-14, rtol=0)
    assert_close(layer.objective(X), dense_objective(layer, X), atol=0, rtol=1e-13)


@pytest.mark.usefixtures("block")
def test_gradients_of_the_streamed_loss():
    layer, X, rows = network(), tokens(17, 5), torch.tensor([3, 0, 16, 8])
    layer.loss(X, rows).backward()
    found = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    dense_objective(layer, X)[rows].mean().backward()
    for grad, parameter in zip(found, layer.parameters(), strict=True):
        assert (parameter.grad != 0).any()
        assert_close(grad, parameter.grad, atol=1e-12, rtol=1e-12)


@pytest.mark.usefixtures("block")
def test_a_token_is_never_used_for_itself():
    layer, X = network(), tokens(23, 5)
    assert (layer.coefficients(X).diagonal() == 0).all()
    assert (layer.coefficients(X, X).diagonal() != 0).any()
    rows = torch.tensor([20, 2, 2])
    assert_close(layer.objective(X, rows), layer.objective(X)[rows], atol=0, rtol=1e-13)


def test_rows_may_be_a_mask_or_count_from_the_end():
    layer, X = network(), tokens(12, 5)
    all_rows = layer.objective(X)
    mask = torch.arange(12) % 3 == 1
    assert_close(layer.objective(X, mask), all_rows[mask], atol=0, rtol=1e-13)
    assert_close(layer.objective(X, torch.tensor([-1])), all_rows[-1:], atol=0, rtol=1e-13)
    with pytest.raises(IndexError):
        layer.objective(X, torch.tensor([12]))


def test_memory_is_that_of_blocks(monkeypatch):
    """No n x n matrix is kept for the backward pass, nor the activations of all keys."""
    monkeypatch.setattr(module, "_BLOCK", 20)
    n, layer, kept = 400, network(width=4), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        layer.loss(tokens(n, 5), torch.arange(40))
    assert max(kept) <= n * 5


def test_loss_is_the_elastic_net_scaled_cl11_cl2():
    layer, X = network(gamma=50.0, l1_ratio=0.7), tokens(20, 5)
    C = layer.coefficients(X)
    expected = 25.0 * lasso_objective(X, X, C, lam=2 / 50.0, l1_ratio=0.7)
    assert_close(layer.objective(X).detach().numpy(), expected, atol=0, rtol=1e-13)
    assert float(layer.loss(X).detach()) == pytest.approx(expected.mean())


def test_no_tokens_and_one_token():
    layer = network()
    assert layer(tokens(0, 5)).shape == (0, 5)
    assert layer.coefficients(tokens(0, 5)).shape == (0, 0)
    assert layer.coefficients(tokens(3, 5), tokens(0, 5)).shape == (3, 0)
    assert (layer(tokens(1, 5)) == 0).all()
    x = tokens(1, 5)
    assert_close(layer.objective(x)[0], 100 * x.square().sum(), atol=1e-12, rtol=0)
    assert layer.objective(tokens(4, 5), torch.arange(0)).shape == (0,)
