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


def test_three_deep_is_the_literal_formula():
    logits = (X @ Y.mT + P @ R.mT) / 4**0.5
    A = torch.softmax(logits, dim=-1)
    found = Neutreno(Twicing(Bilateral()), 0.6)(X, Y, V, context=CONTEXT)
    assert_close(found, 2 * A @ V - A @ A @ V + 0.6 * (F - V), atol=1e-12, rtol=0)


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


def growth(layer, q, k, v, n_iter):
    """How far iterates move apart from the fixed point: the change of the last step."""
    context = Context(first_values=v)
    layer.n_iter = n_iter
    last = layer(q, k, v, context=context)
    layer.n_iter = n_iter + 1
    return float((layer(q, k, v, context=context) - last).abs().max())


def test_published_form_diverges_with_sharp_unshared_projections_and_the_safe_one_does_not():
    """Erratum E2-d; safe form NT-rel; with q = k (NT-CONV) the published form converges too."""
    shift = 6 * torch.eye(6, dtype=torch.float64)
    q, k = shift.roll(1, 0), shift
    v = torch.arange(6.0, dtype=torch.float64)[:, None].sin()
    assert growth(Neutreno(Softmax(), 0.6), q, k, v, 100) > 1e3
    assert growth(Neutreno(Softmax(), 0.6, relaxed=True), q, k, v, 100) < 1e-12
    assert growth(Neutreno(Softmax(), 0.6), k, k, v, 100) < 1e-12


@pytest.mark.parametrize(("lam", "converges"), [(0.9, True), (2.0, False), (2.5, False)])
def test_lam_of_two_never_converges(lam, converges):
    """Erratum E2-e: tokens that are constant have the factor 1 - lam."""
    v = torch.ones(2, 1, dtype=torch.float64)
    context = Context(first_values=0 * v)
    layer = Neutreno(Softmax(), lam)
    sizes = []
    for layer.n_iter in (10, 200):
        sizes.append(float(layer(0 * v, 0 * v, v, context=context).abs().max()))
    assert (sizes[1] < 1e-12) == converges
    assert converges or sizes[1] >= sizes[0] * (1 - 1e-9)


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


def test_attention_with_unshared_projections_can_raise_the_energy():
    """Errata E2-a, E2-b: with q = k one step never does (NT-J)."""
    v = torch.tensor([[0.0], [0.0], [5.0]], dtype=torch.float64)
    # Weights k with a strong tie of tokens 0 and 1, which token 0 does not attend to.
    weights = torch.tensor([[1.0, 1.0, 10.0], [1e8, 1.0, 1.0], [1.0, 1.0, 1.0]]).double()
    keys = 3**0.5 * torch.eye(3, dtype=torch.float64)

    def energies(q, k):
        directed = torch.exp(q @ k.mT / 3**0.5)
        K = directed + directed.mT
        u = Neutreno(Softmax())(q, k, v, context=Context(first_values=v))
        return [float((K * (x - x.mT) ** 2).sum()) / 4 for x in (v, u)]

    before, after = energies(weights.log(), keys)
    assert after > 1e4 * before
    shared = weights.log()[:, :2]
    before, after = energies(shared, shared)
    assert after <= before


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="lam: must be finite and > 0"):
        Neutreno(Softmax(), 0.0)
    with pytest.raises(ValueError, match="n_iter: must be a whole number >= 1"):
        Neutreno(Softmax(), n_iter=0)
    with pytest.raises(ValueError, match="base: must be an Operator"):
        Neutreno(3)
    with pytest.raises(ValueError, match="context: Neutreno needs first_values"):
        Neutreno(Softmax())(X, X, V)
    with pytest.raises(ValueError, match="first_values must have the shape"):
        Neutreno(Softmax())(X, X, V, context=Context(first_values=F[..., :3]))
