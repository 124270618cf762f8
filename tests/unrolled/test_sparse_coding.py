"""Sparse codes as attention: steps, iterations, blocks and relative penalties."""

import pytest
import torch
from torch.testing import assert_close

import twinsolve
from twinsolve.unrolled import Solved, SparseCoding
from twinsolve.unrolled.sparse_coding import safe_step

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
    assert_close(layer(q, k, v), same(q, k, v), atol=1e-13, rtol=0)
    layer.lam[-1].log.data += 1
    layer.n_iter = 6  # the last parameters serve the three that follow
    assert twinsolve.check(layer, q[0].numpy())


def test_no_single_problem_stands_behind_parameters_of_each_iteration():
    with pytest.raises(ValueError, match="base: must have one set of parameters"):
        Solved(SparseCoding(0.2, learnable=True, per_iteration=True))
