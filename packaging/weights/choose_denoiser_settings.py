"""Choose the settings of solved methods and peers on images that nothing is judged on.

``python packaging/weights/choose_denoiser_settings.py`` writes settings.toml anew: for each method
the point of its grid with the largest mean PSNR over the middles of the last 20 images of train400,
at a noise of 25 grey levels of 255. Settings are in units of the noise, and serve all levels.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import typer

from twinsolve.bench.vision.denoising.methods import METHODS, SETTINGS, DenoisingMethod
from twinsolve.bench.vision.denoising.training import N_VALIDATION
from twinsolve.datasets import add_noise, fetch_train400
from twinsolve.datasets.files import write_whole
from twinsolve.solvers.inputs import Array

SIGMA = 25 / 255
_CROP = 128


def validation_pairs() -> list[tuple[Array, Array]]:
    """Noisy and clean crops, the same noise each time; as in training."""
    pairs = []
    for seed, image in enumerate(fetch_train400().images[-N_VALIDATION:]):
        top, left = ((side - _CROP) // 2 for side in image.shape)
        clean = np.asarray(image[top : top + _CROP, left : left + _CROP], dtype=np.float64)
        pairs.append((add_noise(clean, sigma=SIGMA, random_state=seed), clean))
    return pairs


def choose_settings(
    method: DenoisingMethod, pairs: Iterable[tuple[Array, Array]]
) -> dict[str, Any]:
    """The best point of a method's grid, and its mean PSNR."""
    points = [
        dict(zip(method.grid, values, strict=True)) for values in product(*method.grid.values())
    ]
    means = [_mean_psnr(method, point, pairs) for point in points]
    best = int(np.argmax(means))
    return {"settings": points[best], "validation_db": round(means[best], 3)}


def _mean_psnr(
    method: DenoisingMethod, settings: Mapping[str, Any], pairs: Iterable[tuple[Array, Array]]
) -> float:
    errors = [np.square(method.denoise(y, SIGMA, **settings) - u).mean() for y, u in pairs]
    return float(np.mean(-10 * np.log10(errors)))


def _lines(name: str, chosen: Mapping[str, Any]) -> list[str]:
    said = ", ".join(f"{key} = {_word(value)}" for key, value in chosen["settings"].items())
    return [
        f'["{name}"]',
        f"settings = {{ {said} }}",
        f"validation_db = {chosen['validation_db']}",
        "",
    ]


def _word(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def main(output: Path = SETTINGS) -> None:
    """Choose settings of every solved method on pictures that train, and write them to a file."""
    pairs = validation_pairs()
    lines = ["# Written by python packaging/weights/choose_denoiser_settings.py", ""]
    for name, method in METHODS.items():
        if method.kind != "own" and method.installed:
            chosen = choose_settings(method, pairs)
            print(name, chosen, flush=True)
            lines += _lines(name, chosen)
    write_whole(output, "\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    typer.run(main)
