"""HM-3: the energy of the Energy Transformer, its gradient, and when a step lowers it."""

import pytest
import torch
from torch.nn.functional import layer_norm

H, N, D, Y, M = 2, 7, 5, 4, 9  # heads, tokens, features, features of a head, memories
BETA = 0.7


@pytest.fixture
def parts():
    draw = torch.Generator().manual_seed(0)
    shapes = ((N, D), (H, Y, D), (H, Y, D), (D, M))
    return [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]


def energy_of_attention(g, W_q, W_k, *, own_key=True):
    products = BETA * (g @ W_q.mT) @ (g @ W_k.mT).mT
    if not own_key:
        products = products.masked_fill(torch.eye(len(g), dtype=torch.bool), -torch.inf)
    return -products.logsumexp(dim=-1).sum() / BETA


def energy_of_memories(g, Xi):
    return -(g @ Xi).relu().square().sum() / 2


def energy(g, W_q, W_k, Xi):
    return energy_of_attention(g, W_q, W_k) + energy_of_memories(g, Xi)


def descent(g, W_q, W_k, Xi):
    """Return ``-dE/dg``, by its formula."""
    Q, K = g @ W_q.mT, g @ W_k.mT
    A = (BETA * Q @ K.mT).softmax(dim=-1)
    return (A @ K @ W_q + A.mT @ Q @ W_k).sum(dim=0) + (g @ Xi).relu() @ Xi.mT


def gradient(function, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def normed(x, gain, bias=None):
    return layer_norm(x, x.shape[-1:], gain.expand(x.shape[-1]), bias, 1e-5)


def test_the_gradient_is_attention_its_transpose_and_the_memories_hm_3(parts):
    g, *weights = parts
    expected = -gradient(lambda g: energy(g, *weights), g)
    torch.testing.assert_close(descent(g, *weights), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("alpha", [1e-2, 1.0, 1e2, 1e4])
def test_the_memories_part_falls_for_every_step_hm_3(parts, alpha):
    _, _, _, Xi = parts
    draw = torch.Generator().manual_seed(1)
    for _ in range(20):
        x, bias = (torch.randn(s, D, generator=draw, dtype=torch.float64) for s in (N, 1))
        gain = torch.rand(1, generator=draw, dtype=torch.float64) + 0.1
        before = normed(x, gain, bias[0])
        after = normed(x + alpha * (before @ Xi).relu() @ Xi.mT, gain, bias[0])
        fallen = energy_of_memories(before, Xi) - energy_of_memories(after, Xi)
        assert fallen >= -1e-10 * energy_of_memories(before, Xi).abs()
        assert alpha < 1 or fallen > 0


def test_a_small_step_lowers_the_energy_hm_3(parts):
    x, *weights = parts
    gain = torch.tensor([0.8], dtype=torch.float64)

    def after(alpha):
        return energy(normed(x + alpha * descent(normed(x, gain), *weights), gain), *weights)

    assert after(0.0) - after(1e-3) > 1e-4 * after(0.0).abs()


def test_one_gain_has_a_definite_slope_and_a_gain_per_feature_has_not_hm_3(parts):
    x = parts[0][0]
    one = torch.tensor([0.8], dtype=torch.float64)
    each = torch.tensor([0.1, 3.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    slope = torch.autograd.functional.jacobian
    J = slope(lambda x: normed(x, one), x)
    torch.testing.assert_close(J, J.mT, atol=1e-12, rtol=0)
    assert torch.linalg.eigvalsh(J).min() > -1e-12
    J = slope(lambda x: normed(x, each), x)
    lowest, directions = torch.linalg.eigh((J + J.mT) / 2)
    assert lowest[0] < -0.1
    # An energy that is linear in g rises on the step along its own descent.
    e = directions[:, 0]
    assert e @ (normed(x + 1e-3 * e, each) - normed(x, each)) < -1e-5


def test_erratum_e10_j_the_code_keeps_the_own_key_that_the_paper_drops(parts):
    g, W_q, W_k, _ = parts
    kept = gradient(lambda g: energy_of_attention(g, W_q, W_k), g)
    dropped = gradient(lambda g: energy_of_attention(g, W_q, W_k, own_key=False), g)
    assert (kept - dropped).norm() > 0.1 * kept.norm()


def test_erratum_e10_j_the_slope_through_the_norm_is_another_direction(parts):
    x, *weights = parts
    gain = torch.tensor([0.8], dtype=torch.float64)
    through = -gradient(lambda x: energy(normed(x, gain), *weights), x)
    step = descent(normed(x, gain), *weights)
    # Through the norm nothing changes the mean of a token; the step of the paper does.
    assert through.mean(dim=-1).abs().max() < 1e-12
    assert step.mean(dim=-1).abs().max() > 0.1
