"""Models that serve a task: weights are drawn but for the last linear map, which is least squares.

Backbones name digits and are fitted to others than those at hand. Shells and blocks clean the
patches of a noisy photograph, and are fitted to take away noise that is added once more.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve as solve_linear
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ...attention import Attention
from ..heads import Array, as_array
from .small_models import over_batch

N_CLASSES = 10
_N_DIGITS, _PIXEL_NOISE = 1000, 0.1
NOISE = 0.4  # of patches whose mean square is 1, as much as the check puts on crops
_RIDGE = 1e-3
_LOCAL = 2.0
PATCH_HEADS = 5


def fit_last(module: nn.Module, last: nn.Linear, inputs: Tensor, targets: Array) -> nn.Module:
    """Ridge regression for a linear map whose output is added to what the module gives without it.

    Features are standardised by their root mean square for the penalty.
    """
    taken: list[Array] = []
    handle = last.register_forward_hook(lambda layer, given, out: taken.append(as_array(given[0])))
    with torch.no_grad():
        _forget(last)
        rest = as_array(module(inputs))
    handle.remove()
    features = np.concatenate([x.reshape(-1, x.shape[-1]) for x in taken])
    if last.bias is not None:
        features = np.hstack([features, np.ones((len(features), 1))])
    gram = features.T @ features
    weights = solve_linear(
        gram + _RIDGE * np.diag(gram.diagonal() + 1e-12), features.T @ (targets - rest),
        assume_a="pos",
    )  # fmt: skip
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weights[: last.in_features].T))
        if last.bias is not None:
            last.bias.copy_(torch.from_numpy(weights[-1]))
    return module


def seeded(build: Callable[..., nn.Module], *given: Any) -> nn.Module:
    """The same first weights whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(*given)


def _forget(linear: nn.Linear) -> None:
    for parameter in linear.parameters():
        parameter.zero_()


def naming_digits(
    build: Callable[[Array], nn.Module], solve: Callable[[Any, Array], Array]
) -> dict[str, Any]:
    """The task of a backbone with the last linear map `head`: scores of ten classes.

    ``solve(model, image)`` gives the scores of one image.
    """

    def fitted(images: Array) -> nn.Module:
        model: Any = seeded(build, images)
        digits, targets = other_digits(images)
        return fit_last(model.eval(), model.head, torch.from_numpy(digits), targets)

    return {
        "inputs": "images",
        "build": fitted,
        "apply": lambda model, images: model(images),
        "solve": over_batch(lambda model, image: (solve(model, image),), lambda images: (images,)),
    }


def other_digits(images: Array) -> tuple[Array, Array]:
    """Packaged digits, as noisy, but for those that the images show; classes as 0 and 1."""
    digits = load_digits()
    pixels = digits.data / 16
    nearest = cdist(images.reshape(len(images), -1), pixels).argmin(axis=1)
    left = np.setdiff1d(np.arange(len(pixels)), nearest)[:_N_DIGITS]
    noisy = pixels[left] + _PIXEL_NOISE * np.random.default_rng(0).standard_normal((len(left), 64))
    return noisy.reshape(-1, 1, 8, 8), np.eye(N_CLASSES)[digits.target[left]]


def cleaning_patches(
    build: Callable[[int], nn.Module],
    linear_maps: Callable[[Any], list[nn.Linear]],
    apply: Callable[[Any, Tensor], Tensor],
    solve: Callable[[Any, Array], Array],
) -> dict[str, Any]:
    """The task of a shell or block on tokens of the given width, (1, n, width) for `apply`.

    Its linear maps are fitted one after the other, each to what those before it have left.
    """

    def fitted(X: Array) -> nn.Module:
        model = seeded(build, X.shape[1]).eval()
        noise = NOISE * np.random.default_rng(0).standard_normal(X.shape)
        found = linear_maps(model)
        with torch.no_grad():
            for linear in found:
                _forget(linear)
        for linear in found:
            fit_last(_Run(model, apply), linear, torch.from_numpy(X + noise), X)
        return model

    return {
        "inputs": "patches",
        "build": fitted,
        "apply": lambda model, X: apply(model, X[None])[0],
        "solve": solve,
    }


def read_patches(shell: Attention, local: float = _LOCAL) -> None:
    """Queries, keys and values are the tokens, the first two so large that weights are local."""
    dim = shell.in_proj_weight.shape[1]
    sizes = [1.0 if name == "v" else local for name in shell.operator.reads]
    with torch.no_grad():
        shell.in_proj_weight.copy_(torch.cat([size * torch.eye(dim) for size in sizes]))
        if shell.in_proj_bias is not None:
            shell.in_proj_bias.zero_()


class _Run(nn.Module):
    """A model by one of the ways to call it, on one sequence."""

    def __init__(self, model: nn.Module, apply: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.apply_to = model, apply

    def forward(self, X: Tensor) -> Tensor:
        return self.apply_to(self.model, X[None])[0]
