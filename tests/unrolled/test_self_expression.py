"""Self-expression: closed forms, unrolled ISTA (SE-15) and the network (CL-11)."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.unrolled import LowRank, Ridge, SelfExpressiveNetwork, UnrolledSelfExpression
from twinsolve.unrolled.self_expression import self_expressive_network as module

from .draws import moved, tokens
from .recording import saved_sizes


def with_singular_values(*values, n=9, seed=0):
    d = len(values)
    U, _ = torch.linalg.qr(tokens(n, d, seed=seed))
    R, _ = torch.linalg.qr(tokens(d, d, seed=seed + 1))
    return U * torch.tensor(values, dtype=torch.float64) @ R.mT


def test_tokens_are_left_out_to_the_last_bit():
    matrix = Ridge(0.3, zero_diagonal=True).matrix(tokens(12, 4), tokens(12, 4, seed=1))
    assert (matrix.diagonal() == 0).all()


@pytest.mark.parametrize("lam", [1e-8, 1e-4])
def test_ridge_is_accurate_in_float32_where_keys_are_dependent(lam):
    """Gram matrices formed in float32 would lose a penalty under its eps."""
    q, k = tokens(40, 8), with_singular_values(5, 4, 3, 2, 1, 0.5, 1e-3, 1e-4, n=40)
    q, k, v = (x.float() for x in (q @ k.mT @ k, k, tokens(40, 3)))
    exact = Ridge(lam)(q.double(), k.double(), v.double())
    assert (Ridge(lam)(q, k, v) - exact).abs().max() < 2e-4 * exact.abs().max()


def test_left_out_keys_of_nearly_full_leverage_keep_their_digits_in_float32():
    """1 - h is 1e-6 for an outlier: differences of float32 numbers would leave no digit."""
    x = torch.cat([1e3 * torch.eye(1, 6), torch.cat([torch.ones(30, 1), tokens(30, 5)], 1)])
    q, v = tokens(31, 6, seed=1), tokens(31, 2, seed=2)
    q, x, v = (t.float() for t in (q, x, v))
    layer = Ridge(1e-3, zero_diagonal=True)
    expected = layer.matrix(q.double(), x.double()) @ v.double()
    assert (layer(q, x, v).double() - expected).abs().max() < 1e-5


def test_left_out_keys_of_full_leverage_stay_finite():
    x = torch.cat([torch.eye(6), torch.zeros(1, 6)]).requires_grad_()
    with pytest.warns(UserWarning, match="alone in its direction"):
        out = Ridge(1e-12, zero_diagonal=True)(x, x, x)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    "values",
    [(2.0, 2.0, 2.0), (2.0, 2.0, 0.5, 0.5), (2.0, 2.0 + 1e-9, 0.3), (0.5, 0.5), (2.0, 0.0, 0.0)],
)
def test_low_rank_gradients_at_equal_singular_values(values):
    """Those of a singular value decomposition are infinite there."""
    k = with_singular_values(*values, n=6).requires_grad_()
    q = tokens(5, len(values), seed=3).requires_grad_()
    layer = LowRank(1.0, learnable=True).double()
    v = tokens(6, 2, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(layer, (q, k, v))
    assert torch.autograd.gradcheck(layer, (q.mT[:, :2].mT, k[:2], v[:2]))


def test_low_rank_gradient_at_the_threshold_is_finite():
    k = with_singular_values(2.0, 0.5**0.5, 0.5**0.5 * (1 + 1e-15)).requires_grad_()
    LowRank(1.0)(k, k, k).sum().backward()
    assert torch.isfinite(k.grad).all()
    assert k.grad.abs().max() < 100


LAM = 0.4


def unrolled(n_iter, lam=LAM, **settings):
    return UnrolledSelfExpression(n_iter, lam, dtype=torch.float64, **settings)


def test_relative_penalties_are_those_of_each_row():
    X, Y = tokens(12, 5), tokens(7, 5, seed=1)
    X[3] *= 10
    X[4] = 0
    longest = float(np.linalg.norm(X.T @ X) / np.linalg.norm(X, 2) ** 2)
    layer = unrolled(5, 0.1, relative=True, relative_step=longest)
    largest = lam_max(X, X, zero_diagonal=True)
    lam, step = 0.1 * np.where(largest > 0, largest, 1), 1 / np.linalg.norm(X, 2) ** 2
    C, codes = layer(X).detach(), layer(Y, X).detach()
    expected = ista(X, X, lam=lam, n_iter=5, step=step, zero_diagonal=True).coef
    assert_close(C.numpy(), expected, atol=1e-13, rtol=0)
    found = layer.objective(X, C)
    assert_close(found.numpy(), lasso_objective(X, X, C, lam=lam), atol=1e-11, rtol=0)
    found = layer.objective(Y, codes, X)
    expected = lasso_objective(Y, X, codes, lam=0.1 * lam_max(Y, X))
    assert_close(found.numpy(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("relative", [False, True])
def test_a_batch_of_the_keys_leaves_each_its_own_key_out(relative, monkeypatch):
    X, layer = tokens(23, 5), moved(unrolled(4, 0.1, relative=relative))
    monkeypatch.setattr("twinsolve.unrolled.attention.fused._QUERY_BLOCK", 3)
    own = torch.tensor([4, 0, 22, 7, 8])
    C = layer(X)
    codes = layer(X[own], X, own=own)
    assert_close(codes, C[own], atol=1e-14, rtol=0)
    objective = layer.objective(X, C)[own]
    assert_close(layer.objective(X[own], codes, X, own=own), objective, atol=1e-13, rtol=0)


def test_memory_of_the_backward_pass_is_the_coefficients_not_the_iterates(monkeypatch):
    monkeypatch.setattr("twinsolve.unrolled.attention.fused._QUERY_BLOCK", 20)
    X, layer = tokens(200, 4).requires_grad_(), unrolled(8)
    assert sum(saved_sizes(lambda: layer(X))) < 200 * 200


def test_degenerate_points():
    layer = unrolled(5)
    assert layer(tokens(0, 4)).shape == (0, 0)
    assert (layer(tokens(1, 4)) == 0).all()
    assert layer(tokens(3, 4), tokens(0, 4)).shape == (3, 0)
    X = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    C = layer(X)
    assert (C == 0).all()
    C.sum().backward()
    assert torch.isfinite(X.grad).all()
    same = layer(torch.ones(4, 3, dtype=torch.float64)).detach()
    expected = ista(np.ones((4, 3)), np.ones((4, 3)), lam=LAM, n_iter=5, zero_diagonal=True).coef
    assert_close(same.numpy(), expected, atol=1e-14, rtol=0)


def network(in_features=5, *, width=8, threshold=0.05, seed=0, **settings):
    torch.manual_seed(seed)
    return SelfExpressiveNetwork(
        in_features, hidden_features=(16,), width=width, threshold=threshold,
        dtype=torch.float64, **settings,
    )  # fmt: skip


@pytest.fixture(params=[1024, 7])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
def test_a_token_is_never_used_for_itself():
    layer, X = network(), tokens(23, 5)
    assert (layer.coefficients(X).diagonal() == 0).all()
    assert (layer.coefficients(X, X).diagonal() != 0).any()
    rows = torch.tensor([20, 2, 2])
    assert_close(layer.objective(X, rows), layer.objective(X)[rows], atol=0, rtol=1e-13)


def test_memory_is_that_of_blocks(monkeypatch):
    """No n x n matrix is kept for the backward pass, nor the activations of all keys."""
    monkeypatch.setattr(module, "_BLOCK", 20)
    n, layer = 400, network(width=4)
    kept = saved_sizes(lambda: layer.loss(tokens(n, 5), torch.arange(40)))
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


@pytest.mark.parametrize("n_keys", [3, 8])
def test_leave_one_out_ridge_says_where_a_key_is_alone_and_the_penalty_tiny(n_keys):
    k = torch.zeros(n_keys, 4, dtype=torch.float64)
    k[0, 0] = 1
    k[1:, 1:] = torch.randn(n_keys - 1, 3, generator=torch.Generator().manual_seed(0)).double()
    with pytest.warns(UserWarning, match="a key is alone in its direction"):
        Ridge(1e-12, zero_diagonal=True).double()(k, k, k)
    out = Ridge(1e-6, zero_diagonal=True).double()(k, k, k)  # a warning would be an error
    assert out[0].abs().max() < 1e-9
    Ridge(1e-12).double()(k, k, k)


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_a_ridge_below_rounding_is_said_and_one_below_the_matrix_is_refused(zero_diagonal):
    """Eight keys in three dimensions: the penalty alone keeps their system from being singular."""
    k = tokens(8, 3, seed=1) @ tokens(3, 8, seed=2)
    size = float(k.square().sum(dim=-1).max())
    Ridge(1e-8 * size, zero_diagonal=zero_diagonal).matrix(k[None], k[None])
    with pytest.warns(UserWarning, match="so small that rounding is a visible part"):
        Ridge(1e-13 * size, zero_diagonal=zero_diagonal).matrix(k[None], k[None])
    with pytest.raises(ValueError, match="lam: is below the rounding of the keys' products"):
        Ridge(1e-20 * size, zero_diagonal=zero_diagonal).matrix(k[None], k[None])
