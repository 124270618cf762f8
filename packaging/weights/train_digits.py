"""Train the digits models that come with the package.

``python packaging/weights/train_digits.py NAME FOLDER`` trains one in a folder of its own and
writes its weights, rounded to float16, into ``bench/vision/inspection/models``.
"""

import shutil
from pathlib import Path

import torch
import typer
from torch import Tensor, nn

from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import METRICS, WEIGHTS
from twinsolve.bench.training import generator_of, train
from twinsolve.bench.vision.denoising.networks import ship
from twinsolve.bench.vision.inspection.measures import condition_numbers
from twinsolve.bench.vision.inspection.sources import (
    SEED,
    accuracy,
    at_start,
    digits,
    shipped_folder,
)


class ShiftedDigits:
    """Batches of digits that are moved by at most a pixel."""

    def __init__(self) -> None:
        self.images, self.classes = digits()[0]

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        images, classes = [], []
        padded = torch.nn.functional.pad(self.images, (_SHIFT,) * 4)
        for sample in samples:
            rng = generator_of(seed, step, sample)
            chosen = int(rng.integers(len(self.images)))
            top, left = rng.integers(2 * _SHIFT + 1, size=2).tolist()
            images.append(padded[chosen, :, top : top + 8, left : left + 8])
            classes.append(self.classes[chosen])
        return torch.stack(images), torch.stack(classes)


RECIPE = Recipe(
    n_steps=2500, batch_size=64, learning_rate=2e-3, weight_decay=0.05, warm_up=0.1,
    ema_decay=0.99, validate_every=250, checkpoint_every=500, seed=SEED,
)  # fmt: skip
_N_IMAGES = 16
_SHIFT = 1  # pixels


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of the classes, with a tenth of each label spread over all of them."""
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes, label_smoothing=0.1)


def validate(model: nn.Module) -> dict[str, float]:
    """Accuracy, and condition numbers on some of the images."""
    return accuracy(model) | condition_numbers(model, digits()[1][0][:_N_IMAGES])


def main(name: str, folder: Path) -> None:
    """Train a model in a folder and write its weights beside those that come along."""
    train(
        at_start(name), ShiftedDigits(), cross_entropy, RECIPE, directory=folder,
        validate=validate, task={"data": "digits"},
        on_validation=lambda row: print(row, flush=True),
    )  # fmt: skip
    ship(folder, shipped_folder(name) / WEIGHTS)
    shutil.copy(folder / METRICS, shipped_folder(name))


if __name__ == "__main__":
    typer.run(main)
