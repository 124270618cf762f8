"""Sparse codes as attention: steps, iterations, blocks and relative penalties."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import twinsolve
from twinsolve.solvers import fista, ista
from twinsolve.solvers.sparse_coding.penalty import Penalty
from twinsolve.unrolled import Solved, SparseCoding
from twinsolve.unrolled.sparse_coding import (
    SparsePenalty,
    accelerated,
    proximal_map,
    repeated,
    safe_step,
)

from .draws import tokens
from .recording import saved_sizes


def test_safe_step_is_per_row_over_visible_keys():
    k = tokens(7, 3)
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[0] = False
    steps = safe_step(k, mask)
    assert steps[0] == 1
    for i in range(1, 5):
        seen = k[mask[i]]
        assert_close(steps[i, 0], 1 / torch.linalg.matrix_norm(seen.T @ seen))
        assert steps[i, 0] <= 1 / torch.linalg.matrix_norm(seen, 2) ** 2
    assert_close(safe_step(k, mask[1:2])[0, 0], steps[1, 0])


@pytest.mark.parametrize(("scale", "per_row"), [(1e-12, True), (1e10, False)])
def test_safe_step_neither_overflows_nor_underflows(scale, per_row):
    k = tokens(6, 3)
    visible = torch.ones(6, 6, dtype=torch.bool).tril() if per_row else None
    expected = safe_step(k, visible) / scale**2
    assert_close(safe_step((scale * k).float(), visible), expected, rtol=1e-5, atol=0)
    assert safe_step(torch.full((2, 2), torch.nan)).isnan().all()


def test_safe_step_is_differentiable_at_equal_singular_values():
    """The spectral norm is not, which is why it is not used."""
    k = torch.eye(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(safe_step, (k,))


def test_keys_so_short_that_the_step_overflows_float32_give_zero_codes():
    scale = 1e-35
    q, k = tokens(5, 3).float(), (scale * tokens(6, 3, seed=1)).float().requires_grad_()
    for arguments in ({}, {"mask": torch.ones(5, 6, dtype=torch.bool).tril()}):
        assert (SparseCoding(0.3).matrix(q, k, **arguments) == 0).all()
        out = SparseCoding(0.3)(q, k, k, **arguments)
        assert (out == 0).all()
        out.sum().backward()
        assert torch.isfinite(k.grad).all()


def test_memory_of_the_backward_pass_is_one_block_of_codes():
    """Saved tensors stay O(n d): the codes of a block are recomputed, not kept."""
    n, d = 600, 4
    q = tokens(n, d).requires_grad_()
    layer = SparseCoding(0.3, n_iter=4).double()
    assert max(saved_sizes(lambda: layer(q, q, q))) < n * n / 10


def gradients(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    return out, *torch.autograd.grad(out.square().sum(), inputs)


CASES = {
    "plain": ({}, {}),
    "self": ({"zero_diagonal": True}, {}),
    "nonnegative self": ({"nonnegative": True, "zero_diagonal": True}, {}),
    "causal": ({}, {"is_causal": True}),
    "causal self": ({"zero_diagonal": True}, {"is_causal": True}),
    "padding": ({"zero_diagonal": True}, {"mask": torch.arange(11)[None] > 2}),
    "padding and causal": ({}, {"mask": torch.arange(11)[None] > 2, "is_causal": True}),
    "pairs": ({}, {"mask": torch.rand(11, 11, generator=torch.Generator().manual_seed(1)) < 0.6}),
    "relative causal self": ({"zero_diagonal": True, "relative": True}, {"is_causal": True}),
    "relative pairs": (
        {"relative": True},
        {"mask": torch.rand(11, 11, generator=torch.Generator().manual_seed(1)) < 0.6},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("entries", [25, 10**6])
def test_blocks_and_their_gradients_are_those_of_the_literal_iteration(case, entries, monkeypatch):
    """One row, two rows, one head or all heads at a time; parameters a head, masks a sample."""
    monkeypatch.setattr("twinsolve.unrolled.sparse_coding.code_blocks._CPU_ENTRIES", entries)
    settings, arguments = CASES[case]
    if "mask" in arguments:
        mask = arguments["mask"]
        arguments = arguments | {"mask": torch.stack([mask, mask.flip(-1)])[:, None]}
    lam = 0.2 if settings.get("relative") else 0.8
    layer = SparseCoding(lam, num_heads=3, learnable=True, **settings).double()
    inputs = tokens(2, 3, 11, 4), tokens(2, 3, 11, 4, seed=1), tokens(2, 3, 11, 2, seed=2)
    lam, step = layer.lam.log, layer.relative_step.log

    def run(function, *x):
        found = gradients(function, *x)
        loss = function(*x).square().sum()
        return *found, *torch.autograd.grad(loss, (lam, step))

    found = run(lambda q, k, v: layer(q, k, v, **arguments), *inputs)
    expected = run(lambda q, k, v: layer.matrix(q, k, **arguments) @ v, *inputs)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, atol=1e-11, rtol=1e-11)
    with torch.no_grad():
        assert_close(layer(*inputs, **arguments), expected[0], atol=1e-12, rtol=0)


def test_causal_safe_steps_are_those_of_each_prefix():
    k = tokens(2, 600, 3)
    expected = safe_step(k, torch.ones(600, 600, dtype=torch.bool).tril())
    assert_close(safe_step(k, None, True), expected, rtol=1e-12, atol=0)


def test_inference_keeps_no_residuals():
    """Ten thousand iterations of training would keep ten thousand copies of the queries."""
    x = tokens(8, 4).requires_grad_()
    assert max(saved_sizes(lambda: SparseCoding(0.3, n_iter=50)(x, x, x))) == 50 * 8 * 4
    with torch.no_grad():
        assert not saved_sizes(lambda: SparseCoding(0.3, n_iter=10_000)(x, x, x))


def test_support_adaptive_gradients_are_finite_at_equal_singular_values_and_zero_keys():
    for k in (torch.eye(5), torch.zeros(5, 5), torch.ones(5, 5)):
        k = k.double().requires_grad_()
        SparseCoding(0.1, step="support")(k, k, k).sum().backward()
        assert torch.isfinite(k.grad).all()


FLAGS = pytest.mark.parametrize("nonnegative", [False, True])
DIAGONAL = pytest.mark.parametrize("zero_diagonal", [False, True])
STEPS = [0.02, 0.03, 0.01, 0.025]


def own(n):
    return torch.eye(n, dtype=torch.bool)


@pytest.mark.parametrize(
    ("nonnegative", "zero_diagonal", "l1_ratio", "step"),
    [
        (False, True, 1.0, 0.4),
        (True, False, 0.3, tokens(6, 1).abs() + 0.1),
        (False, False, 0.3, 0.4),
    ],
)
def test_prox_is_that_of_the_solvers(nonnegative, zero_diagonal, l1_ratio, step):
    z, lam = tokens(6, 6), tokens(6, 1, seed=1).abs()
    hidden = own(6) if zero_diagonal else None
    found = SparsePenalty(lam, l1_ratio, nonnegative, hidden).prox(z, step)
    rows = np.arange(6) if zero_diagonal else None
    expected = Penalty(lam[:, 0].numpy(), l1_ratio, nonnegative, rows)
    step = step if isinstance(step, float) else step.numpy()
    assert_close(found.numpy(), expected.prox(z.numpy(), step), atol=1e-15, rtol=0)


@FLAGS
@DIAGONAL
def test_iterates_are_those_of_the_solvers(nonnegative, zero_diagonal):
    q, k = tokens(9, 5), tokens(9, 5, seed=1)
    move = proximal_map(
        q, k, SparsePenalty(0.4, 1.0, nonnegative, own(9) if zero_diagonal else None)
    )
    zero = torch.zeros(9, 9, dtype=torch.float64)
    flags = {"lam": 0.4, "nonnegative": nonnegative, "zero_diagonal": zero_diagonal}
    expected = ista(q, k, n_iter=4, step=STEPS, **flags).coef
    assert_close(repeated(move, zero, STEPS).numpy(), expected, atol=1e-14, rtol=0)
    expected = fista(q, k, n_iter=4, step=0.02, **flags).coef
    assert_close(accelerated(move, zero, [0.02] * 4).numpy(), expected, atol=1e-14, rtol=0)


@FLAGS
@DIAGONAL
def test_equal_steps_of_each_iteration_are_those_of_the_kernel(nonnegative, zero_diagonal):
    """The kernel serves one step for all iterations, the literal iteration one for each."""
    settings = {"n_iter": 4, "learnable": True, "nonnegative": nonnegative}
    settings |= {"zero_diagonal": zero_diagonal, "dtype": torch.float64}
    fused, apart = (SparseCoding(0.5, per_iteration=each, **settings) for each in (False, True))
    inputs = [tokens(8, 4, seed=i).requires_grad_() for i in range(3)]
    found, expected = fused(*inputs), apart(*inputs)
    assert_close(found, expected, atol=1e-13, rtol=0)
    by_kernel, by_iteration = (
        torch.autograd.grad(out.square().sum(), [*inputs, *layer.parameters()])
        for out, layer in ((found, fused), (expected, apart))
    )
    for a, b in zip(by_kernel[:3], by_iteration[:3], strict=True):
        assert_close(a, b, atol=1e-11, rtol=0)
    lams, steps = by_iteration[3:7], by_iteration[7:]
    assert_close(by_kernel[3:], (sum(lams), sum(steps)), atol=1e-11, rtol=0)


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
