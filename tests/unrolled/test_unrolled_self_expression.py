"""Unrolled self-expression (SE-15)."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.solvers import ista
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.unrolled import UnrolledSelfExpression

from .draws import moved, tokens

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
    expected = ista(Y, X, lam=0.1 * lam_max(Y, X), n_iter=5, step=step).coef
    assert_close(codes.numpy(), expected, atol=1e-13, rtol=0)
    found = layer.objective(X, C)
    assert_close(found.numpy(), lasso_objective(X, X, C, lam=lam), atol=1e-11, rtol=0)
    found = layer.objective(Y, codes, X)
    expected = lasso_objective(Y, X, codes, lam=0.1 * lam_max(Y, X))
    assert_close(found.numpy(), expected, atol=1e-12, rtol=0)
    assert (unrolled(5, 1.0, relative=True)(X) == 0).all()
    assert (unrolled(5, 0.99, relative=True)(X) != 0).any(dim=1).sum() == 11


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


def test_acts_on_features():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(5, 8), nn.Tanh()).double()
    X, Y = tokens(12, 5), tokens(7, 5, seed=1)
    layer = unrolled(5, features=features)
    assert_close(layer(X), unrolled(5)(features(X)), atol=0, rtol=0)
    assert_close(layer(Y, X), unrolled(5)(features(Y), features(X)), atol=0, rtol=0)
    layer.objective(X, layer(X)).sum().backward()
    assert (features[0].weight.grad != 0).any()


def test_memory_of_the_backward_pass_is_the_coefficients_not_the_iterates(monkeypatch):
    monkeypatch.setattr("twinsolve.unrolled.attention.fused._QUERY_BLOCK", 20)
    X, layer = tokens(200, 4).requires_grad_(), unrolled(8)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        layer(X)
    assert sum(kept) < 200 * 200


def test_batches_and_state_dict_and_reset():
    X = tokens(2, 3, 9, 4)
    layer = unrolled(3)
    first = layer(X)
    assert first.shape == (2, 3, 9, 9)
    assert_close(first[1, 2], layer(X[1, 2]), atol=1e-14, rtol=0)
    assert_close(layer(X, X[0, 0])[1, 2], layer(X[1, 2], X[0, 0]), atol=1e-14, rtol=0)
    moved(layer)
    other = unrolled(3, 2.0)
    other.load_state_dict(layer.state_dict())
    assert_close(other(X), layer(X), atol=0, rtol=0)
    layer.reset_parameters()
    assert_close(layer(X), first, atol=1e-15, rtol=0)


def test_fewer_iterations_stop_early_and_more_repeat_the_last():
    X, layer = tokens(9, 4), moved(unrolled(2))
    deep = unrolled(4)
    for t in range(4):
        for name in ("step", "lam"):
            own = getattr(layer, name)[min(t, 1)]
            getattr(deep, name)[t].load_state_dict(own.state_dict())
    for K in (0, 1, 2, 4):
        changed = copy.deepcopy(layer)
        changed.n_iter = deep.n_iter = K
        assert_close(changed(X), deep(X), atol=0, rtol=0)
    assert (layer(X) - deep(X)).abs().max() > 1e-3


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
