import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from twinsolve.unrolled import Gaussian, Softmax

from .draws import tokens
from .fused_kernel import BLOCKED, FUSED, dispatched_attention


@pytest.mark.parametrize(
    ("shape", "additive"), [((64, 64), True), ((3, 64, 64), False), ((2, 1, 1, 64), True)]
)
def test_reaches_kernels_without_the_matrix_with_masks(shape, additive):
    """Of pairs, the one that computes logits in float64."""
    q = tokens(2, 3, 64, 16, dtype=torch.float32)
    mask = torch.ones(shape, dtype=torch.bool)
    mask = torch.zeros(shape) if additive else mask
    found = dispatched_attention(lambda: Gaussian(1.0)(q, q, q, mask=mask))
    assert found == {FUSED if shape[-2] == 1 else BLOCKED}


def test_default_bandwidth_is_scaled_dot_product_attention_on_equal_key_norms():
    q, k, v = tokens(2, 3, 8, 5), normalize(tokens(2, 3, 8, 5, seed=1), dim=-1), tokens(2, 3, 8, 4)
    expected = Softmax()(q, k, v)
    assert_close(Gaussian()(q, k, v), expected, atol=1e-13, rtol=0)
    assert (Gaussian()(q, 2 * tokens(2, 3, 8, 5), v) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("mask", [None, torch.ones(64, 64, dtype=torch.bool), torch.zeros(64, 64)])
def test_far_from_the_origin_float32_stays_exact(mask):
    """EQUATIONS FF-4: 3e-3 or worse uncentred, 3e-7 centred."""
    x, v = tokens(64, 8) + 100, tokens(64, 4, seed=1)
    exact = Gaussian(1.0)(x.float().double(), x.float().double(), v)
    single = Gaussian(1.0)(x.float(), x.float(), v.float(), mask=mask)
    assert (single.double() - exact).abs().max() < 5e-6
    causal = Gaussian(1.0)(x.float(), x.float(), v.float(), is_causal=True)
    exact = Gaussian(1.0)(x.float().double(), x.float().double(), v, is_causal=True)
    assert (causal.double() - exact).abs().max() < 5e-6


@pytest.mark.parametrize("offset", [0, 300])
def test_gradients_far_from_the_origin_under_masks_of_pairs(offset):
    q, k, v = (tokens(40, 8, seed=seed).float() for seed in range(3))
    mask = (tokens(40, 40, seed=3) > 0) | torch.eye(40, dtype=torch.bool)
    inputs = [x.requires_grad_() for x in (q + offset, k + offset, v)]
    weight, gradients = tokens(40, 8, seed=4), []
    for dtype in (torch.float32, torch.float64):
        wide = [x.to(dtype) for x in inputs]
        out = Gaussian(1.0)(*wide, mask=mask)
        gradients.append(torch.autograd.grad((weight.to(dtype) * out).sum(), inputs))
    for found, exact in zip(*gradients, strict=True):
        assert (found - exact).abs().max() < 5e-6 * exact.abs().max()


def test_bfloat16_keeps_the_key_norms():
    """One bf16 feature for |k|^2 / 2 would be off by up to 2^-9 of it, 0.1 in a logit here."""
    x = 3 * tokens(1, 1, 128, 16)
    v = tokens(1, 1, 128, 4, seed=1)
    rounded = x.bfloat16()
    A = Gaussian(2.0).matrix(rounded.double(), rounded.double())
    found = Gaussian(2.0)(rounded, rounded, v.bfloat16())
    assert (found.double() - A @ v.bfloat16().double()).abs().max() < 0.05


@pytest.mark.parametrize("side", [4, 15, 16, 32])
def test_centre_is_amid_the_keys_whatever_a_few_of_them_are(side):
    """One column of an image is far away, and float32 keeps the digits of the others."""
    q, k, v = (tokens(2, side**2, 8, seed=seed) for seed in range(3))
    q, k = q + 1e4, k + 1e4
    k[:, ::side] += 1e5
    q, k, v = q.float(), k.float(), v.float()
    expected = Gaussian(1.0).matrix(q.double(), k.double()) @ v.double()
    assert_close(Gaussian(1.0)(q, k, v).double(), expected, atol=1e-4, rtol=0)
