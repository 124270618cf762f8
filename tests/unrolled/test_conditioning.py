import math

import numpy as np
import pytest
import scipy.fft
import torch
from torch.testing import assert_close

from twinsolve.solvers import gray_tokens
from twinsolve.unrolled import TokenGraying
from twinsolve.unrolled.conditioning import cosine_transform, inverse_cosine_transform

from .draws import tokens

TRANSFORMS = ["dct", "svd"]


def orthogonal(n, seed=0):
    return torch.linalg.qr(tokens(n, n, seed=seed))[0]


@pytest.mark.parametrize("n", [1, 2, 7, 400])
def test_cosine_transform_is_the_orthonormal_dct(n):
    """SK-8; erratum E4-j: printed is the transpose, which is the inverse."""
    D = cosine_transform(torch.eye(n, dtype=torch.float64)).numpy().T
    expected = scipy.fft.dct(np.eye(n), axis=0, norm="ortho")
    np.testing.assert_allclose(D, expected, atol=1e-14)
    inverse = inverse_cosine_transform(torch.eye(n, dtype=torch.float64)).numpy().T
    np.testing.assert_allclose(inverse, expected.T, atol=1e-14)
    assert n <= 2 or np.abs(inverse - expected).max() > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_svd_form_loses_only_the_rounding_of_a_narrow_dtype(dtype):
    layer, X = TokenGraying("svd", eps=0.5), tokens(2, 9, 6).to(dtype)
    X[1] = X[1, :1]  # constant tokens: all but one singular value are zero
    found = layer(X)
    assert found.dtype == dtype
    assert_close(found, layer(X.double()).to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_the_cosine_form_loses_the_rounding_of_float32_where_the_power_is_steepest():
    """Up to the slope of the power law at what counts as rounding; a constant image loses none."""
    eps, X = 0.5, tokens(9, 6).float()
    layer, rounding = TokenGraying("dct", eps=eps), math.log2(2 * 54) * 2**-23
    largest = np.abs(scipy.fft.dctn(X.double().numpy(), norm="ortho")).max()
    found = layer(X)
    assert found.dtype == torch.float32
    atol = float(largest) * rounding**eps
    assert_close(found.double(), layer(X.double()), rtol=0, atol=atol)
    for size in (1e37, 1e-30):
        assert_close(layer(size * X) / size, found, rtol=1e-4, atol=1e-5 * atol)
    flat = torch.full((196, 768), 0.3)
    assert_close(layer(flat), flat, rtol=2**-20, atol=0)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_degenerate_images_give_the_right_answer_and_finite_gradients(transform):
    layer = TokenGraying(transform, eps=0.5)
    single = torch.zeros(5, 4, dtype=torch.float64)
    single[2, 1] = -3.0
    same, tiny = torch.full((5, 4), 2.0), 1e-300 * tokens(9, 6)
    for case in (torch.zeros(5, 4), same, single, torch.eye(4), tiny):
        X = case.double()
        expected = gray_tokens(X.numpy(), eps=0.5, transform=transform)
        atol = 1e-12 * X.abs().max().item()
        out = layer(X.requires_grad_())
        np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=atol)
        (gradient,) = torch.autograd.grad((out * tokens(*X.shape)).sum(), X)
        assert gradient.isfinite().all()
    for shape in ((0, 5, 4), (2, 0, 4)):
        assert layer(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("s", [[5.0, 2, 2, 2], [5.0, 2, 1 + 1e-9, 1], [5.0, 3, 0, 0]])
def test_gradients_of_the_svd_form_survive_equal_singular_values(s):
    """Finite differences; where singular values are 0 along changes of the others' spaces."""
    U, R = orthogonal(6)[:, :4], orthogonal(4, seed=1)
    X = ((U * torch.tensor(s, dtype=torch.float64)) @ R.T).requires_grad_()
    layer, weights, change = TokenGraying("svd", eps=0.6), tokens(6, 4), tokens(6, 4, seed=2)
    kept = torch.tensor(s) > 0
    if not kept.all():
        change = U[:, kept] @ U[:, kept].T @ change @ R[:, kept] @ R[:, kept].T
    (gradient,) = torch.autograd.grad((layer(X) * weights).sum(), X)
    h, X = 1e-5, X.detach()
    slope = ((layer(X + h * change) - layer(X - h * change)) * weights).sum() / (2 * h)
    assert (gradient * change).sum().item() == pytest.approx(slope.item(), rel=1e-6)
