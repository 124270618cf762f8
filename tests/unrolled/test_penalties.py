"""Penalties in units of the one that makes a row zero, and parameters of each iteration."""

import pytest
import torch
from torch.testing import assert_close

import twinsolve
from twinsolve.unrolled import Solved, SparseCoding

from .draws import tokens


def per_iteration(**settings):
    """Penalties and steps that differ from iteration to iteration."""
    layer = SparseCoding(
        0.2, relative=True, n_iter=4, learnable=True, per_iteration=True, num_heads=2, **settings
    ).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.sub_(torch.rand(parameter.shape, generator=generator))
    return layer


def test_one_is_the_penalty_that_makes_every_row_zero_at_any_size():
    q, k = tokens(3, 7, 4), tokens(3, 7, 4, seed=1)
    sizes = torch.tensor([1e-9, 1.0, 1e6], dtype=torch.float64)[:, None, None]
    assert (SparseCoding(1.01, relative=True).matrix(sizes * q, k) == 0).all()
    C = SparseCoding(0.99, relative=True).matrix(sizes * q, k)
    assert ((C != 0).sum(dim=-1) >= 1).all()
    same = SparseCoding(0.99, relative=True).matrix(q, k)
    assert_close(C / sizes, same, atol=1e-12, rtol=0)


@pytest.mark.parametrize("step", ["safe", "support"])
def test_zero_queries_and_rows_without_keys_have_zero_codes_and_finite_gradients(step):
    q, k = tokens(5, 3), tokens(6, 3, seed=1)
    q[1] = 0
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2] = False
    inputs = [x.requires_grad_() for x in (q, k, tokens(6, 2, seed=2))]
    layer = SparseCoding(0.3, relative=True, step=step)
    C = layer.matrix(q, k, mask=mask)
    assert (C[1:3] == 0).all()
    assert (C[[0, 3, 4]] != 0).any(dim=-1).all()
    out = layer(*inputs, mask=mask)
    assert (out[1:3] == 0).all()
    (out.square().sum() + C.sum()).backward()
    assert all(x.grad.isfinite().all() for x in inputs)


def test_parameters_of_each_iteration_are_those_of_all_at_first():
    q, k, v = tokens(2, 7, 4), tokens(2, 7, 4, seed=1), tokens(2, 7, 4, seed=2)
    settings = {"relative": True, "n_iter": 3, "num_heads": 2, "learnable": True}
    layer = SparseCoding(0.2, per_iteration=True, **settings).double()
    same = SparseCoding(0.2, **settings).double()
    assert [p.shape for p in layer.parameters()] == 6 * [(2, 1, 1)]
    assert_close(layer(q, k, v), same(q, k, v), atol=1e-13, rtol=0)
    moved = per_iteration()
    layer.load_state_dict(per_iteration().state_dict(), strict=False)
    with pytest.raises(ValueError, match="num_heads: SparseCoding has 2, but q has 3"):
        layer(tokens(3, 4, 4), tokens(3, 4, 4), tokens(3, 4, 4))
    moved.n_iter = 6  # the last parameters serve the two that follow
    report = twinsolve.check(moved, q[0].numpy())
    assert report.correct
    before = moved(q, k, v)
    moved.reset_parameters()
    assert {round(p().mean().item(), 12) for p in moved.lam} == {0.2}
    assert (moved(q, k, v) - before).abs().max() > 1e-3


def test_no_single_problem_stands_behind_parameters_of_each_iteration():
    with pytest.raises(ValueError, match="base: must have one set of parameters"):
        Solved(per_iteration())
