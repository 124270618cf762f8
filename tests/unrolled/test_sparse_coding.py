import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista, sparse_code, sparse_self_expression
from twinsolve.unrolled import SparseCoding
from twinsolve.unrolled.sparse_coding import safe_step


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n_iter", [0, 1, 2, 5, 10, 50])
@pytest.mark.parametrize("zero_diagonal", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_same_iterates_as_ista(n_iter, zero_diagonal, nonnegative):
    q, k = tokens(9, 5), tokens(9, 5, seed=1)
    layer = SparseCoding(
        0.4, n_iter=n_iter, zero_diagonal=zero_diagonal, nonnegative=nonnegative
    ).double()
    expected = ista(
        q,
        k,
        lam=float(layer.lam()),
        n_iter=n_iter,
        zero_diagonal=zero_diagonal,
        nonnegative=nonnegative,
    )
    assert_close(layer.matrix(q, k).numpy(), expected.coef, atol=1e-13, rtol=0)


def test_converges_to_the_solved_codes():
    x = tokens(12, 6)
    layer = SparseCoding(0.5, n_iter=20_000, zero_diagonal=True).double()
    solved = sparse_self_expression(x, lam=float(layer.lam()), tol=1e-12).coef.toarray()
    assert_close(layer.matrix(x, x).numpy(), solved, atol=1e-6, rtol=0)


def test_masked_keys_are_absent_from_each_rows_problem():
    q, k = tokens(6, 4), tokens(8, 4, seed=1)
    mask = torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) < 0.6
    layer = SparseCoding(0.3, n_iter=50).double()
    C = layer.matrix(q, k, mask=mask)
    assert (C[~mask] == 0).all()
    for i in range(6):
        alone = ista(q[i : i + 1], k[mask[i]], lam=float(layer.lam()), n_iter=50)
        assert_close(C[i : i + 1, mask[i]].numpy(), alone.coef, atol=1e-12, rtol=0)


def test_causal_codes_solve_the_prefix_problem_of_each_token():
    x = tokens(8, 4)
    layer = SparseCoding(0.3, n_iter=5000, zero_diagonal=True).double()
    C = layer.matrix(x, x, is_causal=True).numpy()
    assert (np.triu(C) == 0).all()
    for i in range(1, 8):
        solved = sparse_code(x[i : i + 1], x[:i], lam=float(layer.lam()), tol=1e-12)
        assert_close(C[i : i + 1, :i], solved.coef.toarray(), atol=1e-5, rtol=0)


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


@pytest.mark.parametrize("scale", [1e-12, 1e10])
@pytest.mark.parametrize("per_row", [False, True])
def test_safe_step_neither_overflows_nor_underflows(scale, per_row):
    k = tokens(6, 3)
    visible = torch.ones(6, 6, dtype=torch.bool).tril() if per_row else None
    expected = safe_step(k, visible) / scale**2
    assert_close(safe_step((scale * k).float(), visible), expected, rtol=1e-5, atol=0)
    assert safe_step(torch.full((2, 2), torch.nan)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_iterates_in_float32(dtype):
    q = tokens(256, 64)
    layer = SparseCoding(1.0, n_iter=20)
    rounded = q.to(dtype)
    for mask in (None, torch.rand(256, 256, generator=torch.Generator().manual_seed(0)) < 0.9):
        found = layer(rounded, rounded, rounded, mask=mask)
        assert found.dtype == dtype
        exact = layer(*(rounded.double(),) * 3, mask=mask)
        # Codes are rounded once and 256 products summed: eps times the size of their sum.
        assert (found.double() - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()


def test_safe_step_is_differentiable_at_equal_singular_values():
    """The spectral norm is not, which is why it is not used."""
    k = torch.eye(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(safe_step, (k,))


def test_zero_keys_and_queries_give_zero_codes_with_finite_gradients():
    q, k = tokens(5, 3), torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    C = SparseCoding(0.3).double().matrix(q, k)
    assert (C == 0).all()
    C.sum().backward()
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lam": 0.0}, "lam: must be finite and > 0"),
        ({"lam": 1.0, "n_iter": 2.5}, "n_iter: must be a whole number >= 0"),
        ({"lam": 1.0, "num_heads": 0}, "num_heads: must be a whole number"),
        ({"lam": 1.0, "n_iter": -1}, "n_iter: must be a whole number >= 0"),
        ({"lam": 1.0, "relative_step": -1.0}, "relative_step: must be finite and > 0"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        SparseCoding(**arguments)
