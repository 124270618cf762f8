"""What `twinsolve denoise` writes: tables, and pictures of images and of what was learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from torch import nn

from ....solvers.solution import Array
from ...figures import forget, legend, log_ticks, panels, plain, save
from ...tables import Lines, Report, number, write_table
from .entries import SOLVER, find_entry
from .images import NoisyImages
from .networks import apply, first_layers, has_twin, layers_of, readable, started
from .origins import CHECKED, checked_lines, verify
from .report import lines_of, means, note_on_pairs, paired_lines, remarks, starts
from .study import quality

_SHOWN = 128  # side of the crops
_CROPS = 6  # methods, the best of each family
_MARKS = {"solved": "s", "peer": "^", "start": "o", "trained": "D", "own": "P"}
_COLOURS = {  # of Okabe and Ito, told apart by colour-blind readers
    "solved": "#0072B2", "peer": "#999999", "start": "#E69F00", "trained": "#D55E00",
    "own": "#009E73",
}  # fmt: skip


def write_report(
    table: pd.DataFrame,
    given: NoisyImages,
    sigmas: Sequence[float],
    report: Report,
    parts: Mapping[str, Lines] | None = None,
) -> bool:
    """Print and write all; False if a picture or a number is missing, or two are not equal."""
    folder = report.directory
    write_table(table, folder)
    found = means(table)
    for sigma in sigmas:
        title = f"{given.images}, noise {sigma:g}, means over {len(given.names)} images"
        name = "means" if len(sigmas) == 1 else f"means-{number(sigma, 'g')}"
        lines = lines_of(found[found.sigma == sigma])
        report.add_table(title, lines, heading=f"## Noise {sigma:g}", file=name)
        own = table[table.sigma == sigma]
        if (lines := paired_lines(own))[1]:
            title = f"Paired differences, noise {sigma:g}"
            report.add_table(title, lines, heading=f"### {title}")
            report.add_sentences([note_on_pairs(own)])
    report.add_sentences([*remarks(table), *(f"Left out: {x}." for x in given.left_out)])
    checks = verify(table, given)
    report.add_table("Trained networks against their solvers", (CHECKED, checked_lines(checks)))
    for title, lines in (parts or {}).items():
        report.add_table(title, lines)
    drawn = ("crops", "quality", "layers", "learned", "filters")
    for name in drawn:
        forget(folder / f"{name}.png")
    draw_crops(table, given, folder, sigma=sigmas[0])
    draw_quality(table, folder, sigma=sigmas[0])
    draw_layers(table, given, folder, sigma=sigmas[0])
    draw_learned(table, folder, sigma=sigmas[0])
    draw_filters(table, folder, sigma=sigmas[0])
    report.write(drawn)
    equal = starts(table).within.all() and all(row["passed"] for row in checks)
    return bool(equal and table.psnr.notna().all() and not given.left_out)


def draw_crops(table: pd.DataFrame, given: NoisyImages, directory: Path, *, sigma: float) -> None:
    """Draw crops.png: the first image by the best method of each family, above its errors."""
    level, clean = sigma / 255, given.clean[0]
    noisy, square = given.noisy(0, level), _busiest(clean)
    pictures = {"clean": clean, "noisy": noisy}
    for method, kind in _best_of_families(table[table.sigma == sigma]):
        label = method if kind == "solved" else _short(method)
        pictures[label] = np.asarray(find_entry(method).denoiser(level)[0](noisy, level))
    figure, axes = panels(2 * len(pictures), (2.1, 2.35), columns=len(pictures))
    for column, (label, image) in enumerate(pictures.items()):
        top, below = axes[column], axes[len(pictures) + column]
        top.imshow(image[square].clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        psnr = "" if column == 0 else f"\n{quality(clean, image)['psnr']:.2f} dB"
        top.set_title(f"{label}{psnr}", fontsize=9)
        error = below.imshow(
            255 * _grey(image - clean)[square], cmap="RdBu_r", vmin=-sigma, vmax=sigma,
            interpolation="nearest",
        )  # fmt: skip
        for each in (top, below):
            each.set_axis_off()
    below = axes[len(pictures) :]
    below[0].set_visible(False)
    bar = figure.colorbar(error, ax=below, location="right", pad=0.005, aspect=15)
    bar.set_label("error in\ngrey levels of 255", fontsize=8)
    figure.suptitle(f"{given.names[0]}, noise {sigma:g} of 255; below, the errors", fontsize=10)
    save(figure, directory / "crops.png")


def _short(method: str) -> str:
    """The name of a network, or of the folder of its run, without what all have."""
    return Path(method).name.replace("Denoiser", "")


def _grey(image: Array) -> Array:
    return image if image.ndim == 2 else image.mean(axis=-1)


def _busiest(image: Array) -> tuple[slice, slice]:
    """The square, of those on a grid, in which neighbours differ most."""
    image = _grey(image)
    side = min(_SHOWN, *image.shape)
    steps = np.abs(np.diff(image, axis=0))[:, :-1] + np.abs(np.diff(image, axis=1))[:-1]
    corners = [
        (top, left)
        for top in range(0, image.shape[0] - side + 1, max(side // 2, 1))
        for left in range(0, image.shape[1] - side + 1, max(side // 2, 1))
    ]
    top, left = max(corners, key=lambda at: steps[at[0] : at[0] + side, at[1] : at[1] + side].sum())
    return slice(top, top + side), slice(left, left + side)


def _best_of_families(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Best trained networks first, then the best solved method of each family."""
    found = means(table[table.method != "noisy"]).dropna(subset="psnr").iloc[::-1]
    trained = found[found.kind.isin(["trained", "own"])].head(_CROPS // 2)
    solved = found[found.kind.isin(["solved", "peer"]) & ~found.method.str.endswith(SOLVER)]
    best = solved.drop_duplicates("family").head(_CROPS - len(trained))
    rows = pd.concat([best.iloc[::-1], trained.iloc[::-1]])
    return list(zip(rows.method, rows.kind, strict=True))


def draw_quality(table: pd.DataFrame, directory: Path, *, sigma: float) -> None:
    """Draw quality.png: a row for each method, with its mean dB, time and parameters."""
    found = means(table[table.sigma == sigma]).dropna(subset="psnr")
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
    save(figure, directory / "quality.png")


def _trained(table: pd.DataFrame, sigma: float) -> list[tuple[str, nn.Module]]:
    """Names and networks of a noise level that have a twin, and so a known start."""
    rows = table[(table.kind == "trained") & (table.sigma == sigma)].dropna(subset="psnr")
    found = [(str(name), find_entry(name).network_at(sigma / 255)) for name in rows.method.unique()]
    return [
        (_short(name.removesuffix(", trained")), network)
        for name, network in found
        if has_twin(network)
    ]


def draw_layers(table: pd.DataFrame, given: NoisyImages, directory: Path, *, sigma: float) -> None:
    """Draw layers.png: dB after the first layers, at the start and trained, on the crop."""
    square = _busiest(given.clean[0])
    crop, noisy = given.clean[0][square], given.noisy(0, sigma / 255)[square]
    series = [
        (name, network, len(layers))
        for name, network in _trained(table, sigma)
        if (layers := layers_of(network)) is not None
    ]
    if not series:
        return
    figure, axes = panels(len(series), (3.4, 3.2), columns=3, sharey=True)
    for own, (name, network, n_layers) in zip(axes, series, strict=True):
        for kind in ("start", "trained"):
            shown = network if kind == "trained" else started(network)
            counts = range(1, n_layers + 1)
            psnr = [quality(crop, apply(first_layers(shown, k), noisy))["psnr"] for k in counts]
            own.plot(counts, psnr, marker=_MARKS[kind], color=_COLOURS[kind], label=kind)
        own.set_title(name, fontsize=10, loc="left")
        own.set_xlabel("layers K")
        own.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(own)
    axes[0].set_ylabel("PSNR of the crop in dB")
    legend(figure, "lower center", ncols=2)
    save(figure, directory / "layers.png")


def draw_learned(table: pd.DataFrame, directory: Path, *, sigma: float) -> None:
    """Draw learned.png: medians of parameters of each layer, trained and at the start."""
    series: list[tuple[str, list[tuple[int, float, float]]]] = []
    for name, network in _trained(table, sigma):
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
    save(figure, directory / "learned.png")


def draw_filters(table: pd.DataFrame, directory: Path, *, sigma: float) -> None:
    """Draw filters.png: the first 64 filters or atoms, at the start and trained."""
    series = []
    for name, network in _trained(table, sigma):
        for kind, shown in (("start", started(network)), ("trained", network)):
            if (tiles := _tiles(shown)) is not None:
                series.append((f"{name}, {kind}", tiles))
    if not series:
        return
    figure, axes = panels(len(series), (2.8, 3.0), columns=4)
    for own, (name, tiles) in zip(axes, series, strict=True):
        own.imshow(tiles, cmap="gray", interpolation="nearest")
        own.set_title(name, fontsize=8)
        own.set_axis_off()
    save(figure, directory / "filters.png")


def _tiles(network: nn.Module) -> Array | None:
    """Filters or atoms of the first layer, or atoms of the last dictionary, as one picture."""
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
