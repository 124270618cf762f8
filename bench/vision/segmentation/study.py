"""Segmenters trained with the same seeds, and how well each finds the classes of pixels."""

from collections.abc import Iterable
from pathlib import Path
from time import process_time
from typing import Any

import pandas as pd
import torch

from ....datasets import fetch_camvid
from ....unrolled import operator_names
from ....unrolled.models import Segmenter
from ...jobs import Job, Options, run_jobs
from ...names import close_names
from ...timing import Progress
from ..recipe import Recipe
from ..training import train
from .pictures import LabelledPictures, class_weights, cross_entropy
from .quality import SCALES, segmentation_quality

PLAIN = "plain"
# Settings of `Segmenter`; what is not said is plain.
_MODELS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "NeuTRENO": {"operator": "neutreno"},
    "bilateral": {"operator": "bilateral"},
    "GRC": {"residual": "generalized"},
    "twicing": {"operator": "twicing"},
}
# Chosen for the plain model on validation pictures, among rates of 0.001 and 0.003.
RECIPE = {
    "batch_size": 8, "learning_rate": 3e-3, "weight_decay": 0.05, "warm_up": 0.1, "ema_decay": 0.99,
}  # fmt: skip
SIZE = {"dim": 64, "depth": 6, "num_heads": 4}
N_STEPS = 800


def segment(
    models: Iterable[str] | None = None,
    *,
    n_seeds: int = 3,
    seed: int = 0,
    n_steps: int = N_STEPS,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path = Path("results/segment"),
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Train segmenters on CamVid and judge them on its test pictures.

    All models have the same seeds: with a seed they see the same pictures in the same order, cut
    alike. The averaged weights at the end are judged, once.

    Parameters
    ----------
    models : iterable of str, optional
        Names of `model_names`, or of operators (`twinsolve.unrolled.operator_names`). None is all
        of the first.
    n_seeds : int, default=3
    seed : int, default=0
        The first of them.
    n_steps : int, default=800
        Steps of training, of 8 pictures each.
    n_jobs : int, default=1
        Processes, one run each.
    data_home : str, optional
        Folder of the data sets, as in `twinsolve.datasets.fetch_camvid`.
    directory : Path
        Folder of the runs: one each, which an interrupted command goes on from.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the runs.

    Returns
    -------
    DataFrame
        A row for each model and seed: ``miou`` and ``miou_multi_scale`` (see
        `segmentation_quality`, the latter over copies of `SCALES`), ``accuracy``, ``iou CLASS``,
        all in percent; ``pictures`` and ``pictures_multi_scale``, a pseudo-value of the mean IoU
        for each test picture; ``parameters``; ``seconds`` of the processor for a picture.

    Raises
    ------
    ValueError
        If a model is unknown, or a number out of range.
    """
    names = list(_MODELS) if models is None else list(dict.fromkeys(models))
    if n_steps < 1 or not names:
        raise ValueError(f"n_steps: must be >= 1, got {n_steps}" if names else "models: none")
    settings = {name: model_settings(name) for name in names}
    options = Options(seed, n_seeds, n_jobs, data_home, directory / "runs", progress)
    jobs: list[Job] = [
        {
            "model": name, "settings": settings[name], "seed": number, "recipe": RECIPE,
            "size": SIZE, "n_steps": n_steps, "directory": str(directory), "data_home": data_home,
        }
        for number in options.seeds
        for name in names
    ]  # fmt: skip
    fetch_camvid(data_home=data_home)
    return run_jobs(_run, jobs, options)


def model_names() -> list[str]:
    """Names of the models that are compared by default."""
    return list(_MODELS)


def model_settings(name: str) -> dict[str, Any]:
    """Settings of `Segmenter` that a name stands for.

    Raises
    ------
    ValueError
        If it is neither of `model_names` nor an operator.
    """
    if name in _MODELS:
        return dict(_MODELS[name])
    if name in operator_names():
        return {"operator": name}
    known = [*_MODELS, *operator_names()]
    raise ValueError(f"models: none is named {name!r}{close_names(name, known)}")


def _run(
    model: str,
    settings: dict[str, Any],
    seed: int,
    recipe: dict[str, Any],
    size: dict[str, int],
    n_steps: int,
    directory: str,
    data_home: str | None,
) -> list[dict[str, Any]]:
    """Train, or go on, in a folder of the run's own, and judge."""
    pictures = {
        name: fetch_camvid(subset=name, data_home=data_home) for name in ("train", "val", "test")
    }
    known, tried, test = pictures["train"], pictures["val"], pictures["test"]
    n_classes = len(known.target_names)
    torch.manual_seed(seed)
    given: dict[str, Any] = size | settings
    network = Segmenter(n_classes, known.target.shape[1:], **given)

    def validate(model: torch.nn.Module) -> dict[str, float]:
        found = segmentation_quality(model, tried.images, tried.target, n_classes=n_classes)
        return {"validation_miou": 100 * found["miou"]}

    trained = train(
        network,
        LabelledPictures(known.images, known.target),
        cross_entropy(class_weights(known.target, n_classes), known.ignored),
        Recipe(n_steps=n_steps, seed=seed, validate_every=n_steps, **recipe),
        directory=Path(directory) / f"{model}-{seed}",
        validate=validate,
        task={"data": "camvid"},
    )
    start = process_time()
    once = segmentation_quality(trained, test.images, test.target, n_classes=n_classes)
    seconds = (process_time() - start) / len(test.images)
    often = segmentation_quality(
        trained, test.images, test.target, n_classes=n_classes, scales=SCALES
    )
    row = {
        "model": model, "seed": seed, "miou": 100 * once["miou"],
        "miou_multi_scale": 100 * often["miou"], "accuracy": 100 * once["accuracy"],
        "parameters": sum(p.numel() for p in trained.parameters()), "seconds": seconds,
        "pictures": [round(100 * x, 3) for x in once["pictures"]],
        "pictures_multi_scale": [round(100 * x, 3) for x in often["pictures"]],
    }  # fmt: skip
    each = zip(test.target_names, once["iou"], strict=True)
    return [row | {f"iou {name}": 100 * iou for name, iou in each}]
