"""Penalties in units of the one that makes a row zero, and parameters of each iteration."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import twinsolve
from twinsolve.solvers import ista
from twinsolve.solvers.sparse_coding import lam_max
from twinsolve.unrolled import LowRank, Ridge, Solved, SparseCoding
from twinsolve.unrolled.sparse_coding import safe_step

SETTINGS = {
    "plain": {},
    "self": {"zero_diagonal": True},
    "nonnegative": {"nonnegative": True},
    "support": {"step": "support"},
}


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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


@pytest.mark.parametrize("name", SETTINGS)
def test_relative_penalties_are_shares_of_the_solvers_lam_max(name):
    q, k = tokens(9, 5), tokens(9, 5, seed=1)
    settings = SETTINGS[name]
    layer = SparseCoding(0.2, relative=True, **settings)
    diagonal = settings.get("zero_diagonal", False)
    lam = 0.2 * lam_max(q, k, zero_diagonal=diagonal)
    expected = ista(q, k, lam=lam, n_iter=5, **settings).coef
    assert 0 < np.mean(expected != 0) < 1
    assert_close(layer.matrix(q, k).numpy(), expected, atol=1e-13, rtol=0)
    values = torch.eye(9, dtype=torch.float64)
    assert_close(layer(q, k, values).numpy(), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_only_keys_that_a_row_may_use_count(causal):
    x = tokens(8, 4)
    mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.7
    layer = SparseCoding(0.2, relative=True, zero_diagonal=True)
    C = layer.matrix(x, x, mask=mask, is_causal=causal)
    visible = mask.tril() if causal else mask
    seen = visible & ~torch.eye(8, dtype=torch.bool)
    assert (C[~seen] == 0).all()
    for i in range(8):
        if not seen[i].any():
            continue
        row, keys, step = x[i : i + 1], x[seen[i]], float(safe_step(x[visible[i]]))
        alone = ista(row, keys, lam=0.2 * lam_max(row, keys), n_iter=5, step=step)
        assert_close(C[i, seen[i]].numpy(), alone.coef[0], atol=1e-13, rtol=0)


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


@pytest.mark.parametrize(("name", "causal"), [("self", True), ("support", False)])
def test_gradients_through_lam_max_are_those_of_finite_differences(name, causal):
    q, k, v = (tokens(6, 3, seed=seed).requires_grad_() for seed in range(3))
    layer = SparseCoding(0.2, relative=True, n_iter=3, learnable=True, **SETTINGS[name]).double()
    assert torch.autograd.gradcheck(
        lambda q, k, v, *_: layer(q, k, v, is_causal=causal), (q, k, v, *layer.parameters())
    )


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


def test_every_iteration_has_a_gradient_of_its_own():
    q, k, v = (tokens(2, 6, 3, seed=seed).requires_grad_() for seed in range(3))
    layer = per_iteration()
    parameters = tuple(layer.parameters())
    assert torch.autograd.gradcheck(lambda *x: layer(*x[:3]), (q, k, v, *parameters))
    gradients = torch.autograd.grad(layer(q, k, v).square().sum(), parameters)
    assert all((g != 0).all() for g in gradients)


def test_no_single_problem_stands_behind_parameters_of_each_iteration():
    with pytest.raises(ValueError, match="base: must have one set of parameters"):
        Solved(per_iteration())


CLOSED = {
    "ridge": (Ridge, 1.0, {}),
    "ridge without the diagonal": (Ridge, 1.0, {"zero_diagonal": True}),
    "low rank": (LowRank, 2.0, {}),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("width", [4, 12])
def test_penalties_of_closed_forms_are_relative_to_the_largest_singular_value(name, width):
    """Of the visible keys, with more of them than features and with fewer."""
    make, unit, settings = CLOSED[name]
    q, k, v = tokens(9, width), tokens(9, width, seed=1), tokens(9, 3, seed=2)
    mask = (torch.arange(9) < 7)[None]
    lam = 0.1 * unit * float(torch.linalg.matrix_norm(k[:7], 2)) ** 2
    layer, same = make(0.1, relative=True, **settings), make(lam, **settings)
    expected = same(q, k, v, mask=mask)
    assert_close(layer(q, k, v, mask=mask), expected, atol=1e-12, rtol=0)
    assert_close(layer.matrix(q, k, mask=mask) @ v, expected, atol=1e-12, rtol=0)
    for size in (1e-6, 1e6):
        assert_close(layer(size * q, size * k, v, mask=mask), expected, atol=1e-11, rtol=0)
    assert (layer(0 * q, 0 * k, v) == 0).all()
