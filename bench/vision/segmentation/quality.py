"""Class scores of pictures at several scales, and how well they classify the pixels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....solvers.inputs import Array
from ...devices import device_of
from .data import levels, resize

_AT_ONCE = 16
SCALES = (1.0, 1.25, 1.5)


@torch.no_grad()
def scores_of(model: nn.Module, images: Tensor, scales: Sequence[float] = (1.0,)) -> Tensor:
    """Mean class probabilities over enlarged copies of the images, each seen in windows.

    Windows have the size of the images, cover a copy evenly and are at most half a window apart.
    Probabilities are averaged where windows overlap, then resized to the images. The scale 1 has
    one window.
    """
    size = (images.shape[-2], images.shape[-1])
    total = torch.zeros(())
    for scale in scales:
        enlarged = (round(scale * size[0]), round(scale * size[1]))
        total = total + resize(_score_windows(model, resize(images, enlarged), size), size)
    return total / len(scales)


def _score_windows(model: nn.Module, images: Tensor, size: Sequence[int]) -> Tensor:
    found: Any = 0.0
    counts = images.new_zeros(images.shape[-2:])
    for top in _place_windows(images.shape[-2], size[0]):
        for left in _place_windows(images.shape[-1], size[1]):
            place = (..., slice(top, top + size[0]), slice(left, left + size[1]))
            seen = model(images[place]).softmax(dim=1)
            if not torch.is_tensor(found):
                found = images.new_zeros(seen.shape[:2] + images.shape[-2:])
            found[place] += seen
            counts[place] += 1
    return found / counts


def _place_windows(extent: int, size: int) -> list[int]:
    n = 1 + int(np.ceil(2 * (extent - size) / size))
    return [round(x) for x in np.linspace(0, extent - size, n)]


def segmentation_quality(
    model: nn.Module,
    images: Array,
    target: Array,
    *,
    n_classes: int,
    scales: Sequence[float] = (1.0,),
) -> dict[str, Any]:
    """Intersection over union of each class, its mean, and accuracies.

    ::

        IoU_c = |found c and true c| / |found c or true c|
        accuracy_c = |found c and true c| / |true c|

    over the pixels of all images whose label is a class; others do not count. The mean over classes
    is no mean over images. Each image therefore gets a pseudo-value: the mean, plus its first-order
    change with the weight of the image. The mean of the pseudo-values is ``miou``.

    Parameters
    ----------
    model : nn.Module
        Returns scores (n_images, n_classes, height, width) of pictures.
    images : uint8 ndarray of shape (n_images, height, width, channels)
    target : ndarray of shape (n_images, height, width)
    n_classes : int
    scales : sequence of float, default=(1.0,)
        As in `scores_of`.

    Returns
    -------
    dict
        ``miou``; ``accuracy``, the share of correct pixels; ``class_accuracy``, the mean over the
        classes that occur; ``iou``, a list with NaN for a class that neither occurs nor was found,
        which the mean leaves out; and ``pictures``, the pseudo-values.
    """
    pairs = np.zeros((len(images), n_classes, n_classes), dtype=np.int64)
    for start in range(0, len(images), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        planes = levels(images[part]).to(device_of(model))
        found = scores_of(model, planes, scales).argmax(dim=1).cpu().numpy()
        labelled = target[part] < n_classes
        image = start + np.nonzero(labelled)[0]
        np.add.at(pairs, (image, target[part][labelled], found[labelled]), 1)
    both = np.diagonal(pairs, axis1=1, axis2=2)
    union = pairs.sum(axis=1) + pairs.sum(axis=2) - both
    whole = union.sum(axis=0)
    iou = np.divide(both.sum(axis=0), whole, out=np.full(n_classes, np.nan), where=whole > 0)
    own = len(images) * (both - iou * union) / np.maximum(whole, 1)
    true = pairs.sum(axis=(0, 2))
    return {
        "miou": float(np.nanmean(iou)),
        "accuracy": float(both.sum() / pairs.sum()),
        "class_accuracy": float((both.sum(axis=0)[true > 0] / true[true > 0]).mean()),
        "iou": iou.tolist(),
        "pictures": np.nanmean(iou + own, axis=1).tolist(),
    }
