"""Training batches of pictures with a class for every pixel."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..patches import Array, generator_of

_LARGEST = 1.5  # by which a picture is enlarged before it is cut
_MEAN, _SPREAD = 0.45, 0.25  # of levels, by and large


class LabelledPictures:
    """Batches of pictures, enlarged, cut to their size and mirrored at random, and their classes.

    Parameters
    ----------
    images : uint8 ndarray of shape (n_images, height, width, channels)
    target : uint8 ndarray of shape (n_images, height, width)
    """

    def __init__(self, images: Array, target: Array) -> None:
        self.images, self.target = images, target

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        drawn = [self._drawn(generator_of(seed, step, sample)) for sample in samples]
        images, target = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return images, target

    def _drawn(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        number = int(rng.integers(len(self.images)))
        image, target = levels(self.images[[number]]), torch.from_numpy(self.target[[number]])
        scale = rng.uniform(1, _LARGEST)
        height, width = self.target.shape[1:]
        size = (round(scale * height), round(scale * width))
        top, left = (
            int(rng.integers(a - b + 1)) for a, b in zip(size, (height, width), strict=True)
        )
        image = resized(image, size)[..., top : top + height, left : left + width]
        target = F.interpolate(target[:, None].float(), size, mode="nearest-exact")[:, 0].long()
        target = target[:, top : top + height, left : left + width]
        return (image.flip(-1), target.flip(-1)) if rng.random() < 0.5 else (image, target)


def levels(images: Array) -> Tensor:
    """Pictures of 8 bits as float32 (n_images, channels, height, width), by and large standard."""
    planes = torch.from_numpy(images).movedim(-1, 1).float() / 255
    return (planes - _MEAN) / _SPREAD


def resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolated to another height and width."""
    return F.interpolate(planes, size, mode="bilinear", align_corners=False)


def class_weights(target: Array, n_classes: int) -> Tensor:
    """Square roots of median frequency balancing: of the median share over that of the class.

    Shares are of the pixels of those pictures that hold the class; other labels count as none.
    Without the root, rare classes cost more on the validation pictures of CamVid than they gain.

    References
    ----------
    Eigen and Fergus (2015); Badrinarayanan et al., *SegNet* (2017).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.bench.vision.segmentation.pictures import class_weights
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


def cross_entropy(
    weights: Tensor, ignored: int
) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Weighted cross entropy of pixels, of which those of the ignored label have no part."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, target = batch
        scores = model(images).float()
        return F.cross_entropy(scores, target, weights.to(scores.device), ignore_index=ignored)

    return loss
