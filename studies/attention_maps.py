"""What attention maps cover: their contrast, the area under the class token, patches that matter.

``python studies/attention_maps.py cifar10:n_train=12000`` trains classifiers with class tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from shared.script import run_script
from shared.seeded_rows import measure_rows
from torch import Tensor

from twinsolve.bench.figures import panels, save
from twinsolve.bench.paired import Paired, paired_difference
from twinsolve.bench.paired_training import trained_network
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.task import PLAIN, row_options
from twinsolve.bench.training import generator_of
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.measures import scores
from twinsolve.bench.vision.classification.study import IMAGES
from twinsolve.unrolled.diagnostics import Observation, map_similarity, record

Array = np.ndarray

ROWS = (PLAIN, "bilateral", "AttnScale")
N_IMAGES = 2000  # test images, at most, spread over all
_BATCH = 250
N_DRAWN, _POOLED = 6, 4  # images of the figure; the side of a block of the pooled maps
HIDDEN = ("none", "most", "least", "random")  # half of the patches, by weight


@torch.no_grad()
def attention_maps(model: Any, levels: Tensor) -> list[Tensor]:
    """Attention matrices of all layers, (images, heads, tokens, tokens), class token first."""
    kept: list[Observation] = []
    with record(model, {"": kept.append}):
        model(levels)
    return [seen.attention_matrix for seen in kept]


def contrast(maps: Tensor) -> Tensor:
    """Standard deviation of the weights of a row over their mean; a mean over rows and heads."""
    return (maps.std(dim=-1, correction=0) / maps.mean(dim=-1)).mean(dim=(-2, -1))


def class_weights(maps: Tensor) -> Tensor:
    """Weights of the class token on patches, means over heads; they sum to 1."""
    weights = maps[..., 0, 1:].mean(dim=-2).clamp(min=0)
    return weights / weights.sum(dim=-1, keepdim=True)


def area(weights: Tensor) -> Tensor:
    """Share of the patches that the weights cover, ``exp(entropy) / n_patches``."""
    return torch.special.entr(weights).sum(dim=-1).exp() / weights.shape[-1]


def head_similarity(maps: Tensor) -> Tensor:
    """Mean absolute cosine of two heads' weights of the class token."""
    return map_similarity(maps[..., 0, 1:].mT)


def hidden_by(weights: Tensor, which: str) -> Tensor:
    """Whether a patch is hidden: the half with the largest or smallest weights, or drawn."""
    if which == "none":
        return torch.zeros_like(weights, dtype=torch.bool)
    if which == "random":
        drawn = [
            generator_of(0, 0, image).random(weights.shape[1]) for image in range(len(weights))
        ]
        weights = torch.from_numpy(np.stack(drawn))
    places = weights.argsort(dim=1, descending=which != "least").argsort(dim=1)
    return places < weights.shape[1] // 2


def spread(n_images: int, most: int) -> Tensor:
    """Indices of at most so many images, evenly over all."""
    return torch.linspace(0, n_images - 1, min(most, n_images)).round().long()


def hide(model: Any, levels: Tensor, hidden: Tensor) -> Tensor:
    """Images whose hidden patches have the mean level of the training images."""
    rows, columns = model.network.grid
    mask = hidden.view(-1, 1, rows, columns).float()
    mask = torch.nn.functional.interpolate(mask, levels.shape[2:]) > 0
    return torch.where(mask, levels.new_tensor(model.mean).view(1, -1, 1, 1), levels)


def measure_maps(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str, seed: int
) -> list[dict[str, Any]]:
    """Train one network, and measure its maps on test images."""
    options = row_options(IMAGES, row) | {"pool": "class"}
    model, splits, _ = trained_network(
        IMAGES, data, data_home, directory, settings, options, settings["candidates"][0], seed
    )
    places = spread(len(splits.test), N_IMAGES)
    levels, target = splits.test.levels[places], splits.test.target[places]
    contrasts: list[Array] = []
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for part in levels.split(_BATCH):
        maps = attention_maps(model, part)
        contrasts.append(np.stack([contrast(own).numpy() for own in maps], axis=1))
        weights = class_weights(maps[-1])
        found.append((weights, area(weights), head_similarity(maps[-1])))
    weights, areas, similarities = (torch.cat(each) for each in zip(*found, strict=True))
    told: dict[str, Any] = {
        "row": row, "seed": seed,
        "contrast": np.concatenate(contrasts).mean(axis=0).tolist(),
        "area": 100 * float(areas.mean()), "head_similarity": float(similarities.mean()),
    }  # fmt: skip
    for which in HIDDEN:
        best = scores(model, hide(model, levels, hidden_by(weights, which))).argmax(dim=1)
        told[which] = 100 * float((best == target).double().mean())
    if seed == 0:
        shown = spread(len(levels), N_DRAWN)
        told |= drawn_maps(model, levels[shown], weights[shown])
    return [told]


def drawn_maps(model: Any, levels: Tensor, weights: Tensor) -> dict[str, Any]:
    """What the figures show: class weights of some images, and maps of the first, pooled."""
    pooled = [
        torch.nn.functional.max_pool2d(maps[:1, 0, 1:, 1:], _POOLED)[0]
        for maps in attention_maps(model, levels[:1])
    ]
    grids = weights.view(-1, *model.network.grid)
    return {
        "class_maps": [_rounded(grid) for grid in grids],
        "first_heads": [_rounded(own) for own in pooled],
    }


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[float(f"{x:.3g}") for x in row] for row in matrix.tolist()]


def apart(table: pd.DataFrame, row: str, column: str) -> Paired:
    """Difference of a row to the plain one, over seeds."""
    values = table.set_index(["row", "seed"])[column]
    return paired_difference(values[row], values[PLAIN])


def written(table: pd.DataFrame, row: str, column: str) -> str:
    """The difference with three decimals; of a single seed, and of the plain row, in words."""
    found = apart(table, row, column)
    if row == PLAIN:
        return "-"
    return found.write(3) if found.determined else str(found)


def class_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: area and likeness of heads in the last layer, with differences."""
    heads = ("area, %", "difference, points", "cosine of heads", "difference of cosines")
    lines = []
    for row, own in table.groupby("row", sort=False):
        cells = [str(row)]
        for column in ("area", "head_similarity"):
            cells.append(number(own[column].mean(), ".1f" if column == "area" else ".3f"))
            cells.append(written(table, str(row), column))
        lines.append(tuple(cells))
    return ("row", *heads), lines


def hidden_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: top-1 with half of the patches hidden."""
    heads = (
        "all shown",
        *(f"{which} weight hidden" for which in HIDDEN[1:3]),
        "random half hidden",
    )
    lines = [
        (
            str(row), *(number(own[which].mean(), ".2f") for which in HIDDEN),
            str(paired_difference(own["random"].reset_index(drop=True),
                                  own["most"].reset_index(drop=True))),
        )
        for row, own in table.groupby("row", sort=False)
    ]  # fmt: skip
    return ("row", *heads, "random - most"), lines


def contrast_lines(table: pd.DataFrame) -> Lines:
    """A line for each layer: contrast of each row, and its difference to the plain one."""
    by_layer = table.explode("contrast").astype({"contrast": float})
    by_layer["layer"] = by_layer.groupby(["row", "seed"]).cumcount() + 1
    rows = list(dict.fromkeys(table.row))
    others = [row for row in rows if row != PLAIN]
    lines = [
        (
            f"{layer}", *(number(own.contrast[own.row == row].mean(), ".3f") for row in rows),
            *(written(own, row, "contrast") for row in others),
        )
        for layer, own in by_layer.groupby("layer")
    ]  # fmt: skip
    return ("layer", *rows, *(f"{row} - {PLAIN}" for row in others)), lines


def draw_class_maps(table: pd.DataFrame, path: Path, data: str, data_home: str | None) -> None:
    """Draw test images, and below each the weights of the class token in every row."""
    levels = load_splits(data, data_home).test.levels
    levels = levels[spread(len(levels), N_IMAGES)]
    levels = levels[spread(len(levels), N_DRAWN)]
    drawn = table[table.class_maps.notna()]
    figure, axes = panels(N_DRAWN * (1 + len(drawn)), (1.3, 1.3), columns=N_DRAWN)
    grid = axes.reshape(-1, N_DRAWN)
    for own, picture in zip(grid[0], levels, strict=True):
        own.imshow(picture.movedim(0, -1).squeeze(-1), cmap="gray")
    for line, (row, maps) in zip(grid[1:], drawn[["row", "class_maps"]].values, strict=True):
        for own, weights in zip(line, maps, strict=True):
            own.imshow(weights, cmap="viridis", vmin=0, vmax=np.max(drawn.class_maps.tolist()))
        line[0].set_ylabel(row)
    grid[0][0].set_ylabel("image")
    _save_bare(figure, axes, path)


def draw_first_heads(table: pd.DataFrame, path: Path) -> None:
    """Draw the first head's map of the first test image, for each row (down) and layer."""
    drawn = table[table.first_heads.notna()]
    depth = len(drawn.first_heads.iloc[0])
    figure, axes = panels(depth * len(drawn), (1.3, 1.3), columns=depth)
    grid = axes.reshape(-1, depth)
    largest = np.max(drawn.first_heads.tolist(), axis=(0, 2, 3))
    for line, (row, maps) in zip(grid, drawn[["row", "first_heads"]].values, strict=True):
        for own, weights, most in zip(line, maps, largest, strict=True):
            own.imshow(weights, cmap="viridis", vmin=0, vmax=most)
        line[0].set_ylabel(row)
    for layer, own in enumerate(grid[0], start=1):
        own.set_title(f"layer {layer}", fontsize=9)
    _save_bare(figure, axes, path)


def _save_bare(figure: Any, axes: Iterable[Axes], path: Path) -> None:
    for own in axes:
        own.set_xticks([])
        own.set_yticks([])
    save(figure, path)


def notes() -> Iterator[str]:
    """How to read the tables."""
    yield (
        "All networks have a class token and take one learning rate. The area is of the class "
        "token's weights on patches in the last layer, means over heads: exp(entropy), in % of the "
        "patches. The cosine is of two heads' weights. Differences are to softmax over seeds, with "
        "95 % intervals that are not corrected."
    )
    yield (
        "Hidden patches get the mean level of the training images: the half with the largest or "
        "the smallest of these weights, or a random half. Top-1 is in %."
    )
    yield (
        "The contrast of a map is the standard deviation of a row's weights over their mean; means "
        f"over rows, heads and test images, at most {N_IMAGES:,} of these. Pooled maps show the "
        f"largest weight of {_POOLED} x {_POOLED} pairs of patches."
    )


def compare_rows(
    results: Results, rows: Sequence[str] | None, *, data: str = "digits", **given: Any
) -> None:
    """Train the rows, and write what their maps cover."""
    table = measure_rows(measure_maps, rows or ROWS, data, **given)
    write_table(table, results.directory)
    results.add_table("Class token in the last layer", class_lines(table))
    results.add_table("Half of the patches hidden", hidden_lines(table))
    results.add_table("Contrast of maps", contrast_lines(table))
    results.add_sentences(notes())
    draw_class_maps(table, results.directory / "class-maps.png", data, given["data_home"])
    draw_first_heads(table, results.directory / "first-heads.png")
    results.write(["class-maps", "first-heads"])


if __name__ == "__main__":
    run_script(__file__)
