"""Costs at the sizes of published networks."""

import pandas as pd
from costs import PLAIN, cost_lines, measure_costs


def test_a_tiny_deit_has_its_published_size_and_attn_scale_adds_a_number_a_head():
    table = pd.DataFrame([measure_costs("DeiT-Ti", row) for row in (PLAIN, "AttnScale")])
    assert table.parameters.tolist() == [5_717_416, 5_717_416 + 12 * 3]  # as timm counts them
    assert table.flops.nunique() == 1
    heads, lines = cost_lines(table)
    assert dict(zip(heads, lines[1], strict=True))["added"] == "+36"
