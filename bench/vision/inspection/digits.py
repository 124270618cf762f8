"""Small vision transformers on the digits of scikit-learn, and those that come with the package."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from ....unrolled import VisionTransformer
from ..denoising.networks import load_shipped
from ..run_folder import WEIGHTS

_SHIPPED = Path(__file__).with_name("models")
SEED = 0
OPERATORS: dict[str, str | list[str]] = {
    "digits": "softmax",
    "digits-mixed": [
        "bilateral", "spatial_gaussian", "neutreno", "attn_scale", "sparse_coding", "ridge"
    ],
}  # fmt: skip
_N_TEST = 360


class DigitsTransformer(VisionTransformer):
    """`VisionTransformer` on images of 8 x 8 pixels, which can be built again from a run's folder.

    Parameters
    ----------
    operator : str or list of str, default="softmax"
        Of each layer, or one for all.
    dim, depth, num_heads, patch_size : int, default=32, 6, 4 and 2
    """

    def __init__(
        self,
        operator: str | list[str] = "softmax",
        dim: int = 32,
        depth: int = 6,
        num_heads: int = 4,
        patch_size: int = 2,
    ) -> None:
        chosen: Any = operator
        super().__init__(8, patch_size, 1, 10, dim, depth, num_heads, operator=chosen)
        self.operator, self.dim, self.depth = operator, dim, depth
        self.num_heads, self.patch_size = num_heads, patch_size


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images (n, 1, 8, 8) in [0, 1] and their classes, to train on and to test on."""
    found = load_digits()
    images = (found.images / 16).astype(np.float32)[:, None]
    split = train_test_split(
        images, found.target, test_size=_N_TEST, stratify=found.target, random_state=0
    )
    train, test, classes, test_classes = map(torch.from_numpy, split)
    return (train, classes), (test, test_classes)


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> dict[str, float]:
    """Share of the test digits that are classified correctly."""
    images, classes = digits()[1]
    scores = model(images.to(next(model.parameters())))
    return {"accuracy": float((scores.argmax(dim=1) == classes).double().mean())}


def at_start(name: str) -> DigitsTransformer:
    """A shipped model as it was before training."""
    with torch.random.fork_rng([]):
        torch.manual_seed(SEED)
        return DigitsTransformer(OPERATORS[name])


def shipped_folder(name: str) -> Path:
    """Where weights of a model that comes with the package are, and metrics of its training."""
    return _SHIPPED / name


def shipped(name: str) -> torch.nn.Module:
    """A trained model that comes with the package."""
    return load_shipped(shipped_folder(name) / WEIGHTS)
