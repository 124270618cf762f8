"""Costs at the sizes of published networks."""

import pandas as pd
import pytest
import torch
from costs import PLAIN, SIZES, build, cost_lines, measure_costs

from twinsolve.bench.costs import size_measures


def test_a_tiny_deit_has_its_published_size_and_attn_scale_adds_a_number_a_head():
    table = pd.DataFrame([measure_costs("DeiT-Ti", row) for row in (PLAIN, "AttnScale")])
    assert table.parameters.tolist() == [5_717_416, 5_717_416 + 12 * 3]  # as timm counts them
    assert table.flops.nunique() == 1
    heads, lines = cost_lines(table)
    assert dict(zip(heads, lines[1], strict=True))["added"] == "+36"


@pytest.mark.parametrize(
    ("width", "n_heads", "found", "printed"), [(192, 4, 2.524, 2.53), (384, 8, 9.327, 9.33)]
)
def test_talking_heads_make_up_for_the_operations_that_a_cait_with_softmax_lacks(
    width, n_heads, found, printed
):
    """As printed by Touvron et al. (2021) and by AO, in 10^9 products with additions."""
    sizes = SIZES["CaiT-XXS24"] | {"dim": width, "num_heads": n_heads}
    plain, talking = (
        size_measures(build(sizes, {"operator": name}), torch.rand(1, 3, 224, 224))
        for name in ("softmax", "talking_heads")
    )
    mixes = 24 * 2 * n_heads**2 * 196**2
    assert talking["flops"] - plain["flops"] == 2 * mixes
    assert talking["parameters"] - plain["parameters"] == 24 * 2 * n_heads**2
    assert talking["flops"] / 2e9 == pytest.approx(found, abs=6e-4)
    assert talking["flops"] / 2e9 == pytest.approx(printed, rel=3e-3)
    assert plain["flops"] / 2e9 < 0.99 * printed
