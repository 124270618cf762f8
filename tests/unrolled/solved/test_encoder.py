"""A dictionary trained through its codes: what is in use, and what is kept by sample."""

import copy

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from twinsolve.unrolled import solved_lasso
from twinsolve.unrolled.solved import LassoEncoder, encoder

from ..draws import tokens

X, A = tokens(7, 6), 3 * tokens(9, 6, seed=1)


@pytest.mark.parametrize("unit_atoms", [True, False])
def test_codes_are_those_of_the_atoms_in_use(unit_atoms):
    layer = LassoEncoder(A, 0.5, ridge=0.2, nonnegative=True, unit_atoms=unit_atoms)
    assert (layer.atoms().norm(dim=1) - (1 if unit_atoms else A.norm(dim=1))).abs().max() < 1e-14
    expected = solved_lasso(X, layer.atoms(), lam=0.5, ridge=0.2, nonnegative=True)
    assert (layer(X) - expected).abs().max() < 1e-14
    assert layer.record.gap.shape == (7,)


def test_gradients_reach_dictionary_and_penalty():
    layer = LassoEncoder(A, 0.5)

    def codes(dictionary, log_lam):
        return functional_call(layer, {"dictionary": dictionary, "lam.log": log_lam}, (X,))

    leaves = [x.detach().clone().requires_grad_() for x in (layer.dictionary, layer.lam.log)]
    assert gradcheck(codes, leaves)


def test_codes_are_kept_by_sample_and_only_change_the_start(monkeypatch):
    starts = []

    def spy(*arguments, start, **settings):
        starts.append(start)
        return solved_lasso(*arguments, start=start, **settings)

    monkeypatch.setattr(encoder, "solved_lasso", spy)
    layer = LassoEncoder(A, 0.5)
    first = layer(X, torch.arange(7)).detach()
    order = torch.tensor([[5, 2], [8, 0]])
    signals = torch.stack([X[[5, 2]], X[[1, 0]]])
    again = layer(signals, order).detach()
    assert not starts[0].any()
    assert torch.equal(starts[1][0], first[[5, 2]])
    assert torch.equal(starts[1][1, 1], first[0])
    assert not starts[1][1, 0].any()  # of a name that is new
    assert (again.flatten(0, 1) - first[[5, 2, 1, 0]]).abs().max() < 1e-13
    assert layer(X) is not None
    assert starts[2] is None
    low = copy.deepcopy(layer).float()
    assert low(X.float(), torch.arange(7)).dtype == torch.float32


def test_names_that_do_not_fit_the_signals_are_refused():
    with pytest.raises(ValueError, match=r"samples: must have shape \(7,\), .* got \(6,\)"):
        LassoEncoder(A, 0.5)(X, torch.arange(6))
