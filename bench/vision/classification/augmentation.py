"""Training images that lose a rectangle or are mixed in pairs, with mixed labels."""

import math

import torch
from torch import Tensor

from .data import Batches

_AREAS, _RATIOS = (0.02, 0.4), (0.3, 1 / 0.3)  # of an erased rectangle
_TRIES = 100


def augment(
    batches: Batches, *, n_classes: int, erasing: float, mixup: float, cutmix: float
) -> Batches:
    """Batches whose images may lose a rectangle or be mixed in pairs, with mixed labels.

    Random numbers come from torch. Mixed labels are shares of classes, (batch, n_classes).

    Parameters
    ----------
    batches : callable
        Such as `ClassBatches`.
    n_classes : int
    erasing : float
        Share of the images that lose a rectangle (Zhong et al., 2020, algorithm 1): its share of
        the area is uniform on [0.02, 0.4], its height over its width on [0.3, 1 / 0.3], and its
        place on the image; it is drawn anew until it fits. Its pixels become uniform on [0, 1].
    mixup, cutmix : float
        Shares of the batches that are mixed. The weight of the other image (Zhang et al., 2018), or
        the share of its rectangle (Yun et al., 2019), is uniform on [0, 1] up to whole pixels.
    """
    if not (erasing or mixup or cutmix):
        return batches

    def made(seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        levels, target = batches(seed, step, samples)
        levels, drawn = _erase(levels, erasing), float(torch.rand(()))
        if drawn >= mixup + cutmix:
            return levels, target
        n, _, *size = levels.shape
        weights = torch.rand(n, 1, 1, 1) if drawn < mixup else _cut(n, *size)
        other = torch.randperm(n)
        shares, one_hot = weights.mean(dim=(1, 2, 3))[:, None], torch.eye(n_classes)
        mixed = torch.lerp(levels, levels[other], weights)
        return mixed, torch.lerp(one_hot[target], one_hot[target[other]], shares)

    return made


def _erase(levels: Tensor, share: float) -> Tensor:
    erased = levels.clone()
    for index in (torch.rand(len(levels)) < share).nonzero().flatten().tolist():
        rows, columns = _draw_rectangle(*levels.shape[2:])
        erased[index, :, rows, columns].uniform_()
    return erased


def _draw_rectangle(height: int, width: int) -> tuple[slice, slice]:
    """The rows and columns of a rectangle to erase; none if no rectangle fits a narrow image."""
    for _ in range(_TRIES):
        area, ratio, down, right = torch.rand(4).tolist()
        area = height * width * (_AREAS[0] + area * (_AREAS[1] - _AREAS[0]))
        ratio = _RATIOS[0] + ratio * (_RATIOS[1] - _RATIOS[0])
        n_rows, n_columns = (max(1, round(math.sqrt(x))) for x in (area * ratio, area / ratio))
        top, left = int(down * height), int(right * width)
        if top + n_rows <= height and left + n_columns <= width:
            return slice(top, top + n_rows), slice(left, left + n_columns)
    return slice(0), slice(0)


def _cut(n: int, height: int, width: int) -> Tensor:
    """Ones on a rectangle of each image, which has its sides' ratio, and zeros, (n, 1, h, w)."""
    scales = torch.rand(n).sqrt()
    rows, columns = (_draw_stretch(scales, length) for length in (height, width))
    return (rows[:, :, None] * columns[:, None, :])[:, None]


def _draw_stretch(scales: Tensor, length: int) -> Tensor:
    """Ones on a stretch of each line, at a random place, and zeros, of shape (n, length)."""
    sizes = (scales * length).round()
    starts = (torch.rand(len(scales)) * (length - sizes + 1)).floor()
    from_start = torch.arange(length) - starts[:, None]
    return ((from_start >= 0) & (from_start < sizes[:, None])).float()
