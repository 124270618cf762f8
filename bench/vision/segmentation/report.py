"""Report of `twinsolve segment`: tables, sentences, scenes and a figure of quality."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from ....datasets import fetch_camvid
from ...figures import panels, plain, save
from ...paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference
from ...run_folder import load_model
from ...tables import Lines, Results, write_table
from .study import PLAIN, levels, scores_of

_N_SHOWN = 3
_SCALES = {"miou": ("one", "pictures"), "miou_multi_scale": ("three", "pictures_multi_scale")}
_HEAD = ("model", "scales", "mean IoU %", *COMPARED, "pixels %")
_CLASSES = "mean class accuracy %"  # missing in tables of old runs
_SIZE = ("parameters", "ms / picture", "seeds")


def write_report(table: pd.DataFrame, results: Results, *, data_home: str | None) -> None:
    """Print and write the results."""
    write_table(table, results.directory)
    results.add_table("CamVid, test pictures", lines_of(table), file="models")
    results.add_table("IoU of each class, %", class_lines(table))
    results.add_sentences(notes(table))
    draw_quality(table, results.directory)
    draw_scenes(table, results.directory, data_home=data_home)
    results.write(["quality", "scenes"])


def lines_of(table: pd.DataFrame) -> Lines:
    """Headings and cells: means over seeds, and the paired difference to the plain model."""
    verdicts = judge(differences(table))
    of_classes = ["class_accuracy"] if "class_accuracy" in table else []
    rows = []
    for model, own in table.groupby("model", sort=False):
        for column, (scales, _) in _SCALES.items():
            known = verdicts.get((str(model), column))
            cells = known.cells if known else ("-",) * len(COMPARED)
            rows.append(
                (
                    str(model), scales, f"{own[column].mean():.2f}", *cells,
                    f"{own.accuracy.mean():.2f}", *(f"{own[x].mean():.2f}" for x in of_classes),
                    f"{own.parameters.iloc[0]:,}", f"{1000 * own.seconds.median():.1f}",
                    str(len(own)),
                )
            )  # fmt: skip
    return (*_HEAD, *[_CLASSES for _ in of_classes], *_SIZE), rows


def differences(table: pd.DataFrame, against: str = PLAIN) -> dict[tuple[str, str], Paired]:
    """Differences in mean IoU of each model to one of them, by model and column."""
    others = [str(name) for name in table.model.unique() if name != against]
    return {
        (model, column): paired_difference(
            *(_read_pseudo_values(table, x, own) for x in (model, against))
        )
        for model in others
        for column, (_, own) in _SCALES.items()
        if against in set(table.model)
    }


def _read_pseudo_values(table: pd.DataFrame, model: str, column: str) -> pd.DataFrame:
    """Pseudo-values by seed and picture."""
    own = table[table.model == model].set_index("seed")[column]
    return pd.DataFrame.from_dict(own.to_dict(), orient="index")


def notes(table: pd.DataFrame) -> list[str]:
    """A sentence on how to read differences, if there are any."""
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


def draw_scenes(table: pd.DataFrame, directory: Path, *, data_home: str | None) -> None:
    """Draw scenes.png: test pictures, their labels, and predictions of the first seed."""
    test = fetch_camvid(subset="test", data_home=data_home)
    seed = table.seed.min()
    models = list(dict.fromkeys(table[table.seed == seed].model))
    numbers = np.linspace(0, len(test.images) - 1, _N_SHOWN + 2).round().astype(int)[1:-1]
    colours = ListedColormap([*colormaps["tab20"].colors[: len(test.target_names)], (0, 0, 0)])  # type: ignore[attr-defined]
    figure, axes = panels(
        _N_SHOWN * (2 + len(models)), (2.1, 1.75), columns=2 + len(models), margin=1.3
    )
    options = {"cmap": colours, "vmin": -0.5, "vmax": len(test.target_names) + 0.5}
    titles = ["picture", "labels", *models]
    found = {
        name: scores_of(load_model(directory / f"{name}-{seed}"), levels(test.images[numbers]))
        for name in models
    }
    for row, number in enumerate(numbers):
        shown = axes[row * len(titles) : (row + 1) * len(titles)]
        shown[0].imshow(test.images[number])
        shown[1].imshow(test.target[number], **options)
        for axis, name in zip(shown[2:], models, strict=True):
            axis.imshow(found[name][row].argmax(dim=0).numpy(), **options)
        for axis, title in zip(shown, titles, strict=True):
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title, fontsize=10)
    names = [*test.target_names, "no label"]
    patches = [Patch(color=colours(i), label=name) for i, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside right center", frameon=False, fontsize=8)
    save(figure, directory / "scenes.png")


def draw_quality(table: pd.DataFrame, directory: Path) -> None:
    """Draw quality.png: mean intersection over union of each run, at one and three scales."""
    models = list(dict.fromkeys(table.model))
    figure, axes = panels(2, (4.2, 0.5 + 0.35 * len(models)), sharey=True)
    columns = {"miou": "one scale", "miou_multi_scale": "three scales"}
    for axis, (column, title) in zip(axes, columns.items(), strict=True):
        for place, model in enumerate(models):
            values = table[table.model == model][column]
            axis.plot(values, [place] * len(values), "o", color="C0", alpha=0.7)
            axis.plot(values.mean(), place, "|", color="black", markersize=16)
        axis.set_xlabel("mean IoU on the test pictures, %")
        axis.set_title(f"{title}: a dot a seed, a bar their mean", fontsize=10)
        axis.set_yticks(range(len(models)), models)
        plain(axis, "x")
    axes[0].invert_yaxis()
    save(figure, directory / "quality.png")
