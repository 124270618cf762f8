"""Report of `twinsolve denoise`: tables, differences, and networks beside their solvers."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import nn

from ....solvers.inputs import Array
from ....solvers.nonlocal_energy import filter_energy
from ....twins.families.nonlocal_energy.filter_diffusion import energy_of
from ....unrolled.models.denoisers import FilterDiffusionDenoiser, NoiseLevelDiffusionDenoiser
from ....unrolled.nonlocal_energy import FilterDiffusion
from ....unrolled.sparse_coding.coding_step import CodingStep
from ...jobs import Options
from ...paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference
from ...study import Study
from ...tables import Lines, Results, number
from .figures import draw_crops, draw_filters, draw_layers, draw_learned, draw_pair, draw_quality
from .methods import SOLVER, find_entry
from .networks import deviations, has_twin, started
from .picture_files import read_picture
from .pictures import DenoisedImage
from .study import NoisyImages, denoise, middle

_EXACT = 1e-5  # dB
_CROPS = 6  # most methods on the figure of crops


_HOLES = "dB and SSIM are of pixels outside the holes; SSIM is of windows without any."


def denoising_study(
    given: NoisyImages, sigmas: Sequence[float], methods: Sequence[str] | None = None
) -> Study:
    """The study of methods on noisy images; figures are of the first level of noise."""
    level, several = sigmas[0], len(sigmas) > 1

    def run(options: Options) -> pd.DataFrame:
        return denoise(
            given.images, methods=methods, sigmas=sigmas, seed=given.seed, colour=given.colour,
            mask=given.mask, **options.shared,
        )  # fmt: skip

    def crops(table: pd.DataFrame, path: Path) -> None:
        draw_crops(best_of_families(table[table.sigma == level]), given, path, sigma=level)

    def quality(table: pd.DataFrame, path: Path) -> None:
        draw_quality(means(table[table.sigma == level]), path, sigma=level)

    def notes(table: pd.DataFrame) -> list[str]:
        apart = [(sigma, note_on_pairs(table[table.sigma == sigma])) for sigma in sigmas]
        return [
            *(f"Noise {sigma:g}: {note}" if several else note for sigma, note in apart if note),
            *([_HOLES] if given.mask else []), *remarks(table),
            *(f"Left out: {x}." for x in given.left_out),
            *([f"Left out, as no pictures: {', '.join(given.others)}."] if given.others else []),
        ]  # fmt: skip

    return Study(
        "", f"{given.images}, means over {len(given.names)} images",
        run, lines_of,
        {
            "crops.png": crops, "quality.png": quality,
            "layers.png": partial(draw_layers, given=given, sigma=level),
            "learned.png": partial(draw_learned, sigma=level),
            "filters.png": partial(draw_filters, sigma=level),
        },
        {f"Paired differences, noise {x:g}": partial(_paired_lines_at, sigma=x) for x in sigmas},
        notes=notes,
    )  # fmt: skip


def _paired_lines_at(table: pd.DataFrame, sigma: float) -> Lines:
    return paired_lines(table[table.sigma == sigma])


def with_checks(study: Study, checks: list[dict[str, Any]]) -> Study:
    """The study with the rows of `verify` as a further table."""
    more = {"Trained networks against their solvers": lambda _: (CHECKED, checked_lines(checks))}
    return replace(study, more={**study.more, **more})


def is_sound(table: pd.DataFrame, given: NoisyImages, checks: list[dict[str, Any]]) -> bool:
    """Whether no picture and no number is missing, and every network is its solver."""
    equal = starts(table).within.all() and all(row["passed"] for row in checks)
    return bool(equal and table.psnr.notna().all() and not given.left_out)


def best_of_families(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Name and kind of the best solved method of each family and of the best networks."""
    found = means(table[table.method != "noisy"]).dropna(subset="psnr").iloc[::-1]
    trained = found[found.kind.isin(["trained", "own"])].head(_CROPS // 2)
    solved = found[found.kind.isin(["solved", "peer"]) & ~found.method.str.endswith(SOLVER)]
    best = solved.drop_duplicates("family").head(_CROPS - len(trained))
    rows = pd.concat([best.iloc[::-1], trained.iloc[::-1]])
    return list(zip(rows.method, rows.kind, strict=True))


def means(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and noise level, with means over all images; the best is last.

    A method that lacks a number for an image has no mean.
    """
    whole = partial(pd.Series.mean, skipna=False)
    keys = ["sigma", "method", "kind"]
    found = table.groupby(keys, sort=False).agg(
        family=("family", "first"),
        psnr=("psnr", whole),
        lowest=("psnr", partial(pd.Series.min, skipna=False)),
        highest=("psnr", partial(pd.Series.max, skipna=False)),
        ssim=("ssim", whole),
        seconds=("seconds", partial(pd.Series.sum, skipna=False)),
        megapixels=("megapixels", "sum"),
        parameters=("parameters", "first"),
        flops_per_pixel=("flops_per_pixel", "first"),
        n_images=("psnr", "size"),
    )
    found = found.reset_index()
    found["s_per_megapixel"] = found.seconds / found.megapixels
    order = found.sort_values(["sigma", "psnr"], kind="stable", na_position="first")
    return order.reset_index(drop=True)


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each noise level and method: means over the images."""
    head = (
        "noise",
        "method",
        "kind",
        "dB",
        "range",
        "SSIM",
        "s / MP",
        "parameters",
        "kFLOP / pixel",
    )
    rows = []
    for row in means(table).itertuples():
        flops = None if pd.isna(row.flops_per_pixel) else row.flops_per_pixel / 1000
        cells = (
            f"{row.sigma:g}", row.method, row.kind, number(row.psnr, ".2f"),
            "-" if pd.isna(row.psnr) else f"{row.lowest:.2f} to {row.highest:.2f}",
            number(row.ssim, ".3f"), number(row.s_per_megapixel, ".3g"),
            number(row.parameters, ",.0f"),
            number(flops, ".3g"),
        )  # fmt: skip
        rows.append(tuple(map(str, cells)))
    return head, rows


def paired_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells of `differences` with verdicts, never equal, as dB has no margin."""
    best, apart = differences(table)
    rows = [
        (method, images, str(verdict.apart.n), *verdict.cells)
        for (method, images), verdict in judge(apart, margin=0).items()
    ]
    return ("method", "images", "number", f"dB beyond {best}", *COMPARED[1:]), rows


def note_on_pairs(table: pd.DataFrame) -> str:
    """How to read `paired_lines`; empty where there are none."""
    _, apart = differences(table)
    of = "images, not other seeds of training,"
    return note_on_verdicts(apart, of=of, margin=0) if apart else ""


def differences(table: pd.DataFrame) -> tuple[str, dict[tuple[str, str], Paired]]:
    """The best solved method or peer, and the differences of trained networks to it, in dB.

    The table holds one noise level. Keys are method and images: if names of images begin with
    different folders, each folder is compared too.
    """
    found = means(table).dropna(subset="psnr")
    classical = found[found.kind.isin(["solved", "peer"]) & ~found.method.str.endswith(SOLVER)]
    networks = found[found.kind.isin(["trained", "own"])].method
    if classical.empty or networks.empty:
        return "-", {}
    best = classical.method.iloc[-1]
    psnr = table.pivot(index="image", columns="method", values="psnr")
    folder = psnr.index.str.rpartition("/").get_level_values(0)
    parts = {name: psnr[folder == name] for name in folder.unique()} if len(set(folder)) > 1 else {}
    return best, {
        (method, name or "."): paired_difference(own[method], own[best])
        for method in networks
        for name, own in {**parts, "all": psnr}.items()
    }


def starts(table: pd.DataFrame) -> pd.DataFrame:
    """Largest difference in dB of each network at the start from its solver, number of images,
    and whether it is within 1e-5 dB."""
    place = ["sigma", "image", "network"]
    rows = table.assign(network=table.method.str.partition(",")[0])
    start = rows[rows.kind == "start"].set_index(place).psnr
    solved = rows[(rows.kind == "solved") & rows.method.str.endswith(SOLVER)].set_index(place).psnr
    both = start.index.intersection(solved.index)
    apart = (start[both] - solved[both]).abs().groupby("network", sort=False)
    found = apart.agg(worst="max", n_images="size")
    return found.assign(within=found.worst <= _EXACT)


def remarks(table: pd.DataFrame) -> list[str]:
    """Sentences on starts beside their solvers, distances, warnings and failures."""
    said = [
        f"{row.Index}: at the start at most {row.worst:.1e} dB from its solver on "
        f"{row.n_images} images, {'within' if row.within else 'not within'} {_EXACT:g} dB."
        for row in starts(table).itertuples()
    ]
    proved = table[table.distance.notna()]
    for method, rows in proved.groupby("method", sort=False):
        said.append(
            f"{method}: certified distance from the minimiser, in grey levels: at most "
            f"{rows.distance.max():.1e} on {len(rows)} images."
        )
    for column, word in (("warning", "warned"), ("note", "failed")):
        for method, rows in table.dropna(subset=column).groupby("method", sort=False):
            said.append(f"{method} {word} on {len(rows)} images, first: {rows[column].iloc[0]}")
    return said


CHECKED = (
    "network", "noise", "layers", "deviation", "tolerance", "passed", "certified distance",
    "lam", "at start", "no gradient of its Lasso", "own energy falls",
)  # fmt: skip
_SIDE = 48  # pixels of a side of the crops for solvers


def verify(table: pd.DataFrame, given: NoisyImages) -> list[dict[str, Any]]:
    """A row for each trained network with a twin and each number of first layers.

    ``deviation`` is the largest relative deviation, in float64, from the solver at the trained
    parameters, on the middles of noisy images; ``passed`` says whether it is within the twin's
    tolerance; ``distance`` is the largest certified distance in the table. For steps of sparse
    coding, ``lam`` is the penalty of the closest Lasso, and ``asymmetry`` the share of the step
    that is no gradient of it. For steps of diffusion, ``lam`` is the fidelity, and ``descends``
    says whether the energy of the step falls.
    """
    rows = []
    for (method, sigma), group in table[table.kind == "trained"].groupby(
        ["method", "sigma"], sort=False
    ):
        level = float(sigma) / 255
        network = find_entry(str(method)).network_at(level)
        if isinstance(network, NoiseLevelDiffusionDenoiser):
            network = network.at(level)
        done = [given.names.index(name) for name in group.dropna(subset="psnr").image]
        if not has_twin(network) or not done:
            continue
        crops = [middle(given.noisy(place, level), _SIDE) for place in done[:2]]
        head = {"network": method, "sigma": sigma, "distance": group.distance.max()}
        origins = _find_origins(network, crops[0] if crops[0].ndim == 2 else crops[0][..., 0])
        for row in deviations(network, crops):
            passed = row["deviation"] <= row["tolerance"]
            rows.append(head | row | {"passed": passed} | origins.get(row["layers"], {}))
    return rows


def checked_lines(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Cells of the table with headings `CHECKED`."""
    return [
        (
            row["network"].removesuffix(", trained"), number(row["sigma"], "g"),
            str(row["layers"]), f"{row['deviation']:.1e}", f"{row['tolerance']:.0e}",
            "yes" if row["passed"] else "NO",
            number(row["distance"], ".1e"),
            number(row.get("lam"), ".3f"), number(row.get("lam_start"), ".3f"),
            number(row.get("asymmetry"), ".0%"),
            {True: "yes", False: "no", None: "-"}[row.get("descends")],
        )
        for row in rows
    ]  # fmt: skip


def write_picture_report(
    noisy: Path,
    written: Path,
    found: DenoisedImage,
    seconds: float,
    settings: dict[str, Any],
    folder: Path,
) -> None:
    """Write how a picture was denoised to a folder, with the picture before and after."""
    head = ("picture", "noise", "is", "method", "weights for", "seconds", "written to")
    cells = (
        noisy.name, f"{found.sigma:.1f}", "estimated" if found.estimated else "given",
        found.method if found.denoised else "none", number(found.trained_for, "g"),
        f"{seconds:.1f}", str(written),
    )  # fmt: skip
    draw_pair(read_picture(noisy).pixels, found.image, folder / "denoised.png")
    results = Results("twinsolve denoise --noisy", settings, folder)
    results.add_table("Picture", (head, [cells]), shown=False)
    results.write(["denoised"])


def _find_origins(network: nn.Module, noisy: np.ndarray) -> dict[int, dict[str, Any]]:
    """Return, for each layer, its closest classical problem, and the lam before training.

    If a network has no steps of sparse coding, the rows are those of `energies`.
    """
    start = started(network)
    untrained = {row["layer"]: row["lam"] for row in classical_problems(start)}
    found = {row["layer"]: row for row in classical_problems(network)}
    if not found:
        found = {row["layer"]: row for row in energies(network, start, noisy)}
        untrained = {row["layer"]: row["lam"] for row in energies(start, start, noisy)}
    return {
        layer: {key: row.get(key) for key in ("lam", "asymmetry", "descends")}
        | {"lam_start": untrained[layer]}
        for layer, row in found.items()
    }


def classical_problems(network: nn.Module) -> list[dict[str, Any]]:
    """The classical problem closest to each step of sparse coding.

    A step ``S_t(C + s (Y - C D) A^T)`` is one of ISTA on ``|Y - C D|_F^2 + lam |C|_1`` if A is D
    and ``t = s lam / 2``. The fitted step is the s' for which ``s' D`` is closest to ``s A``. Rows
    have ``lam``, the median over the atoms of ``2 t / s'``, and the share that is no gradient of
    such a problem, ``asymmetry = |s A - s' D|_F / |s A|_F``; NaN in the first layer, without D.
    """
    rows = []
    steps = [layer for layer in network.modules() if isinstance(layer, CodingStep)]
    for place, layer in enumerate(steps, start=1):
        pull = (layer.step() * layer.analysis).detach().double()
        thresholds = layer.threshold().detach().double()
        own = layer.analysis if layer.synthesis is None else layer.synthesis
        D = own.detach().double()
        fitted = float((pull * D).sum() / (D * D).sum())
        rest = float((pull - fitted * D).norm() / pull.norm())
        rows.append(
            {
                "layer": place,
                "step": fitted,
                "lam": float((2 * thresholds / fitted).median()),
                "asymmetry": rest if layer.synthesis is not None else float("nan"),
            }
        )
    return rows


@torch.no_grad()
def energies(network: nn.Module, start: nn.Module, noisy: Array) -> list[dict[str, Any]]:
    """Energies per pixel along the steps of a diffusion by filters.

    Each `FilterDiffusion` is a gradient step on its energy, EQUATIONS FE-1, in the metric of the
    numbers of windows. Whether the energy falls depends on the parameters.

    Returns
    -------
    list of dict
        A row for each step: ``before`` and ``after``, the energy of the step for its input and its
        output; ``classical``, the energy of the first step of `start` for that output;
        ``descends``, whether the energy of the step falls; ``lam``. Empty without such steps.
    """
    exact = copy.deepcopy(network).double()
    if not isinstance(exact, FilterDiffusionDenoiser):
        return []
    classical = next(step for step in start.modules() if isinstance(step, FilterDiffusion))
    f = torch.from_numpy(np.ascontiguousarray(noisy, dtype=np.float64))[None, None]
    u, rows, others = f, [], exact.others(f)
    for place, module in enumerate(exact.steps, start=1):
        step = cast(FilterDiffusion, module)
        stepped = step(u, f, *others)
        before, after = (_measure_energy(step, x, f, others) for x in (u, stepped))
        rows.append(
            {
                "layer": place,
                "lam": float(step.lam),
                "before": before,
                "after": after,
                "descends": after < before,
                "classical": _measure_energy(classical, stepped, f, others),
            }
        )
        u = stepped
    return rows


def _measure_energy(step: FilterDiffusion, u: torch.Tensor, f: torch.Tensor, others: Any) -> float:
    similar = others[0].indices.numpy() if others else None
    image, noisy = (x[0, 0].numpy() for x in (u, f))
    return filter_energy(image, noisy, **energy_of(step, similar)) / noisy.size
