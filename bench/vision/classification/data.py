"""Images of classes, split into those that train, those that choose and those that judge."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....datasets import fetch_cifar10, load_digits, load_image_folder
from ...names import split_settings

_SHARE = 0.2  # of the images, to choose and to judge each


@dataclass(frozen=True)
class Images:
    """Levels in [0, 1], (n_images, channels, height, width), and their classes."""

    levels: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Splits:
    """Images that train, validate and test."""

    train: Images
    validation: Images
    test: Images
    classes: tuple[str, ...]


def load_splits(data: str, data_home: str | None = None) -> Splits:
    """Load images of classes in three parts, the same each time.

    Parameters
    ----------
    data : str
        "digits" (of scikit-learn); "cifar10", or "cifar10:n_train=10000" for so many of its
        training images; or a folder with a folder of pictures for each class, all of one size.
    data_home : str, optional
        As in `twinsolve.datasets.fetch_cifar10`.

    Returns
    -------
    Splits
        A fifth of digits and of a folder's pictures validates and another tests, drawn by class; of
        CIFAR-10, a tenth of the training images validates, and its own test images test.

    Raises
    ------
    ValueError
        If pictures differ in size, a class has fewer than five, or a setting is unknown.
    """
    name, settings = split_settings(data, "data")
    if name == "cifar10":
        return _cifar10(data_home, **_checked(settings))
    if settings:
        raise ValueError(f"data: {name!r} takes no settings, got {data!r}")
    if name == "digits":
        digits = load_digits()
        levels, target = digits.images[..., None] / 16, digits.target
        return _split(levels, target, tuple(map(str, digits.target_names)))
    return _split(*_folder(name))


def _checked(settings: dict[str, int]) -> dict[str, int]:
    n_train = settings.get("n_train", 50_000)
    if set(settings) - {"n_train"} or not isinstance(n_train, int) or not 100 <= n_train <= 50_000:
        raise ValueError(f"data: cifar10 takes n_train, 100 to 50000; got {settings}")
    return {"n_train": n_train}


def _cifar10(data_home: str | None, n_train: int) -> Splits:
    known = fetch_cifar10(data_home=data_home)
    judges = fetch_cifar10(subset="test", data_home=data_home)
    drawn = _by_class(known.target)[:n_train]
    n_chosen = n_train // 10
    return Splits(
        _images(known.images[drawn[n_chosen:]] / 255, known.target[drawn[n_chosen:]]),
        _images(known.images[drawn[:n_chosen]] / 255, known.target[drawn[:n_chosen]]),
        _images(judges.images / 255, judges.target),
        tuple(known.target_names),
    )


def _folder(path: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    pictures = load_image_folder(path, colour=True)
    labels = [Path(name).parent.name for name in pictures.names]
    sizes = {image.shape for image in pictures.images}
    if len(sizes) > 1:
        raise ValueError(f"data: pictures of {path} differ in size: {sorted(sizes)[:3]}")
    classes, target = np.unique(labels, return_inverse=True)
    if len(classes) < 2 or np.bincount(target).min() < 5:
        raise ValueError(f"data: {path} must hold two folders or more, of five pictures or more")
    return np.stack(pictures.images), target, tuple(map(str, classes))


def _split(levels: np.ndarray, target: np.ndarray, classes: tuple[str, ...]) -> Splits:
    order = _by_class(target)
    n_part = round(_SHARE * len(order))
    parts = np.split(order, [n_part, 2 * n_part])
    test, validation, train = (_images(levels[part], target[part]) for part in parts)
    return Splits(train, validation, test, classes)


def _by_class(target: np.ndarray) -> np.ndarray:
    """A random order in which every beginning holds the classes in their shares."""
    rng = np.random.default_rng(0)
    place = np.empty(len(target))
    for each in np.unique(target):
        own = np.flatnonzero(target == each)
        place[rng.permutation(own)] = (np.arange(len(own)) + rng.random()) / len(own)
    return np.argsort(place, kind="stable")


def _images(levels: np.ndarray, target: np.ndarray) -> Images:
    planes = np.ascontiguousarray(np.moveaxis(levels, 3, 1), dtype=np.float32)
    return Images(torch.from_numpy(planes), torch.from_numpy(target.astype(np.int64)))
