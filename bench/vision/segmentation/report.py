"""What `twinsolve segment` says of a table."""

import pandas as pd

from ...tables import Lines
from ..paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference
from .study import PLAIN

_SCALES = {"miou": ("one", "pictures"), "miou_multi_scale": ("three", "pictures_multi_scale")}
_HEAD = (
    "model", "scales", "mean IoU %", *COMPARED, "pixels %", "parameters", "ms / picture", "seeds",
)  # fmt: skip


def lines_of(table: pd.DataFrame) -> Lines:
    """Headings and cells: means over seeds, and the difference to the plain model by pairs."""
    verdicts = judge(differences(table))
    rows = []
    for model, own in table.groupby("model", sort=False):
        for column, (scales, _) in _SCALES.items():
            known = verdicts.get((str(model), column))
            cells = known.cells if known else ("-",) * len(COMPARED)
            rows.append(
                (
                    str(model), scales, f"{own[column].mean():.2f}", *cells,
                    f"{own.accuracy.mean():.2f}", f"{own.parameters.iloc[0]:,}",
                    f"{1000 * own.seconds.median():.1f}", str(len(own)),
                )
            )  # fmt: skip
    return _HEAD, rows


def differences(table: pd.DataFrame) -> dict[tuple[str, str], Paired]:
    """Of the mean IoU of each model to the plain one, by model and column."""
    others = [str(name) for name in table.model.unique() if name != PLAIN]
    return {
        (model, column): paired_difference(*(_pictures(table, x, own) for x in (model, PLAIN)))
        for model in others
        for column, (_, own) in _SCALES.items()
        if PLAIN in set(table.model)
    }


def _pictures(table: pd.DataFrame, model: str, column: str) -> pd.DataFrame:
    """Pseudo-values by seed and picture."""
    own = table[table.model == model].set_index("seed")[column]
    return pd.DataFrame.from_dict(own.to_dict(), orient="index")


def notes(table: pd.DataFrame) -> list[str]:
    """How to read the table, where something is compared."""
    apart = differences(table)
    return [note_on_verdicts(apart, of="seeds and test pictures")] if apart else []


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
