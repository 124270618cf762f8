"""The LISTA family (EQUATIONS LS-2, SE-15L)."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import LISTA
from twinsolve.unrolled.sparse_coding import analytic_step, analytic_weights

from .draws import tokens

FAMILY = ["lista", "coupled", "step", "alista", "adaptive"]
LAM = 0.4


@pytest.mark.parametrize("shape", [(9, 4), (3, 5)])
def test_analytic_weights_are_optimal_and_feasible(shape):
    """KKT: ``w_i D^T D`` is a multiple of d_i."""
    D = tokens(*shape) * torch.arange(1, shape[0] + 1)[:, None]
    W = analytic_weights(D)
    assert_close((W * D).sum(1), torch.ones(shape[0], dtype=D.dtype), atol=1e-11, rtol=0)
    gradient = W @ D.mT @ D
    multiplier = (gradient * D).sum(1, keepdim=True) / D.square().sum(1, keepdim=True)
    assert_close(gradient, multiplier * D, atol=1e-9, rtol=0)


def test_analytic_weights_of_degenerate_dictionaries():
    D = tokens(6, 4)
    D[2] = 0
    D[5] = D[0]
    D[:, 3] = D[:, 1]
    W = analytic_weights(D)
    assert (W[2] == 0).all()
    assert_close(W[5], W[0], atol=1e-12, rtol=0)
    kept = [0, 1, 3, 4, 5]
    assert_close((W * D).sum(1)[kept], torch.ones(5, dtype=D.dtype), atol=1e-11, rtol=0)
    assert analytic_step(torch.zeros(2, 3)) == 1


@pytest.mark.parametrize("parametrization", FAMILY)
def test_degenerate_inputs(parametrization):
    D = tokens(9, 4)
    assert LISTA(D, 3, LAM, parametrization)(tokens(0, 4)).shape == (0, 9)
    assert LISTA(D, 3, LAM, parametrization)(tokens(2, 3, 5, 4)).shape == (2, 3, 5, 9)
    zero = LISTA(D, 3, LAM, parametrization)(torch.zeros(2, 4, dtype=D.dtype))
    assert (zero == 0).all()
    layer = LISTA(torch.zeros(3, 4), 3, LAM, parametrization)
    codes = layer(torch.ones(2, 4))
    assert (codes == 0).all()
    codes.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
