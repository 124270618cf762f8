"""Entmax: its limits, its certificate, gradients in logits and order, and the operator."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.kernel_smoothing import entmax as solve
from twinsolve.solvers.kernel_smoothing import entmax_gap
from twinsolve.unrolled import Attention, LanguageModel, Softmax, Sparsemax
from twinsolve.unrolled.kernel_smoothing import Entmax, entmax_weights, project_on_simplex

from .draws import tokens

ALPHAS = (1.0, 1 + 1e-12, 1.0001, 1.1, 1.5, 1.9, 2.0)
Z = 2 * tokens(4, 37)


def largest(x):
    return float(x.detach().abs().max())


@pytest.mark.parametrize("alpha", ALPHAS)
def test_is_the_solver_and_has_no_gap_en_1(alpha):
    """Newton steps end 16 eps from a sum of one; those of float32 times the slope of 1 or so."""
    for z in (Z, 30 * Z, Z[:, :1], 1e-3 * Z, Z + 1e6):
        exact = solve(z.numpy(), alpha=alpha)
        assert np.abs(entmax_weights(z, alpha).numpy() - exact).max() < 1e-14
        assert entmax_gap(z.numpy(), entmax_weights(z, alpha).numpy(), alpha=alpha).max() < 1e-13
        single = z.float()
        exact = solve(single.double().numpy(), alpha=float(torch.tensor(alpha)))
        assert np.abs(entmax_weights(single, alpha).numpy() - exact).max() < 3e-6


def test_ends_at_softmax_and_at_sparsemax():
    assert_close(entmax_weights(Z, 1.0), Z.softmax(dim=-1))
    assert_close(entmax_weights(Z, 2.0), project_on_simplex(Z))
    sorted_half = (Z / 2).sort(dim=-1, descending=True).values
    for row, half in zip(Z, sorted_half, strict=True):
        for r in range(len(row), 0, -1):  # EN-1, alpha = 1.5 by sorting
            m, ss = half[:r].mean(), (half[:r] - half[:r].mean()).square().sum()
            tau = m - ((1 - ss).clamp(min=0) / r).sqrt()
            if tau <= half[r - 1]:
                break
        assert_close(entmax_weights(row, 1.5), (row / 2 - tau).relu().square())


def test_does_not_cancel_near_softmax():
    """EN-1: in float32 the usual form is 4e-5 off at alpha = 1.0001."""
    z = Z.float()
    exact = torch.from_numpy(solve(z.double().numpy(), alpha=1.0001))
    assert largest(entmax_weights(z, 1.0001).double() - exact) < 1e-6
    excess, tau = torch.tensor(1e-4), torch.full((4, 1), 0.0)
    low = (1e-4 * z).amax(dim=-1, keepdim=True) - 1
    high = low + 1
    for _ in range(60):  # p = ((alpha - 1) z - tau)_+^(1 / (alpha - 1)), by bisection
        tau = (low + high) / 2
        too_much = ((excess * z - tau).relu() ** (1 / excess)).sum(dim=-1, keepdim=True) > 1
        low, high = torch.where(too_much, tau, low), torch.where(too_much, high, tau)
    usual = (excess * z - tau).relu() ** (1 / excess)
    assert largest((usual / usual.sum(dim=-1, keepdim=True)).double() - exact) > 3e-6


def test_excluded_entries_and_large_logits():
    z = Z.clone()
    z[:, 3], z[2] = -torch.inf, -torch.inf
    z.requires_grad_()
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    for order in (alpha, alpha * 0 + 1):
        p = entmax_weights(z, order)
        assert not p[:, 3].any()
        assert not p[2].any()
        kept = torch.cat([z[0, :3], z[0, 4:]])
        assert_close(torch.cat([p[0, :3], p[0, 4:]]), entmax_weights(kept, order))
        assert all(x.isfinite().all() for x in torch.autograd.grad(p.square().sum(), (z, alpha)))
    assert_close(
        entmax_weights(1e300 * Z[0, :3], 1.5).sum(), torch.tensor(1.0, dtype=torch.float64)
    )
    assert entmax_weights(Z[:, :0], 1.5).shape == (4, 0)


@pytest.mark.parametrize("alpha", [1.0001, 1.1, 1.5, 1.9])
def test_gradients_and_second_derivatives_are_those_of_finite_differences(alpha):
    z = tokens(3, 6).requires_grad_()
    order = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    steps = {"eps": 1e-6 if alpha > 1.01 else 1e-5}
    assert torch.autograd.gradcheck(entmax_weights, (z, order), atol=1e-8, **steps)
    assert torch.autograd.gradgradcheck(entmax_weights, (z, order), atol=1e-6, **steps)
    of_one = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(entmax_weights, (z, of_one), atol=1e-8, **steps)


def test_the_slope_in_alpha_at_softmax_en_3():
    """``p / 2 (sum p log^2 p - log^2 p)``, and no jump beside it, also in float32."""
    p = Z.softmax(dim=-1)
    squares = p.log().square()
    exact = p / 2 * ((p * squares).sum(dim=-1, keepdim=True) - squares)
    direction = tokens(4, 37, seed=1)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for excess in (0.0, 1e-14, 1e-7, 1e-5):
            alpha = torch.full((4, 1), 1 + excess, dtype=dtype, requires_grad=True)
            out = (entmax_weights(Z.to(dtype), alpha) * direction.to(dtype)).sum()
            (found,) = torch.autograd.grad(out, alpha)
            expected = (exact * direction).sum(dim=-1, keepdim=True)
            assert largest(found.double() - expected) < tolerance + 30 * excess


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.7, 2.0])
def test_no_direction_is_stretched_en_3(alpha):
    """``|J|_2 <= 1``, and ``2^(alpha - 2)`` for two equal logits."""
    for z in (*Z, 0.1 * Z[0]):
        J = torch.autograd.functional.jacobian(lambda x: entmax_weights(x, alpha), z)
        assert torch.linalg.matrix_norm(J, 2) <= 1 + 1e-12
    J = torch.autograd.functional.jacobian(lambda x: entmax_weights(x, alpha), 0 * Z[0, :2])
    assert_close(float(torch.linalg.matrix_norm(J, 2)), 2 ** (alpha - 2))


def test_transforms_have_the_same_derivatives():
    """Of torch.func, in which the number of Newton steps is fixed, for many equal logits too."""
    z, alpha = tokens(5, 2000), torch.tensor([[1.3]], dtype=torch.float64)
    z[0] = 0

    def loss(z, alpha):
        return entmax_weights(z, alpha).square().sum()

    leaves = z.clone().requires_grad_(), alpha.clone().requires_grad_()
    expected = torch.autograd.grad(loss(*leaves), leaves)
    assert_close(torch.func.grad(loss, argnums=(0, 1))(z, alpha), expected)
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(z, alpha[0])
    assert_close(rows, expected[0])


def test_the_operator_lies_between_softmax_and_sparsemax():
    q, k, v = (tokens(2, 3, 9, 5, seed=seed) for seed in range(3))
    for causal in (False, True):
        for alpha, plain in ((1.0, Softmax(scale=2.0)), (2.0, Sparsemax(scale=2.0))):
            layer = Entmax(alpha, scale=2.0)
            assert_close(layer(q, k, v, is_causal=causal), plain(q, k, v, is_causal=causal))
    zeros = [int((Entmax(a, scale=2.0).matrix(q, k) == 0).sum()) for a in (1.0, 1.3, 1.7, 2.0)]
    assert zeros[0] == 0
    assert zeros == sorted(zeros)
    assert zeros[1] > 0


def test_an_order_for_each_head_is_learned():
    layer = Attention(12, 3, operator=Entmax(1.2, num_heads=3, learnable=True)).double()
    assert_close(layer.operator.order(), torch.full((3, 1, 1), 1.2, dtype=torch.float64))
    x = tokens(2, 7, 12)
    layer(x, x, x)[0].square().sum().backward()
    assert (layer.operator.odds.log.grad != 0).all()
    with torch.no_grad():
        layer.operator.odds.log.copy_(torch.tensor([-1e3, 0.0, 1e3])[:, None, None])
    assert_close(layer.operator.order().flatten(), torch.tensor([1.0, 1.5, 2.0]).double())
    q, k, v = layer.project(x, x, x)
    found = layer.operator(q, k, v)
    for head, operator in enumerate((Softmax(), Entmax(1.5), Sparsemax())):
        assert_close(found[:, head], operator(q, k, v)[:, head])
    layer.reset_parameters()
    assert_close(layer.operator.order(), torch.full((3, 1, 1), 1.2, dtype=torch.float64))


def test_a_language_model_takes_it_by_name():
    model = LanguageModel(7, 12, 1, 3, 9, operator="entmax")
    ids = torch.randint(7, (2, 9), generator=torch.Generator().manual_seed(0))
    model.loss(ids).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entmax_weights(Z, 2.5), r"alpha: must be from 1 to 2, got \[2.5\]"),
        (lambda: entmax_weights(Z, torch.full((4, 1), 0.5)), "alpha: must be from 1 to 2"),
        (lambda: Entmax(0.9), "alpha: must be from 1 to 2, got 0.9"),
        (lambda: Entmax(2.0, learnable=True), "alpha: must be strictly between 1 and 2 where it"),
        (lambda: Entmax(1.5, scale=0.0), "scale: must be"),
        (lambda: Entmax(num_heads=2, learnable=True)(*tokens(3, 2, 3, 9, 5)), "num_heads"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_logits_that_are_integers_and_orders_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"logits: must be floating point, got torch\.int64"):
        entmax_weights(torch.tensor([1, 0]), 1.5)
    with pytest.raises(ValueError, match=r"alpha: must broadcast to \(3, 1\), got shape \(3,\)"):
        entmax_weights(torch.zeros(3, 4), torch.full((3,), 1.5))
