"""What exchanged parts cost at the sizes of published networks, untrained.

``python studies/costs.py`` counts parameters and operations, and times inference.
"""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from shared.script import chosen, run_script, write_found

from twinsolve.bench.costs import size_measures, speed_ratios
from twinsolve.bench.jobs import Options
from twinsolve.bench.options import Output, Rows
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.bench.task import PLAIN
from twinsolve.bench.vision.classification.networks import Classifier
from twinsolve.bench.vision.classification.study import ROWS

_IMAGE = {"image_size": 224, "in_channels": 3, "num_classes": 1000}
# Touvron et al. (2021), for DeiT and CaiT; Liu et al. (2021), for Swin.
SIZES: dict[str, dict[str, Any]] = {
    "DeiT-Ti": {"patch_size": 16, "dim": 192, "depth": 12, "num_heads": 3},
    "DeiT-S": {"patch_size": 16, "dim": 384, "depth": 12, "num_heads": 6},
    "CaiT-XXS24": {
        "architecture": "CaiT", "patch_size": 16, "dim": 192, "depth": 24, "num_heads": 4,
    },
    "Swin-T": {
        "architecture": "Swin", "patch_size": 4, "dim": 96, "depths": [2, 2, 6, 2],
        "num_heads": [3, 6, 12, 24], "window_size": 7,
    },
}  # fmt: skip
_NAMES = (
    PLAIN, "NeuTRENO", "twicing", "GRC", "bilateral", "bilateral + GRC", "AttnScale", "FeatScale",
    "symmetric", "sparse coding",
)  # fmt: skip
NOTE = (
    "GMACs are products with additions, 10^9 an image, that torch counts in matrix products and "
    "convolutions; softmax, norms and element-wise steps count nothing. Times are of a processor, "
    "relative to the plain network of that size in the same run. For inference bilateral attention "
    "stores its positions, but not in the windows of a Swin. Nothing is trained."
)
N_TIMED = 2  # images, so that a batch fits into a small memory


def measure_costs(size: str, row: str) -> dict[str, Any]:
    """Parameters, operations of an image, and inference relative to the plain network."""
    images = torch.rand(N_TIMED, 3, 224, 224)
    plain, model = (build(SIZES[size], options) for options in ({}, ROWS[row]))
    return {
        "size": size, "row": row, **size_measures(model, images),
        **speed_ratios(model, plain, images),
    }  # fmt: skip


def build(sizes: dict[str, Any], options: dict[str, Any]) -> Classifier:
    """An untrained network for 1,000 classes of 224 x 224 pixels."""
    torch.manual_seed(0)
    model = Classifier(_IMAGE | sizes | options, mean=[0.5] * 3, std=[0.25] * 3)
    return model.eval()


def cost_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells; differences are to the plain network of the size."""
    plain = table[table.row == PLAIN].set_index("size")
    lines: list[tuple[str, ...]] = [
        (
            run["size"], run["row"], number(run["parameters"], ",.0f"),
            number(run["parameters"] - plain.parameters[run["size"]], "+,.0f"),
            number(run["flops"] / 2e9, ".3f"),
            number(run["flops"] / plain.flops[run["size"]], ".4f"),
            number(1 / run["inference"], ".2f"), number(1 / run["training"], ".2f"),
        )
        for run in table.to_dict("records")
    ]  # fmt: skip
    head = ("size", "row", "parameters", "added", "GMACs", "x plain", "inference, time", "training")
    return head, lines


def main(
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this network only; may be given again."),
    ] = None,
    row: Rows = None,
    output: Output = Path("results/costs"),
) -> None:
    """Measure every row of every network."""
    rows = dict.fromkeys([PLAIN, *chosen(row, _NAMES, "--row")])
    pairs = [(size, name) for size in chosen(network, SIZES, "--network") for name in rows]

    def run(options: Options) -> pd.DataFrame:
        assert options.progress
        return pd.DataFrame(measure_costs(*pair) for pair in options.progress(pairs, len(pairs)))

    title = "Images of 224 x 224, 1,000 classes"
    study = Study("", title, run, cost_lines, notes=lambda table: [NOTE])
    write_found(__file__, [study], {"network": network, "row": row}, output)


if __name__ == "__main__":
    run_script(__file__)
