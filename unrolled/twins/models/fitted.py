"""Models that serve a task: weights are drawn but for the last linear map, which is least squares.

Backbones name digits and are fitted to others than those at hand. Shells and blocks clean patches
of photographs, and are fitted to an image that is drawn with the spectrum of photographs.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve as solve_linear
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ...attention import Attention
from ..heads import as_array
from ..registry import Array
from .small_models import over_batch

N_CLASSES = 10
_N_DIGITS = 600
_SIDE, _NOISE = 48, 0.4  # of the drawn image; its noise is that of the check on crops
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
        model: Any = build(images)
        digits, targets = _other_digits(images)
        return fit_last(model.eval(), model.head, torch.from_numpy(digits), targets)

    return {
        "inputs": "images",
        "build": fitted,
        "apply": lambda model, images: model(images),
        "solve": over_batch(lambda model, image: (solve(model, image),), lambda images: (images,)),
    }


def _other_digits(images: Array) -> tuple[Array, Array]:
    """Packaged digits but for those that the images are noisy versions of; classes as 0 and 1."""
    digits = load_digits()
    pixels = digits.data / 16
    nearest = cdist(images.reshape(len(images), -1), pixels).argmin(axis=1)
    left = np.setdiff1d(np.arange(len(pixels)), nearest)[:_N_DIGITS]
    return pixels[left].reshape(-1, 1, 8, 8), np.eye(N_CLASSES)[digits.target[left]]


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
        model = build(X.shape[1]).eval()
        noisy, clean = _drawn_patches(math.isqrt(X.shape[1]))
        found = linear_maps(model)
        with torch.no_grad():
            for linear in found:
                _forget(linear)
        for linear in found:
            fit_last(_Run(model, apply), linear, torch.from_numpy(noisy), clean)
        return model

    return {
        "inputs": "patches",
        "build": fitted,
        "apply": lambda model, X: apply(model, X[None])[0],
        "solve": solve,
    }


def read_patches(shell: Attention) -> None:
    """Queries, keys and values are the tokens, the first two so large that weights are local."""
    dim = shell.in_proj_weight.shape[1]
    sizes = [1.0 if name == "v" else _LOCAL for name in shell.operator.reads]
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


@cache
def _drawn_patches(size: int) -> tuple[Array, Array]:
    """Noisy and clean patches of a drawn image whose amplitudes fall as 1 / frequency."""
    rng = np.random.default_rng(0)
    frequencies = np.hypot(*np.meshgrid(np.fft.fftfreq(_SIDE), np.fft.fftfreq(_SIDE)))
    frequencies[0, 0] = np.inf
    image = np.fft.ifft2(np.fft.fft2(rng.standard_normal((_SIDE, _SIDE))) / frequencies).real
    image /= image.std()
    noisy = image + _NOISE * rng.standard_normal(image.shape)
    both = (x / noisy.std() for x in (noisy, image))
    windows = (np.lib.stride_tricks.sliding_window_view(x, (size, size)) for x in both)
    noisy_patches, clean = (x[::2, ::2].reshape(-1, size**2).copy() for x in windows)
    return noisy_patches, clean
