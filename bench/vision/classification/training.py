"""Training of classifiers: batches by seed and step, and the loss."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from .data import Images
from .experts import BALANCE, tokens_of_experts

Batches = Callable[[int, int, range], tuple[Tensor, Tensor]]


class ClassBatches:
    """Batches without replacement within an epoch, shifted and mirrored at random.

    They depend on seed and step alone, so that all networks of a seed see the same.

    Parameters
    ----------
    images : Images
    batch_size : int
    shift : int
        Largest shift in pixels, along each side; zeros come in.
    flip : bool
        Mirror every other image, left to right.
    """

    def __init__(self, images: Images, *, batch_size: int, shift: int, flip: bool) -> None:
        self.images, self.batch_size, self.shift, self.flip = images, batch_size, shift, flip

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng((seed, step))
        shifts = rng.integers(-self.shift, self.shift + 1, size=(self.batch_size, 2))
        flips = rng.integers(2, size=self.batch_size) * self.flip
        chosen = torch.from_numpy(self._order(seed, step)[samples])
        levels = self.images.levels[chosen]
        for place, sample in enumerate(samples):
            levels[place] = self._moved(levels[place], shifts[sample], bool(flips[sample]))
        return levels, self.images.target[chosen]

    def _order(self, seed: int, step: int) -> np.ndarray:
        """Places of the images of a step, which may lie in two epochs."""
        n = len(self.images)
        counted = step * self.batch_size + np.arange(self.batch_size)
        order = np.empty(self.batch_size, dtype=np.int64)
        for epoch in np.unique(counted // n):
            own = counted // n == epoch
            shuffled = np.random.default_rng((seed, int(epoch), n)).permutation(n)
            order[own] = shuffled[counted[own] % n]
        return order

    def _moved(self, image: Tensor, shift: np.ndarray, flip: bool) -> Tensor:
        height, width = image.shape[1:]
        padded = nn.functional.pad(image, [self.shift] * 4)
        top, left = (self.shift + int(s) for s in shift)
        moved = padded[:, top : top + height, left : left + width]
        return moved.flip(2) if flip else moved


def augmented(
    batches: Batches, *, n_classes: int, erasing: float, mixup: float, cutmix: float
) -> Batches:
    """Batches of which images lose a rectangle, and which are mixed in pairs, with their labels.

    What is drawn is drawn by torch. Mixed labels are shares of classes, (batch, n_classes).

    Parameters
    ----------
    batches : callable
        As `ClassBatches`.
    n_classes : int
    erasing : float
        Share of the images.
    mixup, cutmix : float
        Shares of the batches: of an image and another one the weight, or the share of the pixels,
        is uniform on [0, 1].

    Raises
    ------
    ImportError
        If any is asked for and kornia is not installed.
    """
    if not (erasing or mixup or cutmix):
        return batches
    try:
        from kornia.augmentation import RandomCutMixV2, RandomErasing, RandomMixUpV2
    except ImportError as error:
        raise ImportError("erasing, mixup and cutmix need kornia: pip install kornia") from error
    erase = RandomErasing(p=erasing)
    kinds = {"data_keys": ["input", "class"]}
    mixers = (RandomMixUpV2(p=1.0, **kinds), RandomCutMixV2(use_correct_lambda=True, **kinds))

    def made(seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        levels, target = batches(seed, step, samples)
        levels, drawn = erase(levels), float(torch.rand(()))
        if drawn >= mixup + cutmix:
            return levels, target
        cut = drawn >= mixup
        levels, mixed = mixers[cut](levels, target)
        own, other, share = mixed.reshape(-1, 3).T
        share = 1 - share if cut else share  # of the other image; kornia says the own one's of cuts
        one_hot = torch.eye(n_classes)
        shares = torch.lerp(one_hot[own.long()], one_hot[other.long()], share[:, None])
        return levels, shares

    return made


def cross_entropy(smoothing: float) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Mean cross-entropy with smoothed labels, and what balances mixtures of experts, if any."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        levels, target = batch
        with tokens_of_experts(model) as seen:
            scores = model(levels)
        balance = sum(layer.balance_loss(tokens) for layer, tokens in seen)
        entropy = nn.functional.cross_entropy(scores, target, label_smoothing=smoothing)
        return entropy + BALANCE * balance

    return loss
