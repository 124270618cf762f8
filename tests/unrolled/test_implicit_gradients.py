"""Every gradient that is solved for, at default settings, against the exact one."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import sparse_code
from twinsolve.solvers.nonlocal_energy import minimize_convex_ridge
from twinsolve.twins.families.nonlocal_energy.image_energies import ridge_of
from twinsolve.unrolled import (
    Context,
    ConvexRidge,
    FixedPoint,
    Gaussian,
    Neutreno,
    Solved,
    SparseCoding,
)
from twinsolve.unrolled.nonlocal_energy import convex_ridge

from .draws import tokens

DOUBLE = {"dtype": torch.float64}


def coherent(n_keys, dim, seed=1):
    """Unit vectors within 30 degrees or so of a common direction."""
    common = torch.nn.functional.normalize(tokens(dim, seed=seed), dim=0)
    noise = tokens(n_keys, dim, seed=seed + 1) / dim**0.5
    return torch.nn.functional.normalize(common + noise / 2, dim=1)


def solved_codes(layer, q, k):
    """Codes as a function of q, k and lam, by supports and signs of certified solutions."""
    base = layer.base
    lam = base.lam().expand(len(q), 1, 1)
    if base.relative:
        products = (q @ k.mT).abs()
        if base.zero_diagonal:
            products = products * (1 - torch.eye(q.shape[-2], **DOUBLE))
        lam = 2 * lam * products.amax(dim=-1, keepdim=True)
    lam = lam.expand(len(q), q.shape[1], 1)
    return torch.stack([codes_of_head(base, *of_head) for of_head in zip(q, k, lam, strict=True)])


def codes_of_head(base, q, k, lam):
    solution = sparse_code(
        q.detach().numpy(),
        k.detach().numpy(),
        lam=lam[:, 0].detach().numpy(),
        tol=1e-13,
        zero_diagonal=base.zero_diagonal,
        nonnegative=base.nonnegative,
    )
    rows = []
    for signal, penalty, coef in zip(q, lam, dense(solution.coef), strict=True):
        signs = torch.from_numpy(np.sign(coef))
        on = signs.nonzero()[:, 0]
        K = k[on]
        code = torch.linalg.solve(K @ K.mT, K @ signal - penalty / 2 * signs[on])
        rows.append(torch.zeros_like(signs).scatter(0, on, code))
    return torch.stack(rows)


def dense(coef):
    return coef.toarray() if hasattr(coef, "toarray") else coef


def case_of_codes(lam=0.3, *, n=30, k=None, **settings):
    """Of two heads that share their keys, or of self-expression."""
    layer = Solved(SparseCoding(lam, **{"relative": True} | settings, learnable=True, **DOUBLE))
    k = coherent(256, 64) if k is None else k
    if layer.base.zero_diagonal:
        leaves = (torch.stack([coherent(n, 20, seed=seed) for seed in (1, 7)]),)
    else:
        leaves = (tokens(2, n, 64, seed=5), k.expand(2, -1, -1))

    def run(q, k=None):
        k = q if k is None else k
        return layer(q, k, torch.eye(k.shape[-2], **DOUBLE).expand(2, -1, -1))

    def exact(q, k=None):
        return solved_codes(layer, q, q if k is None else k)

    return run, exact, leaves, layer


def case_of_heads():
    run, exact, leaves, layer = case_of_codes(1.1, relative=False, num_heads=2)
    layer.base.lam.log.data[1] -= 0.3
    return run, exact, leaves, layer


def case_of_values(lam):
    base = Neutreno(Gaussian(1.3, learnable=True, **DOUBLE), lam, learnable=True, **DOUBLE)
    layer = Solved(base)
    leaves = tuple(tokens(2, 12, 3, seed=seed) for seed in range(3))

    def run(q, k, f):
        return layer(q, k, f, context=Context(first_values=f))

    def exact(q, k, f):
        A, lam = base.base.matrix(q, k), base.lam()
        return torch.linalg.solve((1 + lam) * torch.eye(12, **DOUBLE) - A, lam * f)

    return run, exact, leaves, layer


def case_of_map(eigenvalues):
    """``z M + tanh(b)``, with a normal M of these eigenvalues, complex ones in pairs."""
    blocks = [
        torch.tensor([[x.real, x.imag], [-x.imag, x.real]]) if x.imag else torch.tensor([[x.real]])
        for x in map(complex, eigenvalues)
    ]
    D = torch.block_diag(*blocks).double()
    R = torch.linalg.qr(tokens(len(D), len(D)))[0]
    layer = FixedPoint(lambda z, M, b: z @ M + b.tanh(), max_iter=100_000)

    def run(M, b):
        return layer(0 * b, M, b)

    def exact(M, b):
        return torch.linalg.solve(torch.eye(len(M), **DOUBLE) - M, b.tanh(), left=False)

    return run, exact, (R @ D @ R.mT, tokens(4, len(D), seed=3)), layer


def case_of_images(**settings):
    layer = ConvexRidge(0.05, 0.1, filter_size=3, **settings, **DOUBLE)
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data += 0.2 * tokens(*parameter.shape, seed=seed)

    def exact(noisy):
        """A Newton step from the certified minimiser, which does not move it."""
        bank, potentials = ridge_of(layer)
        solution = minimize_convex_ridge(
            noisy.detach()[0, 0].numpy(), bank, potentials, lam=1.0, tol=1e-13, max_iter=20_000
        )
        u, energy = torch.from_numpy(solution.coef)[None], layer._make_energy(torch.float64)
        hessian = torch.autograd.functional.jacobian(
            lambda u: energy.detached().gradient(u, noisy[0].detach()), u
        ).reshape(u.numel(), u.numel())
        step = torch.linalg.solve(hessian, energy.gradient(u, noisy[0]).flatten())
        return (u.flatten() - step).view_as(noisy)

    return lambda noisy: layer(noisy), exact, (tokens(1, 1, 9, 8) / 4 + 0.5,), layer


CASES = {
    "coherent codes": case_of_codes,
    "coherent codes of small penalties": lambda: case_of_codes(0.07, n=5),
    "nonnegative codes": lambda: case_of_codes(nonnegative=True),
    "codes of support-adaptive steps": lambda: case_of_codes(n=2, step="support"),
    "codes of penalties of heads": case_of_heads,
    "self-expression": lambda: case_of_codes(0.2, zero_diagonal=True),
    "values": lambda: case_of_values(0.6),
    "map of slow contraction": lambda: case_of_map([0.99, -0.5, 0.3]),
    "map that turns": lambda: case_of_map([0.99j, 0.7 + 0.7j, 0.2]),
    "map of many rates": lambda: case_of_map(np.linspace(-0.98, 0.98, 30)),
    "images": case_of_images,
    "images of little convexity": lambda: case_of_images(rho=0.99),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_at_default_settings_is_exact_to_a_millionth(name):
    """In float64, of inputs and of every parameter that moves what is solved for."""
    run, exact, leaves, layer = CASES[name]()
    leaves = [x.clone().requires_grad_() for x in leaves]
    parameters = [p for key, p in layer.named_parameters() if "step" not in key]
    outputs = [f(*leaves) for f in (run, exact)]
    cotangent = tokens(*outputs[0].shape, seed=9)
    found, expected = (
        torch.autograd.grad(out, [*leaves, *parameters], cotangent) for out in outputs
    )
    assert (outputs[0] - outputs[1]).norm() <= 1e-6 * outputs[1].norm()
    for a, b in zip(found, expected, strict=True):
        assert b.norm() > 0
        assert (a - b).norm() <= 1e-6 * b.norm()


def test_a_linear_system_that_is_solved_to_a_millionth_is_told(monkeypatch):
    run, _, leaves, _ = CASES["images"]()
    out = run(*(x.clone().requires_grad_() for x in leaves))
    right = convex_ridge._solve_by_conjugate_gradients

    def wrong(*arguments):
        x = right(*arguments)
        return x + 1e-6 * x.norm() / x.numel() ** 0.5 * tokens(*x.shape)

    monkeypatch.setattr(convex_ridge, "_solve_by_conjugate_gradients", wrong)
    with pytest.warns(ConvergenceWarning, match="not proved to be within"):
        out.sum().backward()
