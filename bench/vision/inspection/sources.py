"""What MODEL may be, and the images that it is shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from skimage.transform import resize
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from ....datasets import load_image_folder
from ....unrolled.models.tokens import PatchEmbedding
from ...names import close_names
from ..run_folder import SETTINGS, START, WEIGHTS, load_model, read_metrics, read_settings
from .digits import OPERATORS, at_start, digits, shipped, shipped_folder
from .published import CONFIG, load_published

_N_IMAGES = 16
_N_TOKENS = 2048  # in a batch, but of two images at least


class Source(NamedTuple):
    """A model in evaluation mode and float64, a batch of images for it, and what both are.

    `metrics` are those of its training, where they are known.
    """

    model: nn.Module
    images: Tensor
    weights: str
    shown: str
    metrics: Sequence[dict[str, Any]] = ()


def find_source(name: str, *, images: str | None = None, untrained: bool = False) -> Source:
    """The model of a name or folder with images to show it.

    Parameters
    ----------
    name : str
        A model that comes with the package, the folder of a training run, or that of a ViT of
        Hugging Face or timm.
    images : str, optional
        Folder of pictures. By default digits that it was not trained on, where it was trained on
        digits; for a model of these libraries the two photographs of scikit-learn.
    untrained : bool, default=False
        The model as it was before training.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such model, its weights do not fit, or no images are known for it.
    """
    folder = Path(name)
    mean, std = [0.0], [1.0]
    data: str | None = None
    metrics: list[dict[str, Any]] = []
    model: nn.Module
    if name in OPERATORS:
        model, data = at_start(name) if untrained else shipped(name), "digits"
        metrics = read_metrics(shipped_folder(name))
    elif (folder / SETTINGS).is_file():
        model = load_model(folder, START if untrained else WEIGHTS)
        data = read_settings(folder)["settings"]["task"].get("data")
        metrics = read_metrics(folder)
    elif (folder / CONFIG).is_file():
        model, mean, std = load_published(folder, untrained=untrained)
        data = "photographs"
    else:
        raise ValueError(
            f"MODEL: must be {', '.join(OPERATORS)}, the folder of a training run (with "
            f"{SETTINGS}) or of a ViT of Hugging Face or timm (with {CONFIG}); got {name!r}"
            f"{close_names(name, OPERATORS)}"
        )
    embedding = _embedding(model, name)
    shape = embedding.image_shape
    given = _pictures(images or data, shape)
    count = min(len(given), _N_IMAGES, max(2, _N_TOKENS // (embedding.grid[0] * embedding.grid[1])))
    scaled = (given[:count] - _column(mean)) / _column(std)
    weights = "at the start" if untrained else "trained"
    return Source(
        model.double().eval(), scaled, weights, f"{count} images of {images or data}", metrics
    )


def _embedding(model: nn.Module, name: str) -> PatchEmbedding:
    found = [part for part in model.modules() if isinstance(part, PatchEmbedding)]
    if not found:
        raise ValueError(
            f"MODEL: {name} is a {type(model).__name__}, which has no tokens of image patches; "
            "networks that denoise are inspected by twinsolve denoise"
        )
    return found[0]


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def _pictures(name: str | None, shape: tuple[int, int, int]) -> Tensor:
    """Pixels in [0, 1], (n, channels, height, width)."""
    if name == "digits" and shape == (1, 8, 8):
        return digits()[1][0].double()
    colour = shape[0] == 3
    pictures: list[Any]
    if name == "photographs":
        pictures = [picture / 255 for picture in load_sample_images().images]
        pictures = pictures if colour else [picture.mean(axis=2) for picture in pictures]
    elif name is not None and Path(name).is_dir():
        pictures = load_image_folder(name, colour=colour).images
    else:
        raise ValueError(f"images: name a folder of pictures; none are known for data {name!r}")
    planes = [_square(picture, shape[1:]) for picture in pictures[:_N_IMAGES]]
    found = torch.from_numpy(np.stack(planes))
    return found.permute(0, 3, 1, 2) if colour else found[:, None].expand(-1, *shape)


def _square(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The middle of a picture, as large as it can be at these proportions, at a size in pixels."""
    height, width = picture.shape[:2]
    share = min(height / size[0], width / size[1])
    rows, columns = (max(1, round(share * side)) for side in size)
    top, left = (height - rows) // 2, (width - columns) // 2
    cut = picture[top : top + rows, left : left + columns]
    return resize(cut, (*size, *picture.shape[2:]), anti_aliasing=True).astype(np.float64)
