"""Groups of similar noisy patches, denoised by softmax and by the exact step on their coding rate.

``python studies/group_attention.py`` takes the patches of a group, less their mean, for the tokens
of one head. Each layer returns them with less noise; pixels are means over all patches. Each layer
has one parameter, which is the best on pictures of train400; Set12 tells how well it does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from shared.script import run_script, write_found
from skimage.metrics import peak_signal_noise_ratio
from torch import nn

from twinsolve.bench.jobs import Options, run_jobs
from twinsolve.bench.options import DataHome, Jobs, Output
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.datasets import add_noise, fetch_set12, fetch_train400
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.sparse_coding.patch_groups import average_groups
from twinsolve.unrolled import Gaussian
from twinsolve.unrolled.coding_rate import CodingRate, SubspaceSelfAttention

SIGMAS = (15, 25, 50)
_SIZE, _N_SIMILAR, _WINDOW, _STRIDE, _N_TUNING = 7, 60, 15, 3, 6
# Each parameter is a factor: of 1 / sigma^2 for products, of sigma for distances, and of
# n sigma^2 for the penalty, the sum of squares that the noise adds along one direction.
LAYERS: dict[str, tuple[Callable[[float, float], nn.Module], tuple[float, ...]]] = {
    "softmax of distances": (
        lambda factor, sigma: Gaussian(factor * sigma), (4.0, 5.6, 8.0, 11.0, 16.0),
    ),
    "softmax of products": (
        lambda factor, sigma: SubspaceSelfAttention(factor / sigma**2),
        (0.004, 0.008, 0.015, 0.03, 0.06),
    ),
    "exact coding rate": (
        lambda factor, sigma: CodingRate(factor * _N_SIMILAR * sigma**2),
        (2.0, 4.0, 8.0, 16.0, 32.0),
    ),
}  # fmt: skip


@torch.no_grad()
def denoise_groups(noisy: Array, layer: nn.Module) -> Array:
    """Return a grey picture whose patches are those that the layer returns of their groups."""

    def change(groups: Array) -> tuple[Array, Array]:
        patches = torch.from_numpy(groups)
        mean = patches.mean(dim=1, keepdim=True)
        tokens = patches - mean
        return (layer(tokens, tokens, tokens) + mean).numpy(), np.ones(len(groups))

    (denoised,) = average_groups(
        noisy[None], change, patch_size=_SIZE, n_similar=_N_SIMILAR, window=_WINDOW, stride=_STRIDE
    )
    return np.asarray(denoised)


def measure_picture(
    layer: str, factor: float, sigma: int, name: str, data_home: str | None
) -> list[dict[str, Any]]:
    """The PSNR of one picture, in dB; pictures of train400 are for the choice of the factor."""
    tuning = name.startswith("test_")  # their names in train400
    bunch = fetch_train400(data_home=data_home) if tuning else fetch_set12(data_home=data_home)
    clean = np.asarray(bunch.images[bunch.names.index(name)], dtype=np.float64)
    noisy = add_noise(clean, sigma=sigma / 255, random_state=sigma)
    denoised = denoise_groups(noisy, LAYERS[layer][0](factor, sigma / 255))
    psnr = float(peak_signal_noise_ratio(clean, denoised, data_range=1.0))
    return [{
        "layer": layer, "factor": factor, "sigma": sigma, "image": name, "tuning": tuning,
        "psnr": psnr,
    }]  # fmt: skip


def best_factors(tried: pd.DataFrame) -> list[tuple[str, int, float]]:
    """The layer, noise and factor with the largest mean PSNR, for each layer and noise."""
    means = tried.groupby(["layer", "sigma", "factor"]).psnr.mean()
    best: list[tuple[str, int, float]] = means.groupby(level=["layer", "sigma"]).idxmax().tolist()
    return best


def measure_all(options: Options) -> pd.DataFrame:
    """All factors on pictures of train400, then the best of each layer and noise on Set12."""
    home = options.data_home
    names = list(fetch_train400(data_home=home).names[-_N_TUNING:])
    tried = run_jobs(
        measure_picture,
        [
            {"layer": x, "factor": f, "sigma": sigma, "name": name, "data_home": home}
            for x, (_, factors) in LAYERS.items()
            for f in factors
            for sigma in SIGMAS
            for name in names
        ],
        options,
    )
    jobs = [
        {"layer": x, "factor": f, "sigma": sigma, "name": name, "data_home": home}
        for x, sigma, f in best_factors(tried)
        for name in fetch_set12(data_home=home).names
    ]
    return pd.concat([tried, run_jobs(measure_picture, jobs, options)], ignore_index=True)


def psnr_lines(table: pd.DataFrame) -> Lines:
    """A line for each layer and noise: its factor, PSNR, and the difference to softmax."""
    test = table[~table.tuning]
    psnr = test.pivot(index="image", columns=["sigma", "layer"], values="psnr")
    factors = test.groupby(["sigma", "layer"]).factor.first()
    plain = next(iter(LAYERS))
    apart = {
        (sigma, layer): paired_difference(psnr[sigma, layer], psnr[sigma, plain])
        for sigma in SIGMAS
        for layer in LAYERS
        if layer != plain
    }
    judged = judge(apart, margin=0)
    cells: list[tuple[str, ...]] = []
    for sigma in SIGMAS:
        for layer in LAYERS:
            each = judged.get((sigma, layer))
            beside = ("-",) * 3 if each is None else (
                f"{each.apart.mean:+.2f} ± {each.apart.half_width:.2f}", *each.cells[1:3],
            )  # fmt: skip
            mean = number(psnr[sigma, layer].mean(), ".2f")
            cells.append((str(sigma), layer, f"{factors[sigma, layer]:g}", mean, *beside))
    return (
        "noise",
        "layer",
        "factor",
        "PSNR",
        f"dB beyond {plain}",
        "p, corrected",
        "verdict",
    ), cells


NOTE = (
    f"Groups of {_N_SIMILAR} patches of {_SIZE} x {_SIZE} pixels, the closest to each patch of a "
    "grid. The factor is of sigma for distances, of 1 / sigma^2 for products, and of n sigma^2 "
    "for the penalty of the coding rate. It is the best of five on "
    f"{_N_TUNING} pictures of train400. PSNR is the mean over Set12, in dB. Nothing is trained. "
    "Differences are paired by pictures, with 95 % intervals that are not corrected."
)


def main(
    n_jobs: Jobs = 1, data_home: DataHome = None, output: Output = Path("results/group-attention")
) -> None:
    """Denoise all pictures by all layers, and write the table."""
    title = "PSNR of Set12 by what happens in groups of similar patches"
    study = Study("", title, measure_all, psnr_lines, notes=lambda table: [NOTE])
    write_found(__file__, [study], {}, output, n_jobs=n_jobs, data_home=data_home)


if __name__ == "__main__":
    run_script(__file__)
