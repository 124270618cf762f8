import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import minimize_energy
from twinsolve.unrolled import (
    Bilateral,
    Context,
    Gaussian,
    Neutreno,
    Softmax,
    Solved,
    Tupe,
    Twicing,
)

GENERATOR = torch.Generator().manual_seed(0)
X, Y, V, F = torch.randn(4, 2, 2, 7, 4, generator=GENERATOR, dtype=torch.float64)
P, R = torch.randn(2, 2, 2, 7, 4, generator=GENERATOR, dtype=torch.float64)
CONTEXT = Context(first_values=F, projected_positions=(P, R))
# Any smoother: one line more for each that is to be composed with.
BASES = [
    pytest.param(lambda: Gaussian(), id="gaussian"),
    pytest.param(lambda: Twicing(Gaussian()), id="twicing"),
    pytest.param(lambda: Twicing(Twicing(Softmax())), id="twicing-twice"),
    pytest.param(lambda: Bilateral(), id="bilateral"),
    pytest.param(lambda: Twicing(Bilateral()), id="twicing-bilateral"),
]


@pytest.mark.parametrize("make", BASES)
def test_is_its_explicit_matrix_on_any_base(make):
    A = make().matrix(X, Y, context=CONTEXT)
    found = Neutreno(make(), 0.4)(X, Y, V, context=CONTEXT)
    assert_close(found, A @ V + 0.4 * (F - V), atol=1e-12, rtol=0)
    safe = Neutreno(make(), 0.4, relaxed=True)(X, Y, V, context=CONTEXT)
    assert_close(safe, (A @ V + 0.4 * F) / 1.4, atol=1e-12, rtol=0)


def test_composes_in_either_order():
    """Twicing smooths the residual with whatever its base is: outside, it adds the pull twice."""
    A, one = Gaussian().matrix(X, X), torch.eye(7, dtype=torch.float64)
    inside = Neutreno(Twicing(Gaussian()), 0.3)(X, X, V, context=CONTEXT)
    assert_close(inside, (2 * A - A @ A) @ V + 0.3 * (F - V), atol=1e-12, rtol=0)
    with pytest.warns(UserWarning, match="Neutreno is not") as warned:
        outside = Twicing(Neutreno(Gaussian(), 0.3))
    assert any("not linear in its values" in str(w.message) for w in warned)
    M = A - 0.3 * one
    expected = (2 * M - M @ M) @ V + (2 * one - M) @ (0.3 * F)
    assert_close(outside(X, X, V, context=CONTEXT), expected, atol=1e-12, rtol=0)
    assert_close(outside.matrix(X, X, context=CONTEXT), 2 * M - M @ M, atol=1e-12, rtol=0)


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("n_iter", [1, 4])
def test_the_matrix_is_the_linear_part_in_the_values(relaxed, n_iter):
    layer = Neutreno(Softmax(), 0.4, relaxed=relaxed, n_iter=n_iter)
    moved = layer(X, Y, V, context=CONTEXT) - layer(X, Y, 0 * V, context=CONTEXT)
    assert_close(layer.matrix(X, Y, context=CONTEXT) @ V, moved, atol=1e-12, rtol=0)
    assert not layer.linear_in_values


def test_first_layer_is_the_base():
    context = Context(first_values=V)
    assert (Neutreno(Softmax())(X, Y, V, context=context) == Softmax()(X, Y, V)).all()


def test_asks_for_what_its_base_needs_too():
    assert set(Neutreno(Tupe(8, 2)).needs) == {"positions", "first_values"}
    assert Neutreno(Neutreno(Softmax())).needs == ("first_values",)


def test_lam_is_a_parameter():
    """The published code has 0.6 written into it (PEERS)."""
    outputs = [Neutreno(Softmax(), lam)(X, Y, V, context=CONTEXT) for lam in (0.6, 0.4)]
    assert_close(outputs[0] - outputs[1], 0.2 * (F - V), atol=1e-12, rtol=0)
    assert_close(Neutreno(Softmax())(X, Y, V, context=CONTEXT), outputs[0])
    layer = Neutreno(Softmax(), 0.4, num_heads=2, learnable=True, dtype=torch.float64)
    with torch.no_grad():
        layer.lam.log[1] = 0.0
    found = layer(X, Y, V, context=CONTEXT) - Softmax()(X, Y, V)
    assert_close(found[:, 0], 0.4 * (F - V)[:, 0], atol=1e-12, rtol=0)
    assert_close(found[:, 1], (F - V)[:, 1], atol=1e-12, rtol=0)
    layer(X, Y, V, context=CONTEXT).square().sum().backward()
    assert (layer.lam.log.grad != 0).all()


def test_fixed_point_minimises_the_degree_weighted_energy_and_not_the_printed_one_e2c():
    """Printed is one weight of the fidelity for all tokens; no lam makes up for the degrees."""
    x, f = 1.5 * X[0, 0], F[0, 0]
    d2 = torch.cdist(x, x).square()
    K = torch.exp(-d2 / (2 * 1.2**2)).numpy()
    degrees = K.sum(axis=1)

    def fixed_point(lam):
        solved = Solved(Neutreno(Gaussian(1.2), lam), tol=1e-13)
        return solved(x, x, f, context=Context(first_values=f)).numpy()

    for fidelity, weights in (
        ("degree", [0.6]),
        ("constant", [0.6, *(0.6 / degrees), 0.6 / degrees.mean()]),
    ):
        best = minimize_energy(f.numpy(), K, lam=0.6, fidelity=fidelity, tol=1e-13).coef
        error = min(abs(fixed_point(lam) - best).max() for lam in weights)
        assert error < 1e-9 if fidelity == "degree" else error > 0.01
