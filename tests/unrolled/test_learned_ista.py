"""The LISTA family (EQUATIONS LS-2, SE-15L)."""

import copy

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import LISTA
from twinsolve.unrolled.sparse_coding import analytic_step, analytic_weights

from .draws import moved, tokens

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


def test_analytic_step_is_the_longest_stable_one():
    D = tokens(9, 4)
    radius = torch.linalg.eigvals(analytic_weights(D) @ D.mT).abs().max()
    assert analytic_step(D) == pytest.approx(1 / float(radius))


@pytest.mark.parametrize("parametrization", FAMILY)
def test_fewer_iterations_stop_early_and_more_repeat_the_last(parametrization):
    Y, D = tokens(5, 4), tokens(9, 4, seed=1)
    layer = moved(LISTA(D, 2, LAM, parametrization))
    deep = moved(LISTA(D, 5, LAM, parametrization), seed=1)
    with torch.no_grad():
        for name, parameter in deep.named_parameters():
            first, *rest = name.split(".")
            if rest:  # step.t.log, lam.t.log
                t = min(int(rest[0]), 1)
                parameter.copy_(layer.get_parameter(f"{first}.{t}.log"))
            else:
                own = layer.get_parameter(name)
                stacked = own.ndim == 3
                parameter.copy_(own[[0, 1, 1, 1, 1]] if stacked else own)
    expected = {K: with_n_iter(deep, K)(Y) for K in (0, 1, 2, 5)}
    assert (expected[0] == 0).all()
    assert (expected[5] - expected[2]).abs().max() > 1e-3
    for K, codes in expected.items():
        assert_close(with_n_iter(layer, K)(Y), codes, atol=1e-14, rtol=0)


def with_n_iter(layer, n_iter):
    changed = copy.deepcopy(layer)
    changed.n_iter = n_iter
    return changed


@pytest.mark.parametrize("parametrization", FAMILY)
def test_gradcheck_of_signals_and_all_parameters(parametrization):
    layer = moved(LISTA(tokens(5, 3), 3, LAM, parametrization), scale=0.05)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(Y, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (Y,))

    leaves = [p.detach().clone().requires_grad_() for p in parameters]
    assert torch.autograd.gradcheck(run, (tokens(4, 3, seed=1).requires_grad_(), *leaves))


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


def test_adaptive_weights_are_used_the_way_round_they_are_stated():
    layer, Y = LISTA(tokens(9, 4), 2, 0.2, "adaptive"), tokens(5, 4)
    with torch.no_grad():
        layer.input_weight.copy_(tokens(4, 4))
        layer.gram_weight.copy_(tokens(4, 4).triu())
        D, U, V = layer.dictionary, layer.input_weight, layer.gram_weight
        step = layer.step[0]() / torch.linalg.matrix_norm(D.T @ D)
        C = torch.zeros(5, 9, dtype=torch.float64)
        for _ in range(2):
            C = C + step * (Y @ U - C @ D @ V.T @ V) @ D.T
            C = torch.nn.functional.softshrink(C, 0.1 * float(step))
        assert_close(layer(Y), C, atol=1e-12, rtol=0)
