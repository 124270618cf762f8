"""Images with classes for training, validation and test, and batches of training images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor, nn

from ....datasets import fetch_cifar10, load_digits
from ...names import split_settings
from ...parts import balance_loss, tokens_of_experts
from .folder import PackedLevels, read_class_folder

Batches = Callable[[int, int, range], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Images:
    """Levels in [0, 1], (n_images, channels, height, width), and their classes.

    Levels are a tensor, or `PackedLevels`, of which slices and choices are tensors.
    """

    levels: Any
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def channel_moments(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel."""
        if isinstance(self.levels, PackedLevels):
            return self.levels.channel_moments()
        mean, std = self.levels.mean(dim=(0, 2, 3)), self.levels.std(dim=(0, 2, 3))
        return mean.tolist(), std.tolist()

    @property
    def content(self) -> str:
        """Hash that tells the images from others."""
        own = self.levels
        levels = own.content if isinstance(own, PackedLevels) else own.numpy()
        return joblib.hash([levels, self.target.numpy()])


@dataclass(frozen=True)
class Splits:
    """Images for training, validation and test; `origin` says in words where they are from."""

    train: Images
    validation: Images
    test: Images
    classes: tuple[str, ...]
    origin: str = ""

    @cached_property
    def content(self) -> str:
        """Hash that tells the images from others under the same names."""
        return joblib.hash([part.content for part in (self.train, self.validation, self.test)])


def load_splits(data: str, data_home: str | None = None) -> Splits:
    """Load images with classes in three parts, the same at each call.

    Parameters
    ----------
    data : str
        "digits" (of scikit-learn); "cifar10"; either with a number of training images,
        "cifar10:n_train=10000"; or a folder with a folder of pictures for each class, or with such
        folders in its folders train, val and test. Pictures are brought to one size as
        `read_class_folder` says; "my_pictures:size=64" or ":size=64x96" names it.
    data_home : str, optional
        As in `twinsolve.datasets.fetch_cifar10`.

    Returns
    -------
    Splits
        Of digits, a fifth is for validation and another fifth for test, drawn by class; of
        CIFAR-10, a tenth of the training images is for validation. A folder's own parts stay as
        they are; of a part that it lacks, a fifth of the training pictures is drawn by class.
        Pictures of a folder stay on the disk, as `pack_image_folder` writes them. The first images
        of a part hold all classes in their shares.

    Raises
    ------
    ValueError
        If a setting is unknown, or a folder is not as `read_class_folder` takes it.

    Examples
    --------
    >>> from twinsolve.bench import load_splits
    >>> splits = load_splits("digits")
    >>> len(splits.train), len(splits.validation), len(splits.test)
    (1079, 359, 359)
    >>> splits.test.levels[:2].shape, splits.test.target[:2]
    (torch.Size([2, 1, 8, 8]), tensor([2, 9]))
    """
    name, settings = split_settings(data, "data")
    if name == "cifar10":
        return _load_cifar10(data_home, _read_n_train(name, settings, 50_000))
    if name == "digits":
        return _load_digits(_read_n_train(name, settings, 1079))
    if set(settings) - {"size"}:
        raise ValueError(f"data: a folder takes size, got {data!r}")
    return _load_folder(name, settings.get("size"))


def _read_n_train(name: str, settings: dict[str, Any], most: int) -> int:
    n_train = settings.get("n_train", most)
    if set(settings) - {"n_train"} or not isinstance(n_train, int) or not 100 <= n_train <= most:
        raise ValueError(f"data: {name} takes n_train, 100 to {most}; got {settings}")
    return n_train


def _load_digits(n_train: int) -> Splits:
    digits = load_digits()
    levels, target = digits.images[..., None] / 16, digits.target
    splits = _split(levels, target, tuple(map(str, digits.target_names)))
    few = Images(splits.train.levels[:n_train], splits.train.target[:n_train])
    return replace(splits, train=few)


def _load_cifar10(data_home: str | None, n_train: int) -> Splits:
    known = fetch_cifar10(data_home=data_home)
    judges = fetch_cifar10(subset="test", data_home=data_home)
    drawn, judging = _order_by_class(known.target)[:n_train], _order_by_class(judges.target)
    n_chosen = n_train // 10
    return Splits(
        _make_images(known.images[drawn[n_chosen:]] / 255, known.target[drawn[n_chosen:]]),
        _make_images(known.images[drawn[:n_chosen]] / 255, known.target[drawn[:n_chosen]]),
        _make_images(judges.images[judging] / 255, judges.target[judging]),
        tuple(known.target_names),
    )


def _load_folder(path: str, size: int | str | None) -> Splits:
    found = read_class_folder(path, size)
    names = {part: folder for part, (folder, _) in found.parts.items()}
    parts = {part: chosen for part, (_, chosen) in found.parts.items()}
    parts = {part: own[_order_by_class(found.target[own])] for part, own in parts.items()}
    n_part = round(_SHARE * len(parts["train"]))
    for part in ("test", "validation"):
        if part not in parts:
            parts[part], parts["train"] = np.split(parts["train"], [n_part])
    train, validation, test = (
        Images(
            PackedLevels(found.pictures, parts[part], found.key),
            _make_target(found.target[parts[part]]),
        )
        for part in _PARTS
    )
    return Splits(train, validation, test, found.classes, _describe_parts(parts, names))


def _describe_parts(parts: Mapping[str, np.ndarray], names: Mapping[str, str]) -> str:
    """Number of pictures of each part, and the folder that they are from."""
    told = []
    for part in _PARTS:
        folder = names.get(part, names["train"])
        drawn = "" if part in names else ", drawn by class"
        told.append(f"{part}: {len(parts[part]):,}{f' of {folder}' if folder else ''}{drawn}")
    return "; ".join(told)


def _split(levels: np.ndarray, target: np.ndarray, classes: tuple[str, ...]) -> Splits:
    order = _order_by_class(target)
    n_part = round(_SHARE * len(order))
    parts = np.split(order, [n_part, 2 * n_part])
    test, validation, train = (_make_images(levels[part], target[part]) for part in parts)
    return Splits(train, validation, test, classes)


def _order_by_class(target: np.ndarray) -> np.ndarray:
    """A random order of indices whose first n hold the classes in their shares, for each n."""
    rng = np.random.default_rng(0)
    place = np.empty(len(target))
    for each in np.unique(target):
        own = np.flatnonzero(target == each)
        place[rng.permutation(own)] = (np.arange(len(own)) + rng.random()) / len(own)
    return np.argsort(place, kind="stable")


def _make_images(levels: np.ndarray, target: np.ndarray) -> Images:
    planes = np.ascontiguousarray(np.moveaxis(levels, 3, 1), dtype=np.float32)
    return Images(torch.from_numpy(planes), _make_target(target))


def _make_target(target: np.ndarray) -> Tensor:
    return torch.from_numpy(target.astype(np.int64))


def batch_order(n: int, batch_size: int, seed: int, step: int) -> np.ndarray:
    """Indices of the samples of a step, drawn without replacement in each epoch."""
    counted = step * batch_size + np.arange(batch_size)
    order = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(counted // n):
        own = counted // n == epoch
        shuffled = np.random.default_rng((seed, int(epoch), n)).permutation(n)
        order[own] = shuffled[counted[own] % n]
    return order


class ClassBatches:
    """Batches drawn without replacement within an epoch, shifted and mirrored at random.

    Batches depend on seed and step alone, so that all networks of a seed see the same ones.

    Parameters
    ----------
    images : Images
    batch_size : int
    shift : int
        Largest shift in pixels, along each side; zeros fill the gap.
    flip : bool
        Mirror images from left to right, with probability 0.5.
    """

    def __init__(self, images: Images, *, batch_size: int, shift: int, flip: bool) -> None:
        self.images, self.batch_size, self.shift, self.flip = images, batch_size, shift, flip

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng((seed, step))
        shifts = rng.integers(-self.shift, self.shift + 1, size=(self.batch_size, 2))
        flips = rng.integers(2, size=self.batch_size) * self.flip
        order = batch_order(len(self.images), self.batch_size, seed, step)
        chosen = torch.from_numpy(order[samples])
        levels = self.images.levels[chosen]
        own = slice(samples.start, samples.stop)
        return self._move(levels, shifts[own], flips[own]), self.images.target[chosen]

    def _move(self, levels: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
        height, width = levels.shape[2:]
        padded = nn.functional.pad(levels, [self.shift] * 4).numpy()
        moved = np.empty(levels.shape, dtype=padded.dtype)
        for place, ((top, left), flip) in enumerate(zip(self.shift + shifts, flips, strict=True)):
            image = padded[place, :, top : top + height, left : left + width]
            moved[place] = image[..., ::-1] if flip else image
        return torch.from_numpy(moved)


def cross_entropy(smoothing: float) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Mean cross-entropy with smoothed labels, plus a balancing term for mixtures of experts."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        levels, target = batch
        with tokens_of_experts(model) as seen:
            scores = model(levels)
        entropy = nn.functional.cross_entropy(scores, target, label_smoothing=smoothing)
        return entropy + balance_loss(seen)

    return loss


_PARTS = ("train", "validation", "test")
_SHARE = 0.2  # of the images, for validation and for test each
