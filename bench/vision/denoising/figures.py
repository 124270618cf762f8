"""Figures of `twinsolve denoise`: images, quality, and learned parameters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from torch import nn

from ....solvers.inputs import Array
from ...figures import legend, log_ticks, panels, plain, save
from .methods import SOLVER, find_entry
from .networks import apply, first_layers, has_twin, layers_of, readable, started
from .picture_arrays import is_volume, levels_of
from .study import NoisyImages, quality

_SHOWN = 128  # side of the crops
_MARKS = {"solved": "s", "peer": "^", "start": "o", "trained": "D", "own": "P"}
_COLOURS = {  # of Okabe and Ito, for colour-blind readers
    "solved": "#0072B2", "peer": "#999999", "start": "#E69F00", "trained": "#D55E00",
    "own": "#009E73",
}  # fmt: skip


def draw_crops(
    methods: Sequence[tuple[str, str]], given: NoisyImages, path: Path, *, sigma: float
) -> None:
    """Draw the first image by methods, given as name and kind, above the errors."""
    level, clean = sigma / 255, given.clean[0]
    noisy, square = given.noisy(0, level), find_busiest_square(_middle_slice(clean))
    pictures = {"clean": clean, "noisy": noisy}
    for method, kind in methods:
        label = method if kind == "solved" else _shorten(method)
        pictures[label] = np.asarray(find_entry(method).denoiser(level)[0](noisy, level))
    figure, axes = panels(2 * len(pictures), (2.1, 2.35), columns=len(pictures))
    for column, (label, image) in enumerate(pictures.items()):
        top, below = axes[column], axes[len(pictures) + column]
        shown, apart = _middle_slice(image), _middle_slice(image - clean)
        top.imshow(shown[square].clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        psnr = "" if column == 0 else f"\n{quality(clean, np.nan_to_num(image))['psnr']:.2f} dB"
        top.set_title(f"{label}{psnr}", fontsize=9)
        error = below.imshow(
            255 * _average_channels(apart)[square], cmap="RdBu_r", vmin=-sigma, vmax=sigma,
            interpolation="nearest",
        )  # fmt: skip
        for each in (top, below):
            each.set_axis_off()
    below = axes[len(pictures) :]
    below[0].set_visible(False)
    bar = figure.colorbar(error, ax=below, location="right", pad=0.005, aspect=15)
    bar.set_label("error in\ngrey levels of 255", fontsize=8)
    of = "the middle slice of " if is_volume(clean) else ""
    title = f"{of}{given.names[0]}, noise {sigma:g} of 255; below, the errors"
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def draw_pair(noisy: Array, denoised: Array, path: Path) -> None:
    """Draw a picture, or the middle slice of a volume, before and after."""
    figure, axes = panels(2, (4.2, 4.2))
    for own, title, pixels in zip(axes, ("noisy", "denoised"), (noisy, denoised), strict=True):
        shown = _middle_slice(levels_of(pixels)[..., 0] if is_volume(pixels) else levels_of(pixels))
        own.imshow(shown.clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        own.set_title(title + ", the middle slice" * is_volume(pixels), fontsize=10)
        own.set_axis_off()
    save(figure, path)


def _shorten(method: str) -> str:
    """The name of a network or of its folder, without the word Denoiser."""
    return Path(method).name.replace("Denoiser", "")


def _middle_slice(image: Array) -> Array:
    """The middle slice of a volume, or the image."""
    return image[len(image) // 2] if is_volume(image) else image


def _average_channels(image: Array) -> Array:
    return image if image.ndim == 2 else image.mean(axis=-1)


def find_busiest_square(image: Array) -> tuple[slice, slice]:
    """The square of a grid in which neighbouring pixels differ most."""
    image = _average_channels(image)
    side = min(_SHOWN, *image.shape)
    steps = np.abs(np.diff(image, axis=0))[:, :-1] + np.abs(np.diff(image, axis=1))[:-1]
    corners = [
        (top, left)
        for top in range(0, image.shape[0] - side + 1, max(side // 2, 1))
        for left in range(0, image.shape[1] - side + 1, max(side // 2, 1))
    ]
    top, left = max(
        corners, key=lambda at: np.nansum(steps[at[0] : at[0] + side, at[1] : at[1] + side])
    )
    return slice(top, top + side), slice(left, left + side)


def draw_quality(found: pd.DataFrame, path: Path, *, sigma: float) -> None:
    """Draw a row for each method, with mean dB, time and parameters."""
    found = found.dropna(subset="psnr")
    found = found[(found.method != "noisy") & ~found.method.str.endswith(SOLVER)]
    found = found.reset_index(drop=True)
    if found.empty:
        return
    best = found.s_per_megapixel[::-1].cummin()[::-1] == found.s_per_megapixel
    columns = {"psnr": "mean PSNR in dB", "s_per_megapixel": "processor seconds\na megapixel"}
    if found.parameters.notna().any():
        columns["parameters"] = "parameters"
    size = 2.4, 2.0 + 0.17 * len(found)
    figure, axes = panels(len(columns), size, margin=2.2, sharey=True)
    for own, (column, label) in zip(axes, columns.items(), strict=True):
        for kind, rows in found.groupby("kind", sort=False):
            faces = np.where(best[rows.index], _COLOURS[kind], "white")
            own.scatter(
                rows[column], rows.index, marker=_MARKS[kind], c=faces, edgecolors=_COLOURS[kind],
                s=32, zorder=3,
            )  # fmt: skip
            own.scatter([], [], marker=_MARKS[kind], color=_COLOURS[kind], label=kind)
        if column != "psnr":
            low, high = np.log10(found[column].agg(["min", "max"]).to_numpy())
            decades = 10.0 ** np.arange(np.floor(low), np.ceil(high) + 1)
            log_ticks(own, "x", decades)
            own.set_xlim(0.8 * decades[0], decades[-1] / 0.8)
        else:
            own.xaxis.set_major_locator(MaxNLocator(4))
        own.tick_params(axis="x", labelsize=8)
        own.set_xlabel(label)
        plain(own)
    names = [name.replace("Denoiser", "") for name in found.method]
    axes[0].set_yticks(found.index, names, fontsize=7.5)
    axes[0].set_ylim(-0.6, len(found) - 0.4)
    legend(figure, "lower center", ncols=len(_MARKS))
    figure.suptitle(
        f"Noise {sigma:g} of 255; filled: no method here is better and faster", fontsize=10
    )
    save(figure, path)


def _find_trained(table: pd.DataFrame, sigma: float) -> list[tuple[str, nn.Module]]:
    """Names and networks of a noise level; only those with a twin, whose start is known."""
    rows = table[(table.kind == "trained") & (table.sigma == sigma)].dropna(subset="psnr")
    found = [(str(name), find_entry(name).network_at(sigma / 255)) for name in rows.method.unique()]
    return [
        (_shorten(name.removesuffix(", trained")), network)
        for name, network in found
        if has_twin(network)
    ]


def draw_layers(table: pd.DataFrame, path: Path, *, given: NoisyImages, sigma: float) -> None:
    """Draw dB on a crop after the first K layers, at the start and trained."""
    if is_volume(given.clean[0]):
        return
    square = find_busiest_square(given.clean[0])
    crop, noisy = given.clean[0][square], given.noisy(0, sigma / 255)[square]
    series = [
        (name, network, len(layers))
        for name, network in _find_trained(table, sigma)
        if (layers := layers_of(network)) is not None
    ]
    if not series:
        return
    figure, axes = panels(len(series), (3.4, 3.2), columns=3, sharey=True)
    for own, (name, network, n_layers) in zip(axes, series, strict=True):
        for kind in ("start", "trained"):
            shown = network if kind == "trained" else started(network)
            counts = range(1, n_layers + 1)
            parts = (apply(first_layers(shown, k), noisy, sigma / 255) for k in counts)
            psnr = [quality(crop, part)["psnr"] for part in parts]
            own.plot(counts, psnr, marker=_MARKS[kind], color=_COLOURS[kind], label=kind)
        own.set_title(name, fontsize=10, loc="left")
        own.set_xlabel("layers K")
        own.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(own)
    axes[0].set_ylabel("PSNR of the crop in dB")
    legend(figure, "lower center", ncols=2)
    save(figure, path)


def draw_learned(table: pd.DataFrame, path: Path, *, sigma: float) -> None:
    """Draw median parameters of each layer, at the start and trained."""
    series: list[tuple[str, list[tuple[int, float, float]]]] = []
    for name, network in _find_trained(table, sigma):
        if layers_of(network) is not None:
            layers = list(zip(readable(network), readable(started(network)), strict=True))
            for key in layers[0][0]:
                rows = [
                    (number, learned[key], start[key])
                    for number, (learned, start) in enumerate(layers, start=1)
                    if key in learned and key in start
                ]
                series.append((f"{name}\n{key}", rows))
    if not series:
        return
    figure, axes = panels(len(series), (2.4, 2.1), columns=4)
    for own, (title, rows) in zip(axes, series, strict=True):
        for kind, column in (("start", 2), ("trained", 1)):
            own.plot(
                [row[0] for row in rows], [row[column] for row in rows], marker=_MARKS[kind],
                color=_COLOURS[kind], label=kind, markersize=4,
            )  # fmt: skip
        own.set_title(title, fontsize=9, loc="left")
        own.xaxis.set_major_locator(MaxNLocator(integer=True))
        own.yaxis.set_major_locator(MaxNLocator(4))
        own.tick_params(labelsize=8)
        plain(own)
        own.set_xlabel("layer", fontsize=8)
    figure.suptitle(
        "Medians of learned parameters; noise, h and thresholds in grey levels of [0, 1]",
        fontsize=10,
        wrap=True,
    )
    legend(figure, "lower center", ncols=2)
    save(figure, path)


def draw_filters(table: pd.DataFrame, path: Path, *, sigma: float) -> None:
    """Draw the first 64 filters or atoms, at the start and trained."""
    series = []
    for name, network in _find_trained(table, sigma):
        for kind, shown in (("start", started(network)), ("trained", network)):
            if (tiles := _tile_filters(shown)) is not None:
                series.append((f"{name}, {kind}", tiles))
    if not series:
        return
    figure, axes = panels(len(series), (2.8, 3.0), columns=4)
    for own, (name, tiles) in zip(axes, series, strict=True):
        own.imshow(tiles, cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
        own.set_title(name, fontsize=9)
        own.set_anchor("N")
        own.set_axis_off()
    about = "Filters or atoms of the first layer, each at its own scale; grey is 0"
    figure.suptitle(about, fontsize=10, wrap=True)
    save(figure, path)


def _tile_filters(network: nn.Module) -> Array | None:
    """One picture of the filters or atoms of the first layer, or of a common dictionary."""
    layers = layers_of(network)
    first: Any = layers[0] if layers is not None else next(network.children())
    dictionary: Any = getattr(network, "dictionary", getattr(first, "synthesis", None))
    if hasattr(first, "filters"):
        filters = first.filters().detach().double().numpy()
    elif dictionary is not None:
        rows = dictionary.detach().double().numpy()
        side = round(rows.shape[1] ** 0.5)
        filters = rows.reshape(len(rows), side, side)
    else:
        return None
    across = 8
    filters = filters[: across * across]
    sizes = np.abs(filters).max(axis=(1, 2), keepdims=True)
    filters = filters / np.maximum(sizes, 1e-12)
    side = filters.shape[-1] + 1
    picture = np.full((side * -(-len(filters) // across), side * across), np.nan)
    for i, one in enumerate(filters):
        top, left = side * (i // across), side * (i % across)
        picture[top : top + side - 1, left : left + side - 1] = one
    return picture
