"""One page of what the layers of a model do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ....solvers.solution import Array
from ...figures import forget, panels, plain, save
from .depth_figures import PROBLEMS, draw_curves
from .observed import Layer
from .origins import matrices_of, problems_of
from .sources import Source

_SIZE = 12.4, 16.2  # inches
_N_MAPS = 6  # layers
_N_SHOWN = 2  # images


def draw_page(
    table: pd.DataFrame, layers: list[Layer], source: Source, name: str, directory: Path
) -> None:
    """Draw inspect.png and .pdf."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    parts: Any = figure.subfigures(3, 1, height_ratios=[9.2, 3.4, 2.7])
    curves, maps, matrices = parts
    axes = curves.subplots(3, 4).ravel()
    draw_curves(axes, table, layers)
    curves.suptitle(f"{Path(name).name}, {source.weights}; {source.shown}", fontsize=12)
    _draw_maps(maps, layers, source.images)
    _draw_matrices(matrices, table, layers)
    save(figure, directory / "inspect.png")


def draw_training(metrics: Sequence[dict[str, Any]], directory: Path) -> bool:
    """Draw training.png and .pdf, if condition numbers were kept in the metrics of a run."""
    forget(directory / "training.png")
    table = pd.DataFrame(list(metrics))
    columns = table.filter(regex=r"^log10_condition_\w+ \d+$").columns
    if columns.empty:
        return False
    rows = table.dropna(subset=columns)
    depth = max(int(column.rpartition(" ")[2]) for column in columns)
    colours = colormaps["viridis"](np.linspace(0.0, 0.88, depth))
    titles = {
        "before": "Tokens before attention", "branch": "Attention alone, no skip",
        "after": "With skip connection",
    }  # fmt: skip
    figure, axes = panels(len(titles), (3.6, 3.0), sharey=True)
    for own, (name, title) in zip(axes, titles.items(), strict=True):
        for number, colour in enumerate(colours, start=1):
            values = rows[f"log10_condition_{name} {number}"]
            own.plot(rows.step, values, color=colour, label=f"{number}", marker=".")
        own.set_title(title, fontsize=9.5, loc="left")
        own.set_xlabel("training step")
        plain(own)
    axes[0].set_ylabel("log10 condition number, median")
    axes[0].legend(title="layer", ncols=2, frameon=False, fontsize=8)
    save(figure, directory / "training.png")
    return True


def _draw_maps(figure: Any, layers: list[Layer], images: torch.Tensor) -> None:
    """Where the class token looks, or what all tokens together do; means over heads."""
    shown = [(n, layer) for n, layer in enumerate(layers, start=1) if _on_grid(layer, len(images))]
    if not shown:
        return
    places = np.linspace(0, len(shown) - 1, _N_MAPS).round().astype(int)
    picked = [shown[place] for place in np.unique(places)]
    n_rows = min(_N_SHOWN, len(images))
    axes = figure.subplots(n_rows, len(picked) + 1, squeeze=False)
    for row in range(n_rows):
        picture = images[row].numpy()
        picture = (picture - picture.min()) / (np.ptp(picture) or 1.0)
        one = picture[0] if len(picture) != 3 else np.moveaxis(picture, 0, 2)
        axes[row, 0].imshow(one, cmap="gray", interpolation="nearest")
        for own, (number, layer) in zip(axes[row, 1:], picked, strict=True):
            found = [_map(layer, image) for image in range(n_rows)]
            _draw(figure, own, found[row], signed=any(weights.min() < 0 for weights in found))
            if row == 0:
                own.set_title(f"layer {number}", fontsize=9)
    axes[0, 0].set_title("image", fontsize=9)
    for own in axes.ravel():
        own.set_xticks([])
        own.set_yticks([])
    of_class = shown[0][1].seen.arguments["context"].n_class_tokens > 0
    who = "of the class token" if of_class else "received, mean of all queries"
    figure.suptitle(f"Attention weights {who}, mean of heads, for each patch", fontsize=10)


def _on_grid(layer: Layer, n_images: int) -> bool:
    """Whether the layer's tokens are those of whole images on a grid."""
    context = layer.seen.arguments.get("context")
    if context is None or context.grid is None:
        return False
    n_tokens = context.n_class_tokens + context.grid[0] * context.grid[1]
    shape = layer.seen.matrix.shape
    return (shape[0], *shape[-2:]) == (n_images, n_tokens, n_tokens)


def _map(layer: Layer, image: int) -> Array:
    context = layer.seen.arguments["context"]
    weights = layer.seen.matrix[image].mean(dim=0)
    row = weights[0] if context.n_class_tokens else weights.mean(dim=0)
    return row[context.n_class_tokens :].reshape(context.grid).numpy()


def _draw_matrices(figure: Any, table: pd.DataFrame, layers: list[Layer]) -> None:
    """The head that is most like some C*, beside all of them."""
    heads = table[table["kind"] == "head"]
    columns = [f"{key}_cosine" for key in PROBLEMS if f"{key}_cosine" in heads]
    if not columns:
        return
    best = heads.loc[heads[columns].max(axis=1).idxmax()]
    layer = layers[int(best.layer) - 1]
    problems = problems_of(layer)
    assert problems is not None
    A = matrices_of(layer)[int(best["head"])]
    pictures = {f"layer {int(best.layer)}, head {int(best['head']) + 1}": A}
    for key, C in problems.solved.items():
        pictures[f"{PROBLEMS[key]}, cosine {best[f'{key}_cosine']:.2f}"] = C
    axes = figure.subplots(1, len(pictures))
    for own, (title, matrix) in zip(axes, pictures.items(), strict=True):
        _draw(figure, own, matrix, signed=matrix.min() < 0, cut=0.995)
        own.set_title(title, fontsize=8.5)
        own.tick_params(labelsize=7)
        for axis in (own.xaxis, own.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("token", fontsize=8.5)
    chance = [
        f"{words} {heads[[f'{null}_{column}' for column in columns]].max(axis=None):.2f}"
        for null, words in (("permuted", "permuted tokens"), ("random", "random weights"))
        if f"{null}_{columns[0]}" in heads
    ]
    figure.suptitle(
        "The head most like a classical problem's C* on the same tokens, first image\n"
        f"(highest cosine by chance: {', '.join(chance)})",
        fontsize=10,
    )  # fmt: skip


def _draw(figure: Any, own: Axes, matrix: Array, *, signed: bool, cut: float = 1.0) -> None:
    """From 0 on, or, if signed, blue below zero and red above.

    What is above the quantile `cut` saturates.
    """
    top = float(np.quantile(np.abs(matrix), cut)) or 1.0
    drawn = own.imshow(
        matrix, cmap="RdBu_r" if signed else "viridis", vmin=-top if signed else 0, vmax=top,
        interpolation="nearest",
    )  # fmt: skip
    bar = figure.colorbar(drawn, ax=own, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=6.5)
