"""Training of classifiers: batches by seed and step, and the loss."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from .data import Images
from .experts import BALANCE, tokens_of_experts


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
