"""Networks trained for one noise at other noises, estimates of the noise, and tiles.

``python studies/noise_levels.py`` denoises Set12 at three noises: by solved methods, by networks
whose weights are for 25 and to whose noise pictures are rescaled, and by diffusion that is trained
for the noise: weights that come along, and those of ``--run FOLDER``, a run of train-denoiser.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from shared.script import run_script
from skimage.restoration import estimate_sigma
from torch import nn

from twinsolve.bench import DenoisingMethod, denoise, load_denoiser, register_denoiser
from twinsolve.bench.options import DataHome, Jobs, Output
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.terminal import progress
from twinsolve.bench.vision.denoising.methods import METHODS, find_entry
from twinsolve.bench.vision.denoising.networks import apply, in_tiles, shipped_classes
from twinsolve.bench.vision.denoising.pictures import MARGIN
from twinsolve.bench.vision.denoising.study import NoisyImages
from twinsolve.solvers.inputs import Array

SIGMAS = (15.0, 25.0, 50.0)
TRAINED = 25.0
# The solved method of each network's kind, as on the page on denoising.
SOLVED = {
    "convex-ridge": "total variation",
    "filter-diffusion": "total variation",
    "nonlocal-filter-diffusion": "total variation",
    "nonlocal-means": "non-local means, Gaussian",
    "patch-coding": "OMP, K-SVD",
    "mixture-of-experts": "OMP, K-SVD",
    "group-coding": "low-rank groups",
}
RESCALED = ", rescaled from 25"
OWN = "filter-diffusion, trained for the noise"
_TILE = 96  # side, so that a picture of 256 x 256 pixels has nine
_ESTIMATED = (5.0, 10.0, *SIGMAS)


@cache
def _load(name: str) -> nn.Module:
    return load_denoiser(name, sigma=TRAINED)


def denoise_rescaled(name: str, noisy: Array, sigma: float) -> Array:
    """Denoise a picture that is rescaled to the noise of the weights, and scale it back."""
    scale = TRAINED / 255 / sigma
    return apply(_load(name), scale * noisy) / scale


def denoise_trained(runs: Sequence[str], **options: Any) -> pd.DataFrame:
    """Rows of diffusion trained for each noise, where there are weights."""
    rows = [
        denoise("set12", methods=[name], sigmas=[sigma], **options)
        for sigma in SIGMAS
        for name in ("filter-diffusion", *runs)
        if find_entry(name).serves(sigma)
    ]
    return pd.concat(rows).assign(method=OWN)


def quality_lines(table: pd.DataFrame) -> Lines:
    """Mean dB of each method at each noise; the noise 25 of rescaled networks is their own."""
    means = table.pivot_table(index="method", columns="sigma", values="psnr", sort=False)
    rows = [(str(name), *(number(x, ".2f") for x in own)) for name, own in means.iterrows()]
    return ("method", *(f"noise {sigma:g}" for sigma in means)), rows


def paired_lines(table: pd.DataFrame) -> Lines:
    """Rescaled networks beyond the solved method of their kind, and weights beyond rescaling."""
    psnr = table.pivot(index="image", columns=["sigma", "method"], values="psnr")
    pairs = [(f"{name}{RESCALED}", solved) for name, solved in SOLVED.items()]
    pairs.append((OWN, f"filter-diffusion{RESCALED}"))
    apart = {
        (sigma, *pair): paired_difference(*(psnr[sigma, method] for method in pair))
        for sigma in SIGMAS
        for pair in pairs
        if sigma != TRAINED and (sigma, pair[0]) in psnr
    }
    rows = [
        (f"{sigma:g}", of, beside, f"{each.apart.mean:+.3f} ± {each.apart.half_width:.3f}",
         *each.cells[1:3])
        for (sigma, of, beside), each in judge(apart, margin=0).items()
    ]  # fmt: skip
    return ("noise", "method", "beside", "dB beyond it", "p, corrected", "verdict"), rows


def measure_estimates(given: NoisyImages) -> Iterator[dict[str, Any]]:
    """Estimates on noisy images, as they are and rounded to the 256 levels of a file."""
    for sigma in _ESTIMATED:
        for place, name in enumerate(given.names):
            noisy = given.noisy(place, sigma / 255)
            filed = np.rint(255 * noisy.clip(0, 1)) / 255
            yield {
                "image": name, "sigma": sigma, "estimate": 255 * estimate_sigma(noisy),
                "estimate_filed": 255 * estimate_sigma(filed),
            }  # fmt: skip


def estimate_lines(table: pd.DataFrame) -> Lines:
    rows = []
    for sigma, own in table.groupby("sigma"):
        cells = [f"{x.mean():.1f} ({x.min():.1f} to {x.max():.1f})"
                 for x in (own.estimate, own.estimate_filed)]  # fmt: skip
        rows.append((f"{sigma:g}", *cells))
    return ("noise", "estimate", "estimate in a file of 8 bits"), rows


def tile_lines(noisy: Array) -> Lines:
    """How far tiles are from the whole, for methods that are not told how far they look."""
    rows: list[tuple[str, ...]] = []
    for name in [*(m.name for m in METHODS.values() if m.kind != "own" and m.installed),
                 "ConvexRidgeDenoiser, trained"]:  # fmt: skip
        denoiser = partial(find_entry(name).denoiser(TRAINED / 255)[0], sigma=TRAINED / 255)
        apart = in_tiles(denoiser, noisy, margin=MARGIN, side=_TILE) - denoiser(noisy)
        apart *= 255
        rows.append((name, f"{np.abs(apart).max():.2g}", f"{np.sqrt(np.square(apart).mean()):.2g}"))
    return ("method", "largest difference, of 255", "root mean square"), rows


def main(
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="Run of train-denoiser, of a diffusion network; may be given again.",
        ),
    ] = None,
    n_jobs: Jobs = 1,
    data_home: DataHome = None,
    output: Output = Path("results/noise-levels"),
) -> None:
    """Denoise Set12 at all levels, and write how methods and estimates do."""
    assert set(SOLVED) == set(shipped_classes())
    for name in SOLVED:
        rescaled = partial(denoise_rescaled, name)
        register_denoiser(DenoisingMethod(name + RESCALED, "own", "own", rescaled))
    methods = ["noisy", *dict.fromkeys(SOLVED.values()), *(name + RESCALED for name in SOLVED)]
    options: dict[str, Any] = {
        "n_jobs": n_jobs, "data_home": data_home, "directory": output / "runs",
        "progress": progress("Denoising"),
    }  # fmt: skip
    table = pd.concat([
        denoise("set12", methods=methods, sigmas=SIGMAS, **options),
        denoise_trained(run or [], **options),
    ])  # fmt: skip
    given = NoisyImages("set12", data_home=data_home)
    settings = {"images": "set12", "sigmas": list(SIGMAS), "seed": 0, "runs": len(run or [])}
    results = Results("python studies/noise_levels.py", settings, output)
    write_table(table, results.directory)
    estimates = pd.DataFrame(measure_estimates(given))
    write_table(estimates, results.directory, "estimates.json")
    results.add_table("Mean dB on Set12", quality_lines(table))
    results.add_table("Paired differences", paired_lines(table))
    results.add_sentences([
        "Intervals are 95 % over images and not corrected; verdicts are, by Holm for this table."
    ])  # fmt: skip
    results.add_table("Estimates of the noise, mean (range) over Set12", estimate_lines(estimates))
    results.add_table(
        f"Tiles of {_TILE} pixels with {MARGIN} around them, beside the whole",
        tile_lines(given.noisy(0, TRAINED / 255)),
    )
    results.write()


if __name__ == "__main__":
    run_script(__file__)
