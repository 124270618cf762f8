"""Attacks by gradients within a budget of each pixel, and corruptions of images."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from ..patches import generator_of

PGD_STEPS = 5
Array = np.ndarray


def fgsm(model: nn.Module, levels: Tensor, target: Tensor, budget: float) -> Tensor:
    """One step along the sign of the loss's gradient: ``clip(x + budget sign(grad))``.

    Goodfellow, Shlens and Szegedy, *Explaining and harnessing adversarial examples* (2015).
    """
    return (levels + budget * _sign(model, levels, target)).clamp(0, 1)


def pgd(
    model: nn.Module,
    levels: Tensor,
    target: Tensor,
    budget: float,
    *,
    n_steps: int = PGD_STEPS,
    step: float | None = None,
) -> Tensor:
    """Steps along the sign, each projected on the budget and on [0, 1]; starts at the image.

    ``step`` is ``2.5 budget / n_steps`` by default. Madry et al., *Towards deep learning models
    resistant to adversarial attacks* (2018), without their random start.
    """
    step = 2.5 * budget / n_steps if step is None else step
    x = levels
    for _ in range(n_steps):
        x = x + step * _sign(model, x, target)
        x = torch.minimum(torch.maximum(x, levels - budget), levels + budget).clamp(0, 1)
    return x


def _sign(model: nn.Module, levels: Tensor, target: Tensor) -> Tensor:
    x = levels.detach().requires_grad_()
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(model(x), target, reduction="sum")
        return torch.autograd.grad(loss, x)[0].sign()


CORRUPTIONS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "Gaussian noise": lambda image, rng: image + 0.15 * rng.standard_normal(image.shape),
    "impulse noise": lambda image, rng: np.where(
        rng.random(image.shape) < 0.1, rng.integers(2, size=image.shape), image
    ),
    "blur": lambda image, rng: gaussian_filter(image, (0, 0.7, 0.7)),
    "contrast": lambda image, rng: image.mean() + 0.4 * (image - image.mean()),
}


def corrupted(levels: Tensor, kind: str) -> Tensor:
    """Images of one kind of `CORRUPTIONS`, the same each time, in [0, 1]."""
    place = list(CORRUPTIONS).index(kind)
    made = [
        CORRUPTIONS[kind](image, generator_of(0, place, number))
        for number, image in enumerate(levels.numpy())
    ]
    return torch.from_numpy(np.clip(np.stack(made), 0, 1).astype(np.float32))
