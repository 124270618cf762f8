import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import LowRank, Ridge

from .draws import tokens


def with_singular_values(*values, n=9, seed=0):
    d = len(values)
    U, _ = torch.linalg.qr(tokens(n, d, seed=seed))
    R, _ = torch.linalg.qr(tokens(d, d, seed=seed + 1))
    return U * torch.tensor(values, dtype=torch.float64) @ R.mT


def test_tokens_are_left_out_to_the_last_bit():
    matrix = Ridge(0.3, zero_diagonal=True).matrix(tokens(12, 4), tokens(12, 4, seed=1))
    assert (matrix.diagonal() == 0).all()


@pytest.mark.parametrize("lam", [1e-8, 1e-4])
def test_ridge_is_accurate_in_float32_where_keys_are_dependent(lam):
    """Gram matrices formed in float32 would lose a penalty under its eps."""
    q, k = tokens(40, 8), with_singular_values(5, 4, 3, 2, 1, 0.5, 1e-3, 1e-4, n=40)
    q, k, v = (x.float() for x in (q @ k.mT @ k, k, tokens(40, 3)))
    exact = Ridge(lam)(q.double(), k.double(), v.double())
    assert (Ridge(lam)(q, k, v) - exact).abs().max() < 2e-4 * exact.abs().max()


def test_left_out_keys_of_nearly_full_leverage_keep_their_digits_in_float32():
    """1 - h is 1e-6 for an outlier: differences of float32 numbers would leave no digit."""
    x = torch.cat([1e3 * torch.eye(1, 6), torch.cat([torch.ones(30, 1), tokens(30, 5)], 1)])
    q, v = tokens(31, 6, seed=1), tokens(31, 2, seed=2)
    q, x, v = (t.float() for t in (q, x, v))
    layer = Ridge(1e-3, zero_diagonal=True)
    expected = layer.matrix(q.double(), x.double()) @ v.double()
    assert (layer(q, x, v).double() - expected).abs().max() < 1e-5


def test_left_out_keys_of_full_leverage_stay_finite():
    x = torch.cat([torch.eye(6), torch.zeros(1, 6)]).requires_grad_()
    out = Ridge(1e-12, zero_diagonal=True)(x, x, x)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    "values",
    [(2.0, 2.0, 2.0), (2.0, 2.0, 0.5, 0.5), (2.0, 2.0 + 1e-9, 0.3), (0.5, 0.5), (2.0, 0.0, 0.0)],
)
def test_low_rank_gradients_at_equal_singular_values(values):
    """Those of a singular value decomposition are infinite there."""
    k = with_singular_values(*values, n=6).requires_grad_()
    q = tokens(5, len(values), seed=3).requires_grad_()
    layer = LowRank(1.0, learnable=True).double()
    v = tokens(6, 2, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(layer, (q, k, v))
    assert torch.autograd.gradcheck(layer, (q.mT[:, :2].mT, k[:2], v[:2]))


def test_low_rank_gradient_at_the_threshold_is_finite():
    k = with_singular_values(2.0, 0.5**0.5, 0.5**0.5 * (1 + 1e-15)).requires_grad_()
    LowRank(1.0)(k, k, k).sum().backward()
    assert torch.isfinite(k.grad).all()
    assert k.grad.abs().max() < 100


@pytest.mark.parametrize("operator", [Ridge(0.5), Ridge(0.5, zero_diagonal=True), LowRank(0.5)])
def test_constant_zero_and_single_tokens(operator):
    operator = operator.double()
    for x in (torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 3)):
        x = x.double().requires_grad_()
        out = operator(x, x, x)
        assert_close(out, operator.matrix(x, x) @ x, atol=1e-12, rtol=0)
        out.sum().backward()
        assert torch.isfinite(x.grad).all()
