"""Train the digits models that come with the package.

``python -m twinsolve.bench.vision.inspection.digits_training NAME FOLDER`` trains one in a folder
of its own and writes its weights, rounded to float16, into this package.
"""

import shutil
import sys
from pathlib import Path

from torch import Tensor, nn

from ..denoising.networks import ship
from ..recipe import Recipe
from ..run_folder import METRICS, WEIGHTS
from ..training import train
from .digits import SEED, ShiftedDigits, accuracy, at_start, digits, shipped_folder
from .measures import condition_numbers

RECIPE = Recipe(
    n_steps=2500, batch_size=64, learning_rate=2e-3, weight_decay=0.05, warm_up=0.1,
    ema_decay=0.99, validate_every=250, checkpoint_every=500, seed=SEED,
)  # fmt: skip
_N_IMAGES = 16


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of the classes, with a tenth of each label spread over all of them."""
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes, label_smoothing=0.1)


def validate(model: nn.Module) -> dict[str, float]:
    """Accuracy, and condition numbers on some of the images."""
    return accuracy(model) | condition_numbers(model, digits()[1][0][:_N_IMAGES])


def main() -> None:
    name, folder = sys.argv[1:]
    train(
        at_start(name), ShiftedDigits(), cross_entropy, RECIPE, directory=folder,
        validate=validate, task={"data": "digits"}, report=lambda row: print(row, flush=True),
    )  # fmt: skip
    ship(folder, shipped_folder(name) / WEIGHTS)
    shutil.copy(Path(folder) / METRICS, shipped_folder(name))


if __name__ == "__main__":
    main()
