"""Pictures of a folder with a folder for each class, in the parts that the folder gives."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import joblib
import numpy as np
import torch
from torch import Tensor

from ....datasets import pack_image_folder
from ....datasets.image_folder import picture_shape, pictures_in
from ..picture_sizes import read_size, smallest_size

PART_OF = {
    name: part
    for part, names in {
        "train": ("train", "training"),
        "validation": ("val", "valid", "validation"),
        "test": ("test", "testing"),
    }.items()
    for name in names
}
_LAYOUT = "must be CLASS/PICTURE, or train/CLASS/PICTURE beside folders val, test or both"
_FEWEST = 5  # training pictures of a class, of which one is for validation and one for test


@dataclass(frozen=True)
class PackedLevels:
    """Levels in [0, 1] of pictures on the disk; those that are asked for become a float32 tensor.

    Attributes
    ----------
    pictures : list of ndarray
        Memory-mapped pictures of one size, (height, width, 3), uint8.
    chosen : ndarray
        Indices into `pictures`.
    key : str
        Hash of all pictures.
    """

    pictures: list[np.ndarray]
    chosen: np.ndarray
    key: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pictures, channels, height and width."""
        height, width, channels = self.pictures[0].shape
        return len(self.chosen), channels, height, width

    @property
    def content(self) -> str:
        """Hash of the chosen pictures."""
        return joblib.hash([self.key, self.chosen])

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        chosen = self.chosen[index if isinstance(index, slice) else index.numpy()]
        pixels = np.stack([self.pictures[i] for i in chosen])
        return torch.from_numpy(pixels).movedim(3, 1).float() / 255

    def split(self, n: int) -> Iterator[Tensor]:
        """Tensors of `n` pictures each; the last may have fewer."""
        return (self[start : start + n] for start in range(0, len(self), n))

    def channel_moments(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel."""
        counts = np.zeros((self.shape[1], 256))
        for i in self.chosen:
            for channel, planes in enumerate(np.moveaxis(self.pictures[i], 2, 0)):
                counts[channel] += np.bincount(planes.ravel(), minlength=256)
        levels, shares = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
        means = shares @ levels
        return means.tolist(), np.sqrt(shares @ levels**2 - means**2).tolist()


@dataclass(frozen=True)
class ClassFolder:
    """Pictures of a folder, their classes, and the folders of parts where there are any.

    Attributes
    ----------
    pictures, key
        As in `PackedLevels`.
    target : ndarray
        Number of each picture's class.
    classes : tuple of str
    parts : dict
        Name of the folder and indices of its pictures, by "train", "validation" and "test". Only
        "train", of all pictures and with the name "", if the folder gives no parts.
    """

    pictures: list[np.ndarray]
    key: str
    target: np.ndarray
    classes: tuple[str, ...]
    parts: dict[str, tuple[str, np.ndarray]]


def read_class_folder(path: str, size: int | str | None = None) -> ClassFolder:
    """Read the pictures of ``FOLDER/CLASS`` or of ``FOLDER/train/CLASS`` and its like.

    Parts are folders train or training; val, valid or validation; and test or testing, in any case,
    that hold folders of classes. Pictures are packed as by `pack_image_folder`, in colour, and
    brought to one size as it does: `size`, else the one that all have, else `smallest_size`.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If pictures lie elsewhere, parts are ambiguous or there is no train, a class is missing
        from train or has fewer than five pictures there, the size cannot be read, or a side is
        under 8 pixels where pictures differ.
    """
    shapes = {str(file): picture_shape(file) for file in pictures_in(Path(path))}
    fitted = None if size is None else read_size(size)
    if fitted is None and len(set(shapes.values())) > 1:
        fitted = smallest_size(shapes)
    packed = pack_image_folder(path, colour=True, size=fitted)
    names = [PurePosixPath(name).parts for name in packed.names]
    above = sorted({name[0] for name in names if len(name) == 3})
    folders = {name: PART_OF[name.lower()] for name in above if name.lower() in PART_OF}
    for name in names:
        if len(name) != (3 if folders else 2) or (folders and name[0] not in folders):
            raise ValueError(f"data: {path} {_LAYOUT}; found {'/'.join(name)}")
    if folders:
        _check_parts(path, folders)
    classes = tuple(sorted({name[-2] for name in names}))
    target = np.array([classes.index(name[-2]) for name in names])
    own = np.array([name[0] if folders else "" for name in names])
    parts = {
        part: (folder, np.flatnonzero(own == folder))
        for folder, part in (folders or {"": "train"}).items()
    }
    _check_classes(path, classes, target[parts["train"][1]])
    return ClassFolder(packed.images, packed.key, target, classes, parts)


def _check_parts(path: str, folders: dict[str, str]) -> None:
    found = f"data: {path} has {' and '.join(folders)}"
    if len(set(folders.values())) < len(folders):
        raise ValueError(f"{found}, more than one folder of a part")
    if "train" not in folders.values():
        raise ValueError(f"{found}, but no folder train")
    if len(folders) == 1:
        raise ValueError(f"{found} alone; name that folder itself, or add val, test or both")


def _check_classes(path: str, classes: tuple[str, ...], train: np.ndarray) -> None:
    for name, count in zip(classes, np.bincount(train, minlength=len(classes)), strict=True):
        if not count:
            raise ValueError(f"data: {path} has no training pictures of the class {name!r}")
        if count < _FEWEST:
            raise ValueError(
                f"data: {path} has {count} training pictures of the class {name!r}; "
                f"must have {_FEWEST} or more"
            )
    if len(classes) < 2:
        raise ValueError(f"data: {path} must have two or more classes; found {classes[0]!r}")
