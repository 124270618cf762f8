"""Segmenters of scenes: their recipe, rows and measures, and the study of them."""

from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

import pandas as pd
import torch

from ....solvers.inputs import Array
from ....unrolled.diagnostics import token_similarity
from ....unrolled.models import Segmenter
from ...paired_training import train_rows
from ...parts import NetworkOfParts, paired_network
from ...task import PLAIN, Task, change_settings
from ...training import Batches, Loss
from ..classification.study import ROWS as OF_IMAGES
from .data import (
    CAMVID,
    LabelledPictures,
    Scenes,
    class_weights,
    cross_entropy,
    levels,
    load_scenes,
)
from .quality import SCALES, segmentation_quality

# The rate was chosen for the plain row on validation pictures, among 0.001 and 0.003.
_SETTINGS: dict[str, Any] = {
    "dim": 64, "depth": 6, "num_heads": 4,
    "candidates": [{"learning_rate": 3e-3, "n_steps": 800}],
    "batch_size": 8, "weight_decay": 0.05, "warm_up": 0.1, "ema_decay": 0.99,
    "precision": "float32",
}  # fmt: skip
_N_DEPTH = 32  # pictures whose tokens are measured
ROWS = {
    name: OF_IMAGES[name]
    for name in (
        PLAIN, "NeuTRENO", "bilateral", "GRC", "twicing", "bilateral + GRC", "symmetric",
        "symmetric + NeuTRENO",
    )
}  # fmt: skip


class PixelClassifier(NetworkOfParts):
    """A `Segmenter` whose parts are named in plain words."""

    kind = Segmenter


def settings_of(data: str, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes and recipe, and what is given in their place."""
    return change_settings(_SETTINGS, recipe)


def build(
    scenes: Scenes, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int
) -> PixelClassifier:
    """The network of a row before training."""
    sizes = {name: settings[name] for name in ("dim", "depth", "num_heads")}
    sizes |= {
        "n_classes": scenes.n_classes, "image_size": list(scenes.train.target.shape[1:]),
    }  # fmt: skip
    return paired_network(PixelClassifier, sizes | dict(options), sizes, seed)


def make_batches(scenes: Scenes, settings: Mapping[str, Any]) -> Batches:
    """Batches of training pictures, enlarged, cropped and mirrored."""
    return LabelledPictures(scenes.train.images, scenes.train.target)


def make_loss(scenes: Scenes, settings: Mapping[str, Any]) -> Loss:
    """Cross-entropy with the classes weighted by the training pictures."""
    weights = class_weights(scenes.train.target, scenes.n_classes)
    return cross_entropy(weights, scenes.train.ignored)


def validate(model: Any, scenes: Scenes) -> dict[str, float]:
    """Mean intersection over union on the validation pictures, in percent."""
    known = scenes.validation
    found = segmentation_quality(model, known.images, known.target, n_classes=scenes.n_classes)
    return {"miou": 100 * found["miou"]}


@torch.no_grad()
def token_cosines(model: PixelClassifier, images: Array) -> list[float]:
    """Mean cosine of two tokens of a picture behind each block."""
    tokens = model.network.backbone.intermediates(levels(images))[1:]
    return [float(token_similarity(own.double()).mean()) for own in tokens]


def measure(
    trained: Any, scenes: Scenes, settings: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, Any]:
    """Quality on the test pictures, in percent, number of parameters, and time of a picture.

    ``miou_multi_scale`` is over copies of `SCALES`. ``pictures`` and ``pictures_multi_scale`` have
    a pseudo-value of the mean IoU for each picture; ``seconds`` are of the processor. ``cosines``
    are of tokens by layer, the last one ``token_cosine``, over the first pictures.
    """
    test, trained = scenes.test, trained.cpu()
    known = {"images": test.images, "target": test.target, "n_classes": scenes.n_classes}
    start = process_time()
    once = segmentation_quality(trained, **known)
    seconds = (process_time() - start) / len(test.images)
    often = segmentation_quality(trained, **known, scales=SCALES)
    each = zip(test.target_names, once["iou"], strict=True)
    cosines = token_cosines(trained, test.images[:_N_DEPTH])
    return {
        "miou": 100 * once["miou"], "miou_multi_scale": 100 * often["miou"],
        "accuracy": 100 * once["accuracy"], "class_accuracy": 100 * once["class_accuracy"],
        "parameters": sum(p.numel() for p in trained.parameters()), "seconds": seconds,
        "pictures": [round(100 * x, 3) for x in once["pictures"]],
        "pictures_multi_scale": [round(100 * x, 3) for x in often["pictures"]],
        "token_cosine": cosines[-1], "cosines": cosines,
        **{f"iou {name}": 100 * iou for name, iou in each},
    }  # fmt: skip


SCENES = Task(
    f"{__name__}:SCENES", ROWS, {"Segmenter": Segmenter}, load_scenes, settings_of, build,
    make_batches, make_loss, validate, measure,
)  # fmt: skip


def segment(data: str = CAMVID, **options: Any) -> pd.DataFrame:
    """Train segmenters of pictures with paired seeds, and measure them.

    Parameters
    ----------
    data : str, default="camvid"
        "camvid", or a folder with a picture ``images/NAME`` and a label picture ``labels/NAME`` for
        each, in folders train, val and test if there are any. Settings follow a colon:
        "my_scenes:size=96x128,ignore=255" names the size of all pictures, and a value of the labels
        that has no class.
    **options
        As `train_rows` takes them.

    Returns
    -------
    DataFrame
        That of `train_rows`, with the columns of `measure`.

    Raises
    ------
    ValueError
        If a row or a setting is unknown, or pictures and labels do not fit.
    FileNotFoundError
        If the pictures are missing.
    """
    return train_rows(SCENES, data, **options)
