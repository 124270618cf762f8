"""What `twinsolve segment` says of a table."""

import pandas as pd

from ...tables import Lines
from ..paired import paired_difference
from .study import PLAIN

HEADINGS = (
    "model", "mean IoU %", "to plain", "multi-scale %", "to plain", "pixels %", "parameters",
    "ms / picture", "seeds",
)  # fmt: skip


def lines_of(table: pd.DataFrame) -> Lines:
    """Headings and cells: means over seeds, and the difference to the plain model by pairs."""
    by_seed = table.set_index(["model", "seed"])
    models = list(dict.fromkeys(table.model))
    rows = []
    for model in models:
        own = by_seed.loc[model]
        cells = [model]
        for column in ("miou", "miou_multi_scale"):
            cells.append(f"{own[column].mean():.2f}")
            known = model != PLAIN and PLAIN in models
            reference = by_seed.loc[PLAIN][column] if known else own[column].iloc[:0]
            cells.append(str(paired_difference(own[column], reference)))
        cells += [f"{own.accuracy.mean():.2f}", f"{own.parameters.iloc[0]:,}"]
        cells += [f"{1000 * own.seconds.median():.1f}", str(len(own))]
        rows.append(tuple(cells))
    return HEADINGS, rows


def class_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells: intersection over union of each class, means over seeds."""
    columns = [name for name in table.columns if name.startswith("iou ")]
    models = list(dict.fromkeys(table.model))
    means = table.groupby("model")[columns].mean()
    rows = [
        (name.removeprefix("iou "), *(f"{means.loc[model, name]:.1f}" for model in models))
        for name in columns
    ]
    return ("class", *models), rows
