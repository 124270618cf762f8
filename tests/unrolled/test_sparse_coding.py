import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import SparseCoding
from twinsolve.unrolled.sparse_coding import safe_step

from .draws import tokens


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
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        layer(q, q, q)
    assert max(kept) < n * n / 10


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
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        SparseCoding(0.3, n_iter=50)(x, x, x)
        assert max(kept) == 50 * 8 * 4
        kept.clear()
        with torch.no_grad():
            SparseCoding(0.3, n_iter=10_000)(x, x, x)
    assert not kept


def test_support_adaptive_gradients_are_finite_at_equal_singular_values_and_zero_keys():
    for k in (torch.eye(5), torch.zeros(5, 5), torch.ones(5, 5)):
        k = k.double().requires_grad_()
        SparseCoding(0.1, step="support")(k, k, k).sum().backward()
        assert torch.isfinite(k.grad).all()
