"""The study of image classifiers: data, recipes, rows and measures."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from ....unrolled.generators import seeded
from ...costs import N_TIMED, size_measures, speed_ratios
from ...paired_training import train_rows
from ...parts import paired_network
from ...run_folder import find_class
from ...task import PLAIN, Task, change_settings
from ...training import Batches, Loss
from .augmentation import augment
from .data import ClassBatches, Splits, cross_entropy, load_splits
from .measures import (
    CLEAN,
    accuracies,
    depth_measures,
    wrong,
    wrong_attacked,
    wrong_corrupted,
)
from .networks import ARCHITECTURES, Classifier

_PICTURES: dict[str, Any] = {
    "patch_size": 4, "dim": 96, "depth": 6, "num_heads": 4, "mlp_ratio": 2.0,
    "candidates": [
        {"learning_rate": rate, "position_scale": 0.5**0.5, "n_steps": 3000}
        for rate in (5e-4, 1e-3)
    ],
    "batch_size": 64, "weight_decay": 0.05, "warm_up": 0.07, "ema_decay": 0.998,
    "label_smoothing": 0.1, "drop_path": 0.1, "shift": 4, "flip": True, "erasing": 0.0,
    "mixup": 0.0, "cutmix": 0.0, "precision": "float32",
}  # fmt: skip
# Sizes and recipes of data sets, as far as they differ from `_PICTURES`. Each row takes the
# candidate that does best on the validation images; the first wins ties. `position_scale` is the
# initial size of learned positions (0.5**0.5: that of sinusoids); networks without positions ignore
# it. `shift` (pixels) and `flip` move images, `erasing` is the share of images that lose a
# rectangle, `mixup` and `cutmix` are the shares of batches that are mixed in pairs.
_OF_DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "patch_size": 2, "dim": 32, "ema_decay": 0.98, "drop_path": 0.0, "shift": 0, "flip": False,
        "candidates": [
            {"learning_rate": rate, "position_scale": scale, "n_steps": n_steps}
            for rate, scale, n_steps in (
                (3e-3, 0.5**0.5, 300), (6e-3, 0.5**0.5, 300), (6e-3, 0.1, 300),
                (3e-3, 0.5**0.5, 600), (6e-3, 0.5**0.5, 600),
            )
        ],
    },
    "cifar10:n_train=12000": {  # two cores train the rows of its page within an hour
        "dim": 64,
        "candidates": [
            {"learning_rate": rate, "position_scale": 0.5**0.5, "n_steps": 1200}
            for rate in (2e-3, 4e-3)
        ],
    },
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "no attention skip": {"attention_skip": False},
    "ConvMixer": {"architecture": "ConvMixer"},
    "ConvMixer, no skip": {"architecture": "ConvMixer", "skip": False},
    "sparse coding": {"operator": "sparse_coding"},
    "solved codes": {"operator": "sparse_coding", "correction": "solved"},
    "NeuTRENO": {"correction": "neutreno"},
    "twicing": {"correction": "twicing"},
    "GRC": {"residual": "boosting"},
    "bilateral": {"operator": "bilateral"},
    "ridge": {"operator": "ridge"},
    "AttnScale": {"correction": "attn_scale"},
    "FeatScale": {"scale": "FeatScale"},
    "sparsemax": {"operator": "sparsemax"},
    "kernel": {"operator": "kernel"},
    "local": {"operator": "Local:radius=1"},
    "TUPE": {"operator": "tupe"},
    "ALiBi": {"operator": "alibi"},
    "bilateral + GRC": {"operator": "bilateral", "residual": "boosting"},
    "NeuTRENO + FeatScale": {"correction": "neutreno", "scale": "FeatScale"},
    "symmetric": {"operator": "symmetric"},
    "symmetric + NeuTRENO": {"operator": "symmetric", "correction": "neutreno"},
    "elliptical": {"operator": "elliptical"},
    "token graying": {"token_graying": "dct"},
}


def settings_of(data: str, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes and recipe of a data set; a given `recipe` replaces settings.

    Raises
    ------
    ValueError
        If a setting is unknown or of another type, or a share is not in [0, 1].
    """
    known = _PICTURES | _OF_DATA.get(data, _OF_DATA.get(data.partition(":")[0], {}))
    settings = change_settings(known, recipe)
    erasing, mixup, cutmix = (settings[name] for name in ("erasing", "mixup", "cutmix"))
    if min(erasing, mixup, cutmix) < 0 or max(erasing, mixup + cutmix) > 1:
        raise ValueError("recipe: erasing, and mixup and cutmix together, are shares from 0 to 1")
    return settings


def build(
    splits: Splits, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int
) -> Classifier:
    """The network of a row before training.

    A user's own network gets those of ``in_channels``, ``num_classes`` and ``image_size`` (height
    and width) that its constructor names, and the settings of its row.

    Raises
    ------
    ValueError
        If an option is unknown, or an own network does not return a score for each class.
    """
    mean, std = splits.train.channel_moments()
    architecture = options.get("architecture", "ViT")
    own = ":" in architecture
    sizes = _choose_sizes(splits, settings, architecture)
    if own or architecture == "ConvMixer":  # they have no positions
        options = {name: x for name, x in options.items() if name != "position_scale"}
    make = partial(Classifier, mean=mean, std=std)
    if not own:
        return paired_network(make, sizes | dict(options), sizes, seed)
    with seeded(seed):
        model = make(sizes | dict(options))
        _check_scores(model, splits)
    return model


@torch.no_grad()
def _check_scores(model: Classifier, splits: Splits) -> None:
    images, expected = splits.train.levels[:2], (2, len(splits.classes))
    name = model.options["architecture"]
    try:
        found = tuple(model.eval()(images).shape)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ValueError(
            f"row: {name} fails on images of shape {tuple(images.shape)}: {error}"
        ) from error
    if found != expected:
        raise ValueError(f"row: {name} must return scores of shape {expected}, got {found}")


def _choose_sizes(splits: Splits, settings: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    _, channels, height, width = splits.train.levels.shape
    if ":" in architecture:
        taken = inspect.signature(find_class(architecture)).parameters
        known = {
            "in_channels": channels, "num_classes": len(splits.classes),
            "image_size": [height, width],
        }  # fmt: skip
        of_images = {name: value for name, value in known.items() if name in taken}
        return {"architecture": architecture, **of_images}
    common = {
        "architecture": architecture, "in_channels": channels, "num_classes": len(splits.classes),
        **{name: settings[name] for name in ("patch_size", "dim", "depth")},
    }  # fmt: skip
    if architecture == "ConvMixer":
        return common | {"kernel_size": 3}
    if architecture == "SelfExpression":
        return common | {"num_heads": settings["num_heads"], "image_size": [height, width]}
    of_blocks = {name: settings[name] for name in ("num_heads", "mlp_ratio", "drop_path")}
    common |= of_blocks | {"image_size": [height, width]}
    if architecture == "Swin":
        depth, heads = common.pop("depth"), common.pop("num_heads")
        stages = {"depths": [depth // 2, depth - depth // 2], "num_heads": [heads, 2 * heads]}
        return common | stages
    return common | ({"pool": "mean"} if architecture == "ViT" else {})


def make_batches(splits: Splits, settings: Mapping[str, Any]) -> Batches:
    """Batches of training images, augmented as the settings say."""
    names = ("batch_size", "shift", "flip")
    batches = ClassBatches(splits.train, **{name: settings[name] for name in names})
    mixing = {name: settings[name] for name in ("erasing", "mixup", "cutmix")}
    return augment(batches, n_classes=len(splits.classes), **mixing)


def make_loss(splits: Splits, settings: Mapping[str, Any]) -> Loss:
    """Cross-entropy with the label smoothing of the settings."""
    return cross_entropy(settings["label_smoothing"])


def validate(model: Any, splits: Splits) -> dict[str, float]:
    """Top-1 accuracy on validation images, in percent."""
    return {"top1": accuracies(model, splits.validation)["top1"]}


def measure(
    trained: Any, splits: Splits, settings: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, size, speed and depth of a trained network, on test images.

    ``wrong`` has the indices of misclassified images: clean, and by attack and corruption.
    """
    found: dict[str, Any] = accuracies(trained, splits.test)
    found |= {
        "parts": splits.origin,
        "n_test": len(splits.test),
        "wrong": {CLEAN: wrong(trained, splits.test)},
    }
    if "attack" in measures:
        found["wrong"] |= wrong_attacked(trained, splits.test)
    if "corruptions" in measures:
        found["wrong"] |= wrong_corrupted(trained, splits.test)
    plain, trained = build(splits, settings, {}, 0).eval(), trained.cpu()
    few = splits.test.levels[:N_TIMED]
    found |= size_measures(trained, few) | speed_ratios(trained, plain, few)
    return found | depth_measures(trained, splits.test)


IMAGES = Task(
    f"{__name__}:IMAGES", ROWS, ARCHITECTURES, load_splits, settings_of, build, make_batches,
    make_loss, validate, measure, own_networks=True,
)  # fmt: skip


def classify(
    data: str = "digits", *, attack: bool = False, corruptions: bool = False, **options: Any
) -> pd.DataFrame:
    """Train classifiers of images with paired seeds, and measure them.

    Parameters
    ----------
    data : str, default="digits"
        As in `load_splits`.
    attack, corruptions : bool, default=False
        Also measure accuracy on attacked and corrupted test images.
    **options
        Options of `train_rows`: rows, seeds, steps, recipe, against, n_jobs, data_home, device,
        directory and progress.

    Returns
    -------
    DataFrame
        The table of `train_rows`, with accuracies in percent; ``inference`` and ``training`` are
        ratios of throughput to the plain row; ``wrong`` has the indices of misclassified test
        images: clean, and by attack and corruption.

    Raises
    ------
    ValueError
        If data, a row or a setting is unknown.

    Examples
    --------
    Two networks of one layer, two steps each; a real study leaves out `steps` and `recipe`.

    >>> from pathlib import Path
    >>> from twinsolve.bench import classify
    >>> small = {"dim": 8, "depth": 1, "num_heads": 1}
    >>> table = classify(
    ...     "digits", rows=["NeuTRENO"], seeds=1, steps=2, recipe=small, directory=Path("runs")
    ... )
    >>> table[["row", "seed"]].values.tolist()
    [['softmax', 0], ['NeuTRENO', 0]]
    """
    asked = [*(["attack"] if attack else []), *(["corruptions"] if corruptions else [])]
    return train_rows(IMAGES, data, measures=asked, **options)
