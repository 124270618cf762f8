"""Train the packaged denoiser of all noise levels, from the weights for a noise of 25.

``python packaging/weights/train_noise_level_denoiser.py FOLDER`` takes about two minutes of one
processor. It trains in a folder of its own and writes the weights, rounded to float16, beside the
others. At 25 the network is `FilterDiffusionDenoiser`, whose weights it keeps: only slopes learn.
"""

from pathlib import Path

import typer

from twinsolve.bench.recipe import Recipe
from twinsolve.bench.vision.denoising.networks import load_denoiser, ship
from twinsolve.bench.vision.denoising.training import train_denoiser
from twinsolve.unrolled.models.denoisers import NoiseLevelDiffusionDenoiser

RANGE = (5 / 255, 75 / 255)
KEPT = ("*.coefficients", "*.log_threshold", "*.weights", "*.lam")
RECIPE = Recipe(
    n_steps=400, batch_size=8, learning_rate=0.003, warm_up=0.03, ema_decay=0.99,
    rate_multipliers=dict.fromkeys(KEPT, 0.0),
    checkpoint_every=50, validate_every=200,
)  # fmt: skip


def start() -> NoiseLevelDiffusionDenoiser:
    """The network at the weights of filter-diffusion for 25, the same at each noise level."""
    network = NoiseLevelDiffusionDenoiser()
    network.load_state_dict(load_denoiser("filter-diffusion").state_dict(), strict=False)
    return network


def main(folder: Path) -> None:
    """Train in a folder and write the weights beside those that come along."""
    train_denoiser(
        start(), sigma=RANGE, recipe=RECIPE, directory=folder,
        on_validation=lambda row: print(row, flush=True),
    )  # fmt: skip
    print(ship(folder))


if __name__ == "__main__":
    typer.run(main)
