"""Layers and the same by FlexAttention."""

import pytest
import torch
from flex_attention import CAUSAL, NAMES, Way
from torch.testing import assert_close

from twinsolve.bench.speed.attention import Setting


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("name", "causal"), [*((name, False) for name in NAMES), *((name, True) for name in CAUSAL)]
)
def test_both_forms_are_one_layer(name, causal):
    setting = Setting((2, 3, 26, 8), "float64")
    ours, flex = (Way(name, form, setting, causal) for form in ("ours", "flex"))
    flex.inputs = [x.detach() for x in flex.inputs]  # it has no backward pass on the CPU
    with torch.no_grad():
        assert_close(flex.attend(), ours.attend(), atol=1e-6, rtol=0)  # it adds up in float32
