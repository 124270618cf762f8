"""Labelled pictures in three parts, and batches and losses of them."""

from dataclasses import dataclass
from functools import cached_property

import joblib
import numpy as np
import torch
from sklearn.utils import Bunch
from torch import Tensor, nn
from torch.nn import functional as F

from ....datasets import fetch_camvid
from ....solvers.inputs import Array
from ...names import split_settings
from ...training import Loss, generator_of
from .folder import read_scene_folder

CAMVID = "camvid"
_LARGEST = 1.5  # largest factor by which a picture is enlarged before it is cropped
_MEAN, _SPREAD = 0.45, 0.25  # of levels in [0, 1], roughly


@dataclass(frozen=True)
class Scenes:
    """Pictures with a class for every pixel, for training, validation and test."""

    train: Bunch
    validation: Bunch
    test: Bunch

    @property
    def n_classes(self) -> int:
        return len(self.train.target_names)

    @cached_property
    def content(self) -> str:
        """Hash that tells the pictures and their classes from others."""
        parts = (self.train, self.validation, self.test)
        return joblib.hash([x for part in parts for x in (part.images, part.target)])


def load_scenes(data: str = "camvid", data_home: str | None = None) -> Scenes:
    """Load CamVid, or a folder as `read_scene_folder` takes it, with its settings after a colon.

    Raises
    ------
    ValueError
        If a setting is unknown, or as `read_scene_folder`.
    """
    name, settings = split_settings(data, "data")
    known = () if name == CAMVID else ("size", "ignore")
    if unknown := set(settings) - set(known):
        raise ValueError(
            f"data: {name} takes {' and '.join(known) or 'no settings'}; got {unknown}"
        )
    if name == CAMVID:
        return Scenes(
            *(fetch_camvid(subset=x, data_home=data_home) for x in ("train", "val", "test"))
        )
    return Scenes(**read_scene_folder(name, **settings))


class LabelledPictures:
    """Batches of pictures and their classes: enlarged, cropped and mirrored at random.

    Parameters
    ----------
    images : uint8 ndarray of shape (n_images, height, width, channels)
    target : uint8 ndarray of shape (n_images, height, width)
    """

    def __init__(self, images: Array, target: Array) -> None:
        self.images, self.target = images, target

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        drawn = [self._draw_sample(generator_of(seed, step, sample)) for sample in samples]
        images, target = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return images, target

    def _draw_sample(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        number = int(rng.integers(len(self.images)))
        image, target = levels(self.images[[number]]), torch.from_numpy(self.target[[number]])
        scale = rng.uniform(1, _LARGEST)
        height, width = self.target.shape[1:]
        size = (round(scale * height), round(scale * width))
        top, left = (
            int(rng.integers(a - b + 1)) for a, b in zip(size, (height, width), strict=True)
        )
        image = resize(image, size)[..., top : top + height, left : left + width]
        target = F.interpolate(target[:, None].float(), size, mode="nearest-exact")[:, 0].long()
        target = target[:, top : top + height, left : left + width]
        return (image.flip(-1), target.flip(-1)) if rng.random() < 0.5 else (image, target)


def levels(images: Array) -> Tensor:
    """8-bit pictures as float32 (n_images, channels, height, width), roughly standardised."""
    planes = torch.from_numpy(images).movedim(-1, 1).float() / 255
    return (planes - _MEAN) / _SPREAD


def resize(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate planes to another height and width."""
    return F.interpolate(planes, size, mode="bilinear", align_corners=False)


def class_weights(target: Array, n_classes: int) -> Tensor:
    """Square roots of the weights of median frequency balancing.

    A weight is the median share of all classes over the share of the class, in pixels of pictures
    that hold it. Without the root, rare classes cost more on validation pictures than they gain.

    References
    ----------
    Eigen and Fergus (2015); Badrinarayanan et al., *SegNet* (2017).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.bench.vision.segmentation.data import class_weights
    >>> class_weights(np.array([[[0, 0, 0, 1]]]), 2)
    tensor([0.8165, 1.4142])
    """
    counts = np.stack([(target == c).sum(axis=(1, 2)) for c in range(n_classes)], axis=1)
    size = target[0].size
    present = np.maximum((counts > 0).sum(axis=0), 1)
    shares = counts.sum(axis=0) / (present * size)
    if not shares.all():
        raise ValueError(f"target: holds no pixel of class {int(np.argmin(shares))}")
    return torch.tensor(np.sqrt(np.median(shares) / shares), dtype=torch.float32)


def cross_entropy(weights: Tensor, ignored: int) -> Loss:
    """Weighted cross entropy over the pixels whose label is not `ignored`."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, target = batch
        scores = model(images).float()
        return F.cross_entropy(scores, target, weights.to(scores.device), ignore_index=ignored)

    return loss
