"""What `twinsolve segment` says of its table, and its pictures."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from ...comparison import (
    CURVES,
    Column,
    baselines_of,
    compared_lines,
    rows_study,
)
from ...figures import panels, save
from ...paired import Paired, judge, note_on_verdicts, paired_difference
from ...run_folder import load_model
from ...study import Study
from ...tables import Lines, number
from .data import CAMVID, levels, load_scenes
from .quality import scores_of
from .study import segment

_N_SHOWN = 3
_SCALES = {"miou": "pictures", "miou_multi_scale": "pictures_multi_scale"}
_AFTER: dict[str, Column] = {
    "pixels %": lambda _, mean: number(mean.accuracy, ".2f"),
    "mean class accuracy %": lambda _, mean: number(mean.get("class_accuracy"), ".2f"),
    "parameters": lambda _, mean: number(mean.parameters, ",.0f"),
    "ms / picture": lambda _, mean: number(1000 * mean.seconds, ".1f"),
}


def scenes_study(data: str, data_home: str | None, **options: Any) -> Study:
    """The study of segmenters on the data, with options of `segment`."""
    more: dict[str, Callable[[pd.DataFrame], Lines]] = {
        "Over three scales": partial(lines_of, column="miou_multi_scale"),
        "IoU of each class, %": class_lines,
        "Mean cosine of two tokens, by layer": cosine_lines,
    }
    return rows_study(
        f"{'CamVid' if data == CAMVID else data}, test pictures",
        partial(segment, data, **options), lines_of, _named,
        score="mean IoU, points to", curve="mean IoU on validation pictures, %", more=more,
        figures={"scenes.png": partial(draw_scenes, data=data, data_home=data_home)}, notes=notes,
    )  # fmt: skip


def lines_of(table: pd.DataFrame, column: str = "miou") -> Lines:
    """A line for each row: the mean IoU over seeds, and the difference to its baseline."""
    verdicts = {row: each for (row, of), each in judge(differences(table)).items() if of == column}
    before: dict[str, Column] = {"mean IoU %": lambda _, mean: number(mean[column], ".2f")}
    return compared_lines(table, verdicts, before, _AFTER if column == "miou" else {})


def differences(
    table: pd.DataFrame, baselines: Mapping[str, str] | None = None
) -> dict[tuple[str, str], Paired]:
    """Differences in mean IoU of each row to its baseline, by row and column."""
    return {
        (row, column): paired_difference(
            *(_read_pseudo_values(table, name, own) for name in (row, baseline))
        )
        for row, baseline in (baselines or baselines_of(table)).items()
        for column, own in _SCALES.items()
    }


def _named(table: pd.DataFrame) -> dict[str, Paired]:
    """The differences with a name for each row and number of scales."""
    return {
        row if column == "miou" else f"{row}, three scales": each
        for (row, column), each in differences(table).items()
    }


def _read_pseudo_values(table: pd.DataFrame, row: str, column: str) -> pd.DataFrame:
    """Pseudo-values by seed and picture."""
    own = table[table.row == row].set_index("seed")[column]
    return pd.DataFrame.from_dict(own.to_dict(), orient="index")


def notes(table: pd.DataFrame) -> list[str]:
    """How to read the tables."""
    return [
        "Means over seeds, on test pictures that chose no setting. "
        + note_on_verdicts(differences(table), of="seeds and test pictures")
        + " The tables of one scale and of three count as one.",
        *([CURVES.format("pictures")] if "curve" in table else []),
    ]


def class_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells: intersection over union of each class, means over seeds."""
    columns = [name for name in table.columns if name.startswith("iou ")]
    means = table.groupby("row", sort=False)[columns].mean()
    lines = [
        (name.removeprefix("iou "), *(f"{mean:.1f}" for mean in means[name])) for name in columns
    ]
    return ("class", *map(str, means.index)), lines


def cosine_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells: mean cosine of tokens behind each layer, means over seeds."""
    if "cosines" not in table:
        return ("layer",), []
    means = {row: np.mean([*own], axis=0) for row, own in table.groupby("row", sort=False).cosines}
    layers = enumerate(np.transpose([*means.values()]), start=1)
    return ("layer", *map(str, means)), [(f"{n}", *(f"{x:.3f}" for x in own)) for n, own in layers]


def draw_scenes(table: pd.DataFrame, path: Path, *, data: str, data_home: str | None) -> None:
    """Draw test pictures, their labels, and predictions of the first seed."""
    test = load_scenes(data, data_home).test
    first = table[table.seed == table.seed.min()].set_index("row").network
    spread = np.linspace(0, len(test.images) - 1, _N_SHOWN + 2)[1:-1]
    places = np.unique(spread.round().astype(int))
    known = colormaps["tab20"](np.arange(len(test.target_names)) % 20)
    colours = ListedColormap([*known, (0, 0, 0)])
    titles = ["picture", "labels", *map(str, first.index)]
    figure, axes = panels(len(places) * len(titles), (2.1, 1.75), columns=len(titles), margin=1.3)
    options = {"cmap": colours, "vmin": -0.5, "vmax": len(test.target_names) + 0.5}
    networks = [load_model(path.parent / "runs" / folder) for folder in first]
    found = [scores_of(network, levels(test.images[places])) for network in networks]
    for row, place in enumerate(places):
        shown = axes[row * len(titles) : (row + 1) * len(titles)]
        shown[0].imshow(test.images[place])
        shown[1].imshow(test.target[place], **options)
        for axis, scores in zip(shown[2:], found, strict=True):
            axis.imshow(scores[row].argmax(dim=0).numpy(), **options)
        for axis, title in zip(shown, titles, strict=True):
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title, fontsize=10)
    unlabelled = (test.target[places] >= len(test.target_names)).any()
    names = [*test.target_names, *(["no label"] if unlabelled else [])]
    patches = [Patch(color=colours(i), label=name) for i, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside right center", frameon=False, fontsize=8)
    save(figure, path)
