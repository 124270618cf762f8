import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import boost
from twinsolve.solvers.boosting import (
    boosting_lipschitz_bound,
    generalized_residual,
    signal_to_noise_ratio,
    snr_gain_bound,
)
from twinsolve.unrolled import Context, GeneralizedResidual, Residual, Softmax


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (6, 4), generator=generator, dtype=torch.float64)


def residual(source=None, t=0.3):
    layer = GeneralizedResidual(source, dtype=torch.float64)
    torch.nn.init.constant_(layer.t, t)
    return layer


def stack(layers, branch, X):
    """The layers one after the other, as a model runs them."""
    context = Context(first_tokens=X)
    for layer in layers:
        context = context._replace(history=(*context.history, X))
        X = layer(X, branch(X), context)
    return X.detach()


def attend(X):
    return Softmax()(X, X, X)


def test_both_forms_start_as_the_plain_residual_exactly():
    """IF-26 at t = 0, and Definition IV.1 at i_l = l and t_l = 1."""
    x, y = tokens(), tokens(seed=1)
    context = Context(first_tokens=tokens(seed=2), history=(tokens(seed=3), x))
    plain = Residual()(x, y, context)
    assert (plain == x + y).all()
    assert (GeneralizedResidual(dtype=torch.float64)(x, y, context) == plain).all()
    assert (GeneralizedResidual(-1, dtype=torch.float64)(x, y, context) == plain).all()
    assert (GeneralizedResidual(1, dtype=torch.float64)(x, y, context) == plain).all()


def test_boosting_is_the_solvers_with_real_attention():
    X = tokens()
    weights = [0.1, 0.5, 1.0]
    expected = boost(lambda Y: attend(torch.from_numpy(Y)).numpy(), X, t=weights, n_iter=3)
    found = stack([residual(t=t) for t in weights], attend, X)
    assert_close(found.numpy(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sources", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 2, 1], [0, 1, 0, 3]])
def test_any_sequence_of_sources_is_the_solvers(sources):
    X = tokens()
    weights = [0.4, 1.0, 0.7, 0.2]
    expected = generalized_residual(
        lambda Y: attend(torch.from_numpy(Y)).numpy(), X, sources=sources, weights=weights
    )
    layers = [residual(i, t) for i, t in zip(sources, weights, strict=True)]
    assert_close(stack(layers, attend, X).numpy(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("linear", [True, False])
def test_equation_27_holds_for_linear_branches_only(linear):
    """IF-27; erratum E0-j: it is no identity for attention, whose matrix depends on its input."""
    X, t = tokens(), 0.3
    A, B = (Softmax().matrix(tokens(seed=s), tokens(seed=s + 1)) for s in (1, 3))
    f, g = (lambda Y: A @ Y, lambda Y: B @ Y) if linear else (attend, lambda Y: attend(2 * Y))
    layer, context = residual(t=t), Context(first_tokens=X)
    Y = X + f(X)  # not the first layer, so that Y_l and Y_0 differ
    following = layer(Y, f(Y), context)
    found = layer(following, g(following), context).detach()
    printed = g(f(Y) + Y) + t * g(X - Y) + t * X + (1 - t) * following.detach()
    assert ((found - printed).abs().max() < 1e-12) == linear


@pytest.mark.parametrize(("L", "t"), [(0.8, 0.3), (0.3, 0.8), (0.4, 0.4), (0.5, 0.0)])
def test_growth_of_layers_that_are_multiples_of_the_identity(L, t):
    """IF-29 is attained, by the recurrence and by the closed form with its case L = t."""
    X = tokens()
    for n in (1, 2, 5, 30):
        growth = stack([residual(t=t)] * n, lambda Y: L * Y, X).norm() / X.norm()
        a = L + 1 - t
        closed = 1 + n * t if t == L else (L * a**n - t) / (L - t)
        assert growth.item() == pytest.approx(closed, rel=1e-12)
        assert growth.item() == pytest.approx(boosting_lipschitz_bound(L, n, t=t), rel=1e-12)


def test_printed_recurrence_and_ratio_fail():
    """Errata E0-k (signs of the solved recurrence) and E0-l (the ratio needs L > t)."""
    X, L, t, n = tokens(), 0.8, 0.3, 5

    def growth(L, t, n):
        return (stack([residual(t=t)] * n, lambda Y: L * Y, X).norm() / X.norm()).item()

    a, b = L + 1 - t, t
    first = L + 1
    right = (first + b / (a - 1)) * a ** (n - 1) - b / (a - 1)
    printed = (first - b / (a - 1)) * a ** (n - 1) + b / (a - 1)
    assert growth(L, t, n) == pytest.approx(right)
    assert abs(growth(L, t, n) - printed) > 0.1
    ratio = [growth(L, t, n) / (L + 1) ** n / (L / (L - t) * (1 - t / (L + 1)) ** n)
             for L, t, n in ((0.8, 0.3, 60), (0.3, 0.8, 60))]  # fmt: skip
    assert ratio[0] == pytest.approx(1, abs=1e-6)
    assert abs(ratio[1]) > 1e3
    assert growth(0.3, 0.8, 200) == pytest.approx(0.8 / (0.8 - 0.3))


def test_a_plain_residual_grows_with_depth():
    """Erratum E0-m: alpha^l + alpha^i_l leaves out what the layers before have added."""
    X, alpha, depth = tokens(), 0.5, 12
    size = (stack([Residual()] * depth, lambda Y: alpha * Y, X).norm() / X.norm()).item()
    assert size == pytest.approx((1 + alpha) ** depth)
    assert size > 100 * (alpha ** (depth - 1) + alpha ** (depth - 1))


def test_a_skip_connection_does_not_prevent_smoothing():
    """Erratum E1-h: with A near I and W_V = -I it takes all high frequencies away."""
    X = 20 * torch.eye(6, dtype=torch.float64)
    out = Residual()(X, Softmax()(X, X, X) @ -torch.eye(6, dtype=torch.float64))
    assert out.abs().max() < 1e-12


def test_adding_the_filtered_may_lower_the_snr():
    """IF-18; erratum E0-d: min(a, b) > g is not enough for a gain."""
    a, b, g = 0.5, 0.5, 0.4
    signal, noise = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    filtered = a * torch.tensor([[b, (1 - b**2) ** 0.5]])
    gain = signal_to_noise_ratio(
        Residual()(signal, filtered).numpy(), Residual()(noise, g * noise).numpy()
    ) / signal_to_noise_ratio(signal.numpy(), noise.numpy())
    assert min(a, b) > g
    assert gain == pytest.approx(snr_gain_bound(a, b, g), rel=1e-6)
    assert gain < 0.95


# Stability of the softmax


def probabilities(logits):
    """Softmax attention of one query whose logits are given."""
    n = logits.shape[-1]
    return Softmax(scale=1.0)(logits, torch.eye(n).double(), torch.eye(n).double())


def test_softmax_is_half_lipschitz_and_flat_where_uniform():
    """IF-22: lam / 2 is attained by two dominant entries; at the uniform point it is lam / N."""
    h = 1e-5
    for n in (2, 10, 200):
        two = torch.full((1, n), -60.0, dtype=torch.float64)
        two[0, :2] = 0
        step = torch.zeros_like(two)
        step[0, 0], step[0, 1] = h, -h
        change = (probabilities(two + step) - probabilities(two)).norm() / step.norm()
        assert change.item() == pytest.approx(0.5, rel=1e-6)
        flat = torch.zeros_like(two)
        change = (probabilities(flat + step) - probabilities(flat)).norm() / step.norm()
        assert change.item() == pytest.approx(1 / n, rel=1e-4)


def test_the_stability_bound_holds_but_is_not_tight_in_the_number_of_keys():
    """IF-23; erratum E0-g: the bound grows like sqrt N while the change decays like 1 / sqrt N."""
    sigma, changes, bounds = 0.5, [], []
    for n in (20, 200, 2000):
        noise = sigma * tokens(40, n, seed=n)
        change = (probabilities(noise) - 1 / n).norm(dim=-1)
        assert (change <= torch.clamp(noise.norm(dim=-1) / 2, max=2**0.5)).all()
        changes.append(change.mean().item())
        bounds.append(min(2**0.5, sigma / 2 * n**0.5))
        assert changes[-1] <= bounds[-1]
        # Means of 40 draws of a quantity that concentrates as N grows.
        expected = np.sqrt((np.exp(sigma**2) - 1) / n)
        assert changes[-1] == pytest.approx(expected, rel=0.2 if n == 20 else 0.05)
    assert changes[0] > changes[1] > changes[2]
    assert bounds[2] / changes[2] > 100


def test_values_scale_the_stability_bound_by_their_norm():
    """Cor. III.2; erratum E0-i: for random values that norm is sqrt N + sqrt d, not sqrt(N d)."""
    n, d = 400, 30
    V, c, noise = tokens(n, d), tokens(5, n, seed=1), 0.3 * tokens(5, n, seed=2)
    size = torch.linalg.matrix_norm(V, 2).item()
    change = (probabilities(c + noise) @ V - probabilities(c) @ V).norm(dim=-1)
    assert (change <= torch.clamp(noise.norm(dim=-1) / 2, max=2**0.5) * size).all()
    assert size == pytest.approx(n**0.5 + d**0.5, rel=0.1)
    assert size < 0.3 * (n * d) ** 0.5


# Modules


@pytest.mark.parametrize("source", [None, 0, -2])
def test_residuals_are_modules_like_any_other(source):
    x, y, first = (tokens(seed=s).requires_grad_() for s in range(3))
    layer = residual(source)

    def run(x, y, first, t):
        context = Context(first_tokens=first, history=(first, x))
        return torch.func.functional_call(layer, {"t": t}, (x, y, context))

    t = layer.t.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, y, first, t))
    other = GeneralizedResidual(source, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert other.t == 0.3
    other.reset_parameters()
    assert other.t == (0 if source is None else 1)
    empty = GeneralizedResidual(source, device="meta").to_empty(device="cpu")
    empty.reset_parameters()
    assert empty.t == other.t
    assert "t=0.3" in repr(layer)
    assert layer.needs_history == (source is not None)
    assert not Residual().needs_history
    half = [z.detach().bfloat16() for z in (x, y, first)]
    context = Context(first_tokens=half[2], history=(half[2], half[0]))
    assert layer(half[0], half[1], context).dtype == torch.bfloat16


def test_missing_or_unfit_context_is_named():
    x = tokens()
    for context in (None, Context()):
        with pytest.raises(ValueError, match="context: GeneralizedResidual needs first_tokens"):
            residual()(x, x, context)
        with pytest.raises(ValueError, match=r"GeneralizedResidual\(source=0\) reads history"):
            residual(0)(x, x, context)
    for source in (2, -3):
        with pytest.raises(ValueError, match="reads history, which has 2 blocks"):
            residual(source)(x, x, Context(history=(x, x)))
    with pytest.raises(ValueError, match=r"context: the earlier tokens have shape \(5, 4\)"):
        residual()(x, x, Context(first_tokens=x[:5]))
    for source in (True, 1.0, "first"):
        with pytest.raises(ValueError, match="source: must be a whole number or None"):
            GeneralizedResidual(source)
