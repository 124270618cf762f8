"""Measures of a classifier: accuracy, also under attacks and corruptions, and its tokens."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from ....unrolled.diagnostics import condition_number, token_similarity
from ....unrolled.models import (
    ClassAttentionTransformer,
    ConvMixer,
    VisionTransformer,
    WindowedTransformer,
)
from ...devices import device_of
from ...paired import Paired, paired_difference
from ...training import generator_of
from .data import Images
from .folder import PackedLevels
from .networks import Classifier

_BATCH = 256
_N_DEPTH = 64  # images whose tokens are measured
_REPEATS = 5


def scores(model: nn.Module, levels: Tensor | PackedLevels) -> Tensor:
    """Class scores of all images."""
    return _score_batches(model, levels.split(_BATCH))


@torch.no_grad()
def _score_batches(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    device = device_of(model)
    return torch.cat([model(levels.to(device)).cpu() for levels in batches])


def accuracies(model: nn.Module, images: Images) -> dict[str, float]:
    """Top-1 and top-5 accuracy, in percent."""
    found = scores(model, images.levels)
    best = found.topk(min(5, found.shape[1]), dim=1).indices
    hit = best == images.target[:, None]
    return {"top1": _percent(hit[:, 0]), "top5": _percent(hit.any(dim=1))}


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


@torch.no_grad()
def depth_measures(model: Classifier, images: Images) -> dict[str, float]:
    """Mean cosine and mean log10 condition number of the last layer's tokens, in float64.

    A condition number that float64 cannot resolve, infinite in `condition_number`, counts as the
    lower bound ``1 / (max(n, d) eps)``.
    """
    network = deepcopy(model).double().network
    levels = model.standardised(images.levels[:_N_DEPTH].double())
    tokens = _find_last_tokens(network, levels)
    if tokens is None:
        return {}
    bound = 1 / (max(tokens.shape[-2:]) * torch.finfo(torch.float64).eps)
    logs = condition_number(tokens).clamp(max=bound).log10()
    return {
        "token_cosine": float(token_similarity(tokens).mean()),
        "log10_condition": float(logs.mean()),
    }


def _find_last_tokens(network: nn.Module, levels: Tensor) -> Tensor | None:
    """Tokens of patches after the last block, before the final norm."""
    if isinstance(network, VisionTransformer):
        return network.intermediates(levels)[-1]
    if isinstance(network, ConvMixer):
        return network.forward_features(levels).flatten(2).mT
    if not isinstance(network, ClassAttentionTransformer | WindowedTransformer):
        return None
    seen: list[Tensor] = []
    hook = network.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(levels)
    hook.remove()
    if isinstance(network, WindowedTransformer):
        return seen[0].flatten(1, 2)
    return seen[0][:, 1:]


PGD_STEPS = 5
Array = np.ndarray


def fgsm(model: nn.Module, levels: Tensor, target: Tensor, budget: float) -> Tensor:
    """Attack by one step along the sign of the gradient: ``clip(x + budget sign(grad))``.

    Goodfellow, Shlens and Szegedy, *Explaining and harnessing adversarial examples* (2015).
    """
    return pgd(model, levels, target, budget, n_steps=1, step=budget)


def pgd(
    model: nn.Module,
    levels: Tensor,
    target: Tensor,
    budget: float,
    *,
    n_steps: int = PGD_STEPS,
    step: float | None = None,
) -> Tensor:
    """Attack by steps along the sign of the gradient, projected on the budget and on [0, 1].

    ``step`` is ``2.5 budget / n_steps`` by default. Madry et al., *Towards deep learning models
    resistant to adversarial attacks* (2018); here the start is the image, not a random point.
    """
    step = 2.5 * budget / n_steps if step is None else step
    x = levels
    for _ in range(n_steps):
        x = x + step * _find_sign(model, x, target)
        x = torch.minimum(torch.maximum(x, levels - budget), levels + budget).clamp(0, 1)
    return x


def _find_sign(model: nn.Module, levels: Tensor, target: Tensor) -> Tensor:
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


def corrupt(levels: Tensor, kind: str, first: int = 0) -> Tensor:
    """Images with a corruption of `CORRUPTIONS`, in [0, 1]; the same at each call.

    The number of an image, of which the first has `first`, decides its noise.
    """
    place = list(CORRUPTIONS).index(kind)
    made = [
        CORRUPTIONS[kind](image, generator_of(0, place, number))
        for number, image in enumerate(levels.numpy(), start=first)
    ]
    return torch.from_numpy(np.clip(np.stack(made), 0, 1).astype(np.float32))


BUDGETS = (1, 4, 8, 24)  # of 255 levels
N_ATTACKED = 256  # the first test images
CLEAN = "clean"
ATTACKS = {
    f"{attack.__name__.upper()} {budget}/255": (attack, budget / 255)
    for attack in (fgsm, pgd)
    for budget in BUDGETS
}


def wrong_attacked(model: nn.Module, images: Images) -> dict[str, list[int]]:
    """Indices of misclassified images by attack; attacks use the model's gradients."""
    device = device_of(model)
    levels, target = (x[:N_ATTACKED].to(device) for x in (images.levels, images.target))
    return {
        name: wrong(model, Images(attack(model, levels, target, budget), target.cpu()))
        for name, (attack, budget) in ATTACKS.items()
    }


def wrong_corrupted(model: nn.Module, images: Images) -> dict[str, list[int]]:
    """Indices of misclassified images, by kind of corruption."""
    found = {}
    for kind in CORRUPTIONS:
        batches = enumerate(images.levels.split(_BATCH))
        corrupted = (corrupt(levels, kind, first=n * _BATCH) for n, levels in batches)
        found[kind] = _find_wrong(_score_batches(model, corrupted), images.target)
    return found


def wrong(model: nn.Module, images: Images) -> list[int]:
    """Indices of misclassified images."""
    return _find_wrong(scores(model, images.levels), images.target)


def _find_wrong(found: Tensor, target: Tensor) -> list[int]:
    return (found.argmax(dim=1) != target).nonzero()[:, 0].tolist()


def conditions(table: pd.DataFrame) -> list[str]:
    """Attacks and corruptions that all runs of a table have results for."""
    return [name for name in (*ATTACKS, *CORRUPTIONS) if all(name in x for x in table.wrong)]


def accuracy(run: Mapping[str, Any], condition: str) -> float:
    """Top-1 accuracy of a run under a condition, in percent."""
    return 100 * (1 - len(run["wrong"][condition]) / _count_images(run, condition))


def hits(table: pd.DataFrame, row: str, condition: str = CLEAN) -> pd.DataFrame:
    """100 if a row classifies an image correctly, else 0, by seed and image."""
    found = {}
    for run in table[table.row == row].to_dict("records"):
        found[run["seed"]] = np.full(_count_images(run, condition), 100.0)
        found[run["seed"]][run["wrong"][condition]] = 0.0
    return pd.DataFrame(np.array(list(found.values())), index=list(found))


def matched_difference(table: pd.DataFrame, row: str, to: str, condition: str) -> Paired:
    """Difference in accuracy on images that both rows get right when clean, over paired seeds.

    Accuracy on clean images thus gives no row an advantage. Seeds without such images are left out.
    The images differ between seeds, so that their mean is a ratio: each image enters as its linear
    pseudo-value.
    """
    apart = hits(table, row, condition) - hits(table, to, condition)
    clean = [hits(table, name)[apart.columns] > 0 for name in (row, to)]
    kept = clean[0] & clean[1]
    mean = apart.where(kept).mean(axis=1)
    own = apart.sub(mean, axis=0).where(kept, 0.0)
    return paired_difference(own.div(kept.mean(axis=1), axis=0).add(mean, axis=0))


def _count_images(run: Mapping[str, Any], condition: str) -> int:
    return min(run["n_test"], N_ATTACKED) if condition in ATTACKS else run["n_test"]
