"""Pictures of what segmenters find."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from ....datasets import fetch_camvid
from ...figures import panels, plain, save
from ..run_folder import load_model
from .pictures import levels
from .quality import scores_of

_N_SHOWN = 3


def draw_scenes(table: pd.DataFrame, directory: Path, *, data_home: str | None) -> None:
    """Test pictures, their classes, and what each model of the first seed finds."""
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
    """Mean intersection over union of each run, single- and multi-scale."""
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
