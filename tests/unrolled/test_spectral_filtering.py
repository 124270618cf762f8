import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from twinsolve.unrolled import AttnScale, ReAttention, Softmax, SparseCoding
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
    assert seen.largest <= 4 * 3 * 256 * 2048
