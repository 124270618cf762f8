import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from twinsolve.unrolled import (
    AttnScale,
    FeatScale,
    Gaussian,
    ReAttention,
    Softmax,
    SparseCoding,
)
from twinsolve.unrolled.spectral_filtering import visible_mean

from .draws import tokens

N = 7


def attn_scale(base, omega=0.4, **arguments):
    layer = AttnScale(base, **arguments).double()
    torch.nn.init.constant_(layer.omega, omega)
    return layer


class Recorder(TorchDispatchMode):
    """Names of the operators that run, and the largest tensor of numbers that they make."""

    def __init__(self):
        super().__init__()
        self.names, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func.__name__)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


def recorded(run):
    with Recorder() as recorder:
        run()
    return recorder


def test_matrix_in_its_three_forms():
    """AO-7 to AO-9: scaled high-pass part, fused form, scaled values."""
    q, k = tokens(2, 3, N, 4), tokens(2, 3, N, 4, seed=1)
    A, w = Softmax().matrix(q, k), 0.4
    uniform = torch.full((N, N), 1 / N, dtype=torch.float64)
    identity = torch.eye(N, dtype=torch.float64)
    H = identity - uniform
    found = attn_scale(Softmax(), w).matrix(q, k)
    assert_close(found, uniform + (1 + w) * (A - uniform), atol=1e-12, rtol=0)
    assert_close(found, A @ (identity + w * H), atol=1e-12, rtol=0)
    printed = A @ (identity + w * (identity - 1))  # erratum E1-l: I - 1 1^T
    assert (found - printed).abs().max() > 0.1


@pytest.mark.parametrize("masks", ["causal", "padding", "padding and causal"])
def test_builds_no_matrix_and_keeps_the_fused_kernel(masks):
    n, x = 700, torch.randn(1, 2, 700, 4)
    arguments = {"is_causal": True} if "causal" in masks else {}
    layer = AttnScale(Softmax(), num_heads=2)
    if masks == "padding and causal":  # the kernel itself needs the mask of pairs; the mean none
        mask = (torch.arange(n) < 600)[None]
        seen = recorded(lambda: visible_mean(x, mask=mask, is_causal=True))
        assert seen.largest <= 8 * x.nbytes
        return
    if masks == "padding":
        arguments["mask"] = (torch.arange(n) < 600).expand(1, 1, 1, n)
    seen = recorded(lambda: layer(x, x, x, **arguments).sum())
    assert "_scaled_dot_product_flash_attention_for_cpu.default" in seen.names
    assert seen.largest <= 8 * x.nbytes < 4 * n * n


@pytest.mark.parametrize("padded", [False, True])
def test_a_causal_scale_combines_all_masks(padded):
    """Beside a mask of pairs and padding, each token has the mean of those that all allow."""
    layer, x = FeatScale(4).double(), tokens(2, N, 4)
    torch.nn.init.constant_(layer.s, 0.7)
    pairs = tokens(N, N, seed=1) > 0.5
    padding = torch.arange(N).expand(2, N) == 1 if padded else None
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    found = layer(x, padding, pairs, is_causal=True)
    assert_close(found, layer(x, padding, pairs | later))
    seen = ~(pairs | later) if padding is None else ~(pairs | later | padding[:, None])
    mean = seen.double() @ x / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    assert_close(found, x + 0.7 * mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reattention_takes_masks_of_the_tokens_dtype(dtype):
    q = tokens(2, 3, N, 4).to(dtype)
    bias = tokens(N, N, seed=1).to(dtype).masked_fill(tokens(N, N, seed=2) > 1, -torch.inf)
    for base in (Softmax(), Gaussian(0.9, num_heads=3, learnable=True)):
        layer = ReAttention(base, 3)
        for is_causal in (False, True):
            found = layer(q, q, q, mask=bias, is_causal=is_causal)
            expected = layer(q, q, q, mask=bias.float(), is_causal=is_causal)
            assert_close(found, expected, atol=0, rtol=0)
            matrices = (
                layer.matrix(q, q, mask=mask, is_causal=is_causal) for mask in (bias, bias.float())
            )
            assert_close(*matrices, atol=0, rtol=0)


def test_means_of_many_large_values_neither_overflow_nor_drift():
    dtype = torch.float16
    v = torch.full((5000, 1), 100.0, dtype=dtype)
    mask = torch.ones(1, 5000, dtype=torch.bool)
    for arguments in ({}, {"is_causal": True}, {"mask": mask}, {"mask": mask, "is_causal": True}):
        found = visible_mean(v, **arguments)
        assert found.dtype == dtype
        assert (found == 100).all()


def test_a_base_that_is_not_row_stochastic_is_warned_about_but_the_algebra_holds():
    with pytest.warns(UserWarning, match="AttnScale: SparseCoding is not row stochastic"):
        layer = attn_scale(SparseCoding(0.2).double())
    x = tokens(2, 3, N, 4)
    expected = 1.4 * layer.base(x, x, x) - 0.4 * x.mean(dim=-2, keepdim=True)
    assert_close(layer(x, x, x), expected)
    assert not layer.row_stochastic


def test_re_attention_takes_blocks_of_queries():
    x = torch.randn(1, 3, 2048, 4, requires_grad=True)
    layer = ReAttention(Softmax(), 3)
    seen = recorded(lambda: layer(x, x, x).sum().backward())
    assert seen.largest <= 8 * 3 * 256 * 2048


@pytest.mark.parametrize("base", [Softmax, lambda: Gaussian(1.0)])
def test_re_attention_keeps_digits_where_heads_nearly_agree(base):
    """The norm divides by 1/300 there, and rounding of float32 maps would count so much more."""
    tokens_of_heads = tokens(1, 1, 6, 8) + 1e-3 * tokens(1, 3, 6, 8, seed=1)
    inputs = [x.float().requires_grad_() for x in (tokens_of_heads,) * 3]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    layer = ReAttention(base(), 3)
    outputs = layer(*inputs), layer.double()(*exact)
    found, expected = (
        (out, *torch.autograd.grad(out.square().sum(), given))
        for out, given in zip(outputs, (inputs, exact), strict=True)
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a.double(), b, atol=2e-6 * float(b.detach().abs().max()), rtol=0)
