"""What operators cost: memory that grows with the tokens, and the kernel that they reach."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from twinsolve.bench.speed.attention import Setting, TimedAttention, profile_run
from twinsolve.unrolled import operator_names
from twinsolve.unrolled.models import VisionTransformer

# Their own definition takes the whole matrix, on both sides of the twin.
QUADRATIC = {"sinkhorn"}
FUSED = {
    "alibi", "attn_scale", "bilateral", "elliptical", "gaussian", "local", "neutreno", "softmax",
    "symmetric", "tupe", "twicing",
}  # fmt: skip
# Features twice as wide as values, which the fused kernel would want padded with zeros.
KERNEL = {"bilateral": "blocked_attention", "tupe": "blocked_attention"}


@pytest.mark.parametrize("name", operator_names())
def test_peak_memory_grows_linearly_with_the_tokens(name):
    few, many = 256, 1024 if name in QUADRATIC else 2304
    width = 8 if name == "locally_linear" else 32  # it solves a system of this size for each token
    peaks = []
    for tokens in (few, many):
        way = TimedAttention(name, "fused", Setting((1, 1, tokens, width)))
        peaks.append(profile_run(way.train, "cpu").peak_memory)
    exponent = math.log(peaks[1] / peaks[0]) / math.log(many / few)
    if name in QUADRATIC:
        assert exponent > 1.05, f"{name} has become linear: take it off the list"
    else:
        assert exponent <= 1.05


@pytest.mark.parametrize("name", sorted(FUSED))
def test_reaches_the_fused_kernel_and_no_other(name):
    """Unequal widths, masks with gradients or dropout would silently leave it."""
    way = TimedAttention(name, "fused", Setting((2, 3, 300, 16)))
    way.train()
    assert profile_run(way.train, "cpu").kernels == {KERNEL.get(name, "flash_attention_for_cpu")}


def test_neutreno_adds_a_two_thousandth_of_the_operations_of_deit_ti_nt_g4():
    """As many matrix products, and three element-wise operations on each value of a layer."""
    totals = {}
    for name in ("softmax", "neutreno"):
        counter = FlopCounterMode(display=False)
        with torch.device("meta"), torch.no_grad(), counter:
            model = VisionTransformer(224, 16, 3, 1000, 192, 12, 3, operator=name)
            model(torch.zeros(1, 3, 224, 224))
        totals[name] = counter.get_total_flops()
    assert totals["neutreno"] == totals["softmax"]
    added = 3 * 12 * 197 * 192
    assert 1.0005 < 1 + added / totals["softmax"] < 1.0006
