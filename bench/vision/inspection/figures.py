"""Figures of `twinsolve inspect`: a page on the layers of a model, and its training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ....solvers.inputs import Array
from ...figures import forget, panels, plain, save
from .measures import Layer, eigenvalue_sizes, matrices_of, problems_of
from .sources import Source

PROBLEMS = {
    "gaussian": "Gaussian smoothing", "least_squares": "least squares", "low_rank": "low rank",
    "sparse": "sparse",
}  # fmt: skip
_N_SPECTRA = 2  # images
_SMALLEST = 1e-17  # smaller values are drawn there
_FLOOR = 1e-7  # smaller singular values are not drawn
_LEGEND_ROW = 0.075  # height of a row, as a share of the panel
# Colours of Okabe and Ito, for colour-blind readers; markers repeat the distinction.
_STYLES: list[dict[str, Any]] = [
    {"color": "#0072B2", "marker": "o"},
    {"color": "#D55E00", "marker": "s"},
    {"color": "#009E73", "marker": "^"},
    {"color": "#CC79A7", "marker": "D"},
]
_LINE: dict[str, Any] = {"markersize": 4.5, "linewidth": 1.4}


class _Panel(NamedTuple):
    """A panel: columns of the table that are drawn over layers, with their labels."""

    title: str
    unit: str
    series: dict[str, str]
    log: bool = False
    of_heads: bool = False  # draw each head and the mean


_PANELS = [
    _Panel(
        "Tokens behind the block", "share, or cosine",
        {"token_cosine": "mean cosine of two tokens", "hc_share": "high frequencies, |HC x| / |x|"},
    ),
    _Panel(
        "High frequencies behind attention", "|HC x| / |x|, and its bounds",
        {
            "hc_attention": "measured", "hc_attention_sharp": "bound by the matrices",
            "hc_attention_bound": "bound by the theorem",
        },
        log=True,
    ),
    _Panel(
        "Energies of the operator's output", "per unit of kernel weight",
        {"J": "J, smoothness", "E": "E, with the pull to first values"}, log=True,
    ),
    _Panel(
        "Condition number", "log10, median of the images",
        {
            "log10_condition_before": "tokens before attention",
            "log10_condition_branch": "attention alone, no skip",
            "log10_condition_after": "with skip connection",
        },
    ),
    _Panel(
        "Second singular value and eigenvalue", "of the attention matrix; dots: each head",
        {"singular_value_2": "singular value", "eigenvalue_2": "|eigenvalue|"}, of_heads=True,
    ),
    _Panel(
        "Singular values of the Jacobian", "output change / input change",
        {
            "jacobian_attention": "attention, largest", "jacobian_block": "block, largest",
            "jacobian_block_median": "block, median", "jacobian_block_smallest": "block, smallest",
        },
        log=True,
    ),
    _Panel(
        "Deviation from the solver", "max |layer - solver| / max |solver|",
        {"deviation": "operator", "tolerance": "tolerance"}, log=True,
    ),
    _Panel(
        "Attention beside solutions C*", "cosine of the matrices, mean of heads",
        {f"{key}_cosine": word for key, word in PROBLEMS.items()},
    ),
]  # fmt: skip


def draw_curves(axes: Any, table: pd.DataFrame, layers: list[Layer]) -> None:
    """Draw the twelve panels."""
    for own, panel in zip(axes[:8], _PANELS, strict=True):
        _draw_panel(own, panel, table)
    _draw_spectra(axes[8:10], layers)
    _draw_nearest(axes[10], table)
    _draw_parameters(axes[11], table)


def _draw_panel(own: Axes, panel: _Panel, table: pd.DataFrame) -> None:
    rows = table[table["kind"] == "layer"].set_index("layer")
    heads = table[table["kind"] == "head"]
    means = heads.groupby("layer").mean(numeric_only=True)
    for (column, label), style in zip(panel.series.items(), _STYLES, strict=False):
        shown = rows if column in rows and rows[column].notna().any() else means
        if column in shown:
            values = shown[column].clip(lower=_SMALLEST) if panel.log else shown[column]
            own.plot(shown.index, values, label=label, **style, **_LINE)
        if panel.of_heads and column in heads:
            dots = {"color": style["color"], "alpha": 0.45, "markersize": 4}
            own.plot(heads.layer, heads[column], ".", **dots)
    if panel.log:
        take_logs(own)
    _finish(own, panel.title, panel.unit)
    own.set_xlim(0.5, len(rows) + 0.5)


def take_logs(own: Axes) -> None:
    """Use a logarithmic scale; if it spans few powers of ten, label ticks between them."""
    own.set_yscale("log")
    low, high = own.get_ylim()
    own.yaxis.set_major_formatter("{x:,.9g}")
    own.yaxis.set_minor_formatter("{x:,.9g}" if high < 100 * low else NullFormatter())
    if 10 * low <= high < 100 * low:
        own.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))


def label_panel(own: Axes, title: str, unit: str, x: str = "layer") -> None:
    """Set the title, the labels and the style of the axes."""
    own.set_title(title, fontsize=9.5, loc="left")
    own.set_xlabel(x, fontsize=8.5)
    own.set_ylabel(unit, fontsize=8.5)
    own.tick_params(labelsize=8, which="both")
    if x == "layer":
        own.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(own)


def _finish(own: Axes, title: str, unit: str, x: str = "layer", loc: Any = "upper left") -> None:
    label_panel(own, title, unit, x)
    if labels := own.get_legend_handles_labels()[1]:
        own.legend(fontsize=7.2, frameon=False, loc=loc)
        if loc == "upper left":
            _make_room(own, _LEGEND_ROW * len(labels))


def _make_room(own: Axes, share: float) -> None:
    """Leave a share of the height above all curves."""
    is_log = own.get_yscale() == "log"
    low, high = np.log10(own.get_ylim()) if is_log else own.get_ylim()
    top = low + (high - low) / (1 - share)
    if not is_log:  # no numbers beside the legend
        own.set_yticks([tick for tick in own.get_yticks() if low <= tick <= high])
    own.set_ylim(top=10**top if is_log else top)


def _draw_spectra(axes: Any, layers: list[Layer]) -> None:
    """Draw singular values and eigenvalues of the matrices, means over heads and images."""
    colours = colormaps["viridis"](np.linspace(0.0, 0.88, len(layers)))
    for number, (layer, colour) in enumerate(zip(layers, colours, strict=True), start=1):
        matrices = layer.seen.attention_matrix[:_N_SPECTRA].flatten(0, 1)
        spectra = [torch.linalg.svdvals(matrices).mean(dim=0).numpy()]
        if matrices.shape[-1] == matrices.shape[-2]:
            spectra.append(eigenvalue_sizes(matrices).mean(axis=0))
        label = f"{number}" if number in (1, len(layers)) or len(layers) < 7 else None
        for own, values in zip(axes, spectra, strict=False):
            shown = np.where(values > _FLOOR, values, np.nan)
            own.plot(range(1, len(values) + 1), shown, color=colour, label=label)
    for own, title in zip(axes, ("Singular values", "|Eigenvalues|"), strict=True):
        own.set_yscale("log")
        _finish(
            own, f"{title} of the attention matrix", "mean of heads, two images", "rank", "best"
        )
        if own.lines:
            own.legend(title="layer", fontsize=7.2, title_fontsize=7.2, frameon=False, ncols=2)


def _draw_nearest(own: Axes, table: pd.DataFrame) -> None:
    """Draw each head's distance from the nearest problem on the tokens."""
    heads = table[table["kind"] == "head"]
    if "nearest_distance" in heads and heads.nearest_distance.notna().any():
        kinds = heads.groupby("nearest", sort=True)
        for (kind, group), style in zip(kinds, _STYLES, strict=False):
            words = str(kind).replace("-self-expression", "").replace("-attention", "")
            known = group.nearest_parameter != "not determined"
            for part, face in ((group[known], style["color"]), (group[~known], "none")):
                own.plot(
                    part.layer, part.nearest_distance, linestyle="", markersize=5,
                    markerfacecolor=face, **style,
                )  # fmt: skip
            own.plot([], [], linestyle="", label=words.replace("-", " "), **style)
        means = heads.groupby("layer").mean(numeric_only=True)
        lines = {
            "permuted_nearest_distance": ("0.7", "-", 3.0, "permuted tokens, mean"),
            "random_nearest_distance": ("k", "--", 0.9, "random weights, mean"),
            "nearest_baseline": ("k", ":", 1.2, "a I + b 11', mean of heads"),
        }
        for column, (colour, line, width, label) in lines.items():
            if column in means:  # one may lie on another
                style = {"color": colour, "linestyle": line, "linewidth": width}
                own.plot(means.index, means[column], label=label, **style)
        own.plot([], [], "ko", markerfacecolor="none", label="hollow: parameter undetermined")
    own.set_ylim(0, 1.05)
    _finish(own, "Nearest classical problem on the tokens", "|A - C*| / |A|, each head")
    own.set_xlim(0.5, table.layer.max() + 0.5)


def _draw_parameters(own: Axes, table: pd.DataFrame) -> None:
    """Draw learned parameters of operators or, without these, fitted parameters."""
    ways = [way for way in ("learned_", "fitted_") if any(c.startswith(way) for c in table)]
    if not ways:
        own.set_visible(False)
        return
    columns = [column for column in table if column.startswith(ways[0])]
    colours = colormaps["viridis"](np.linspace(0, 0.9, len(columns)))
    for number, (column, colour) in enumerate(zip(columns, colours, strict=True)):
        known = table[table[column].notna()]
        each = known[known["kind"] == "head"]
        rows = each if len(each) else known
        own.plot(
            rows.layer, rows[column], linestyle="", marker="osD^vPX*"[number % 8], color=colour,
            markersize=5, label=column.removeprefix(ways[0]).replace("_", " "),
        )  # fmt: skip
    if (table[columns].min() >= 0).all():
        own.set_ylim(bottom=0)
    title = "Learned parameters" if ways[0] == "learned_" else "Fitted parameters"
    _finish(own, f"{title}, each head", "own units")
    own.set_xlim(0.5, table.layer.max() + 0.5)


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
    """Draw training.png and .pdf if the metrics of a run have condition numbers."""
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
    """Draw attention weights of the class token, else means over queries; means over heads."""
    shown = [
        (n, layer) for n, layer in enumerate(layers, start=1) if _is_on_grid(layer, len(images))
    ]
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
            found = [_average_weights(layer, image) for image in range(n_rows)]
            _draw_matrix(
                figure, own, found[row], signed=any(weights.min() < 0 for weights in found)
            )
            if row == 0:
                own.set_title(f"layer {number}", fontsize=9)
    axes[0, 0].set_title("image", fontsize=9)
    for own in axes.ravel():
        own.set_xticks([])
        own.set_yticks([])
    of_class = shown[0][1].seen.arguments["context"].n_class_tokens > 0
    who = "of the class token" if of_class else "received, mean of all queries"
    figure.suptitle(f"Attention weights {who}, mean of heads, for each patch", fontsize=10)


def _is_on_grid(layer: Layer, n_images: int) -> bool:
    """Whether the layer attends among all tokens of a grid, image by image."""
    context = layer.seen.arguments.get("context")
    if context is None or context.grid is None:
        return False
    n_tokens = context.n_class_tokens + context.grid[0] * context.grid[1]
    shape = layer.seen.attention_matrix.shape
    return (shape[0], *shape[-2:]) == (n_images, n_tokens, n_tokens)


def _average_weights(layer: Layer, image: int) -> Array:
    context = layer.seen.arguments["context"]
    weights = layer.seen.attention_matrix[image].mean(dim=0)
    row = weights[0] if context.n_class_tokens else weights.mean(dim=0)
    return row[context.n_class_tokens :].reshape(context.grid).numpy()


def _draw_matrices(figure: Any, table: pd.DataFrame, layers: list[Layer]) -> None:
    """Draw the head that is closest to a C*, beside all C*."""
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
        _draw_matrix(figure, own, matrix, signed=matrix.min() < 0, cut=0.995)
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


def _draw_matrix(figure: Any, own: Axes, matrix: Array, *, signed: bool, cut: float = 1.0) -> None:
    """Draw a matrix on a scale from 0 or, if signed, with blue below zero and red above.

    Sizes above the quantile `cut` saturate.
    """
    top = float(np.quantile(np.abs(matrix), cut)) or 1.0
    drawn = own.imshow(
        matrix, cmap="RdBu_r" if signed else "viridis", vmin=-top if signed else 0, vmax=top,
        interpolation="nearest",
    )  # fmt: skip
    bar = figure.colorbar(drawn, ax=own, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=6.5)
