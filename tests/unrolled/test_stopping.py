"""What stops within a tolerance is within it: residuals computed again, from the definitions."""

import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.nn import functional

from twinsolve.unrolled import (
    Context,
    ConvexRidge,
    FixedPoint,
    Neutreno,
    Softmax,
    Solved,
    SparseCoding,
)

GENERATOR = torch.Generator().manual_seed(0)
Q, K, V, F = torch.randn(4, 2, 9, 6, generator=GENERATOR, dtype=torch.float64)
W = torch.randn(6, 6, generator=GENERATOR, dtype=torch.float64)
W *= 0.97 / torch.linalg.matrix_norm(W, 2)


def relative(change, x):
    return float((change.abs().amax((-2, -1)) / x.abs().amax((-2, -1))).max())


def of_fixed_point(tol):
    z = FixedPoint(lambda z: z @ W + F, tol=tol)(torch.zeros_like(F))
    return relative(z @ W + F - z, z)


def of_gradient(tol):
    """``y = g + y W^T``, which ends as the gradient in the constant of the map."""
    b = F.clone().requires_grad_()
    z = FixedPoint(lambda z, b: z @ W + b, tol=tol)(torch.zeros_like(F), b)
    (y,) = torch.autograd.grad(z, b, V)
    return relative(V + y @ W.mT - y, y)


def of_codes(tol):
    """Proximal gradient steps of length ``1 / |k|_2^2``."""
    lam = 0.5
    C = Solved(SparseCoding(lam), tol=tol).matrix(Q, K)
    step = 1 / torch.linalg.matrix_norm(K, 2).square()[:, None, None]
    z = C + step * (Q - C @ K) @ K.mT
    moved = z.sign() * (z.abs() - step * lam / 2).clamp(min=0)
    rows = C.abs().amax(-1, keepdim=True)
    return float(((moved - C).abs() / rows).max())


def of_values(tol):
    lam = 0.05
    layer = Solved(Neutreno(Softmax(), lam), tol=tol)
    u = layer(Q, K, V, context=Context(first_values=F))
    return relative((Softmax()(Q, K, u) + lam * F) / (1 + lam) - u, u)


def of_ridge(tol):
    """What the slope of the energy proves: ``|u - u*| <= |grad F(u)|``, root mean squares."""
    lam, threshold = 0.05, 0.1
    layer = ConvexRidge(lam, threshold, filter_size=3, tol=tol, dtype=torch.float64)
    f = torch.rand(2, 1, 14, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u = layer(f).detach().requires_grad_()
    z = functional.conv2d(u, layer.filters()[:, None]) / threshold
    huber = functional.huber_loss(z, torch.zeros_like(z), reduction="sum")
    energy = (u - f).square().sum() / 2 + lam * threshold * huber
    (slope,) = torch.autograd.grad(energy, u)
    return float(slope.square().mean(dim=(1, 2, 3)).sqrt().max())


def of_gradient_of_ridge(tol):
    """``(I + Psi''(u)) g = v`` by the second derivative of the energy at the minimiser."""
    lam, threshold = 0.05, 0.1
    settings = {"filter_size": 3, "dtype": torch.float64}
    f = torch.rand(1, 1, 14, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = ConvexRidge(lam, threshold, tol=1e-13, max_iter=20_000, **settings)
    u = exact(f).detach()
    layer = ConvexRidge(lam, threshold, tol=tol, **settings)
    layer._minimise = lambda images, energy: u[0]
    f, v = f.requires_grad_(), torch.randn(u.shape, generator=GENERATOR, dtype=torch.float64)
    (g,) = torch.autograd.grad(layer(f), f, v)
    bank = layer.filters()[:, None]
    inside = (functional.conv2d(u, bank).abs() < threshold).double()
    curved = functional.conv_transpose2d(inside * functional.conv2d(g, bank), bank)
    return float((g + lam / threshold * curved - v).detach().norm() / v.norm())


@pytest.mark.parametrize("tol", [1e-2, 1e-6])
@pytest.mark.parametrize(
    "residual",
    [of_fixed_point, of_gradient, of_codes, of_values, of_ridge, of_gradient_of_ridge],
    ids=lambda residual: residual.__name__,
)
def test_what_stopped_without_a_warning_is_within_its_tolerance(residual, tol):
    """With momentum the last change is measured a step before, and may be a little smaller."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        assert 0 < residual(tol) <= (2 if residual is of_codes else 1) * tol
