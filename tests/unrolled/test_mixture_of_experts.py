"""Sparse mixture of experts as a sparse code in a dictionary (IF-32, IF-33)."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import SparseMixtureOfExperts

from .draws import tokens

D, M, HIDDEN = 4, 5, 3


def mixture(top_k=2, *, seed=0, **settings):
    layer = SparseMixtureOfExperts(D, M, HIDDEN, top_k, dtype=torch.float64, **settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(generator=generator)
    return layer


@pytest.mark.parametrize("renormalize", [False, True])
def test_is_a_sparse_code_in_a_dictionary_of_width_m_hidden_if33_e0o(renormalize):
    """The dictionary is d x (M k'); the printed d x (M k) does not even have the atoms."""
    layer, x = mixture(2, renormalize=renormalize), tokens(50, D)
    Z, dictionary = layer.codes(x), layer.dictionary()
    assert dictionary.shape == (D, M * HIDDEN)
    assert_close(Z @ dictionary.T, layer(x), atol=1e-13, rtol=0)
    assert (Z >= 0).all()
    assert int((Z != 0).sum(-1).max()) <= 2 * HIDDEN
    printed = M * 2
    assert (Z[:, :printed] @ dictionary[:, :printed].T - layer(x)).abs().max() > 1e-2


def test_only_the_chosen_experts_are_computed(monkeypatch):
    """Products of hidden rows: tokens x top_k, not tokens x experts."""
    layer, rows = mixture(2), []
    relu = torch.relu
    monkeypatch.setattr(torch, "relu", lambda z: rows.append(len(z)) or relu(z))
    layer(tokens(30, D))
    assert sum(rows) == 60


def test_an_expert_that_is_never_chosen_gets_no_gradient_and_hurts_nobody():
    layer, x = mixture(2), tokens(20, D).abs()
    with torch.no_grad():
        layer.router[3] = -100
    assert (layer.route(x)[1] != 3).all()
    layer(x).square().sum().backward()
    assert (layer.analysis.grad[3] == 0).all()
    assert (layer.synthesis.grad[3] == 0).all()
    assert (layer.analysis.grad[0] != 0).any()
    assert torch.isfinite(layer.router.grad).all()


@pytest.mark.parametrize("shape", [(3, 0, D), (D,)])
def test_no_tokens_and_one_token(shape):
    layer, x = mixture(2), tokens(*shape)
    assert layer(x).shape == shape
    assert layer.codes(x).shape == (*shape[:-1], M * HIDDEN)
    assert layer.balance_loss(x).isfinite()
    layer(x).sum().backward()


def test_trains_under_autocast():
    layer, x = mixture(M).float(), tokens(30, D).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, codes = layer(x), layer.codes(x)
    found.sum().backward()
    assert_close(found, layer(x), rtol=0, atol=0.02 * float(found.detach().abs().max()))
    assert_close(codes, layer.codes(x), rtol=0, atol=0.02 * float(codes.detach().abs().max()))


def test_balance_loss_is_one_where_all_are_used_alike_and_m_where_one_is():
    layer, x = mixture(1), torch.eye(D, dtype=torch.float64).repeat(3, 1)
    with torch.no_grad():
        layer.router.copy_(100 * torch.eye(M, D))
    assert float(layer.balance_loss(x).detach()) == pytest.approx(M / D)
    with torch.no_grad():
        layer.router.zero_()
        layer.router[2] = 100
    assert float(layer.balance_loss(x).detach()) == pytest.approx(M)
    x = tokens(500, D)
    crowded = mixture(2)
    loss = crowded.balance_loss(x)
    share = torch.bincount(crowded.route(x)[1].flatten(), minlength=M) / 1000
    expected = M * (share * (x @ crowded.router.T).softmax(-1).mean(0)).sum()
    assert_close(loss, expected)
    loss.backward()
    assert (crowded.router.grad != 0).any()
