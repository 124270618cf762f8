"""Models for `twinsolve inspect`, and images to show to them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from skimage.transform import resize
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ....datasets import load_image_folder
from ....unrolled import VisionTransformer
from ....unrolled.generators import seeded
from ....unrolled.models import load_huggingface_state_dict, load_timm_state_dict
from ....unrolled.models.tokens import PatchEmbedding
from ...names import close_names
from ...run_folder import SETTINGS, START, WEIGHTS, load_model, read_metrics, read_settings
from ..classification.data import load_splits
from ..classification.networks import Classifier
from ..denoising.networks import load_shipped

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
    """`VisionTransformer` for images of 8 x 8 pixels that a run's folder can rebuild.

    Parameters
    ----------
    operator : str or list of str, default="softmax"
        Operator of each layer, or one for all.
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
    """Images (n, 1, 8, 8) in [0, 1] with classes: a training part and a test part."""
    found = load_digits()
    images = (found.images / 16).astype(np.float32)[:, None]
    split = train_test_split(
        images, found.target, test_size=_N_TEST, stratify=found.target, random_state=0
    )
    train, test, classes, test_classes = map(torch.from_numpy, split)
    return (train, classes), (test, test_classes)


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> dict[str, float]:
    """Share of correctly classified test digits."""
    images, classes = digits()[1]
    scores = model(images.to(next(model.parameters())))
    return {"accuracy": float((scores.argmax(dim=1) == classes).double().mean())}


def at_start(name: str) -> DigitsTransformer:
    """A shipped model before training."""
    with seeded(SEED):
        return DigitsTransformer(OPERATORS[name])


def shipped_folder(name: str) -> Path:
    """Folder with the weights and training metrics of a shipped model."""
    return _SHIPPED / name


def shipped(name: str) -> torch.nn.Module:
    """A shipped model after training."""
    return load_shipped(shipped_folder(name) / WEIGHTS)


CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = "model.safetensors"
_KEPT = {"model_type": "vit", "hidden_act": "gelu", "qkv_bias": True}  # as in our blocks
_ABSENT = {"hidden_act": "gelu", "qkv_bias": True}  # defaults of transformers
_HEAD_DIM = 64  # of plain ViT and DeiT of timm, unless their settings name another


class Published(NamedTuple):
    """A model, with the mean and standard deviation that normalise pixels in [0, 1]."""

    model: VisionTransformer
    mean: list[float]
    std: list[float]


def load_published(folder: Path, *, untrained: bool = False) -> Published:
    """Read a ViT from the folder in which Hugging Face transformers or timm saved it.

    Parameters
    ----------
    folder : Path
        Folder with config.json and model.safetensors, as ``save_pretrained`` writes for a
        ``ViTModel`` or ``ViTForImageClassification``, and ``timm.models.save_for_hf`` for a plain
        ViT or DeiT.
    untrained : bool, default=False
        Draw random weights instead.

    Raises
    ------
    FileNotFoundError
        If there is no model.safetensors.
    ValueError
        If the model is not a plain ViT.
    """
    config = json.loads((folder / CONFIG).read_text())
    by_timm = "architecture" in config
    _check_config(config, by_timm)
    if not (folder / _WEIGHTS).is_file():
        raise FileNotFoundError(f"{folder}: has no {_WEIGHTS}; pickled weights are not read")
    state = load_file(folder / _WEIGHTS)
    with seeded(0):
        model = (
            _build_from_timm(config, state) if by_timm else _build_from_huggingface(config, state)
        )
    if not untrained:
        (load_timm_state_dict if by_timm else load_huggingface_state_dict)(model, state)
    said = config.get("pretrained_cfg", config) if by_timm else _read_preprocessor(folder)
    prefix = "" if by_timm else "image_"
    half = [0.5, 0.5, 0.5]  # default of both libraries
    return Published(model.eval(), said.get(f"{prefix}mean", half), said.get(f"{prefix}std", half))


def _check_config(config: dict[str, Any], by_timm: bool) -> None:
    if by_timm:
        name, given = config["architecture"], config.get("model_args", {})
        if not name.startswith(("vit_", "deit_")) or given.get("global_pool", "token") != "token":
            raise ValueError(f"MODEL: must be a plain ViT or DeiT of timm, got {name!r}, {given}")
        return
    for key, value in _KEPT.items():
        if config.get(key, _ABSENT.get(key)) != value:
            raise ValueError(
                f"MODEL: must be a ViT of Hugging Face with {key} {value!r}, got "
                f"{config.get(key)!r}"
            )


def _build_from_huggingface(config: dict[str, Any], state: dict[str, Tensor]) -> VisionTransformer:
    return VisionTransformer(
        config.get("image_size", 224), config.get("patch_size", 16), config.get("num_channels", 3),
        len(state["classifier.bias"]) if "classifier.bias" in state else 0,
        config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
        mlp_ratio=config["intermediate_size"] / config["hidden_size"],
        norm_eps=config.get("layer_norm_eps", 1e-12),
    )  # fmt: skip


def _build_from_timm(config: dict[str, Any], state: dict[str, Tensor]) -> VisionTransformer:
    """Build a model; sizes come from the weights, the number of heads from the settings."""
    dim, channels, patch_size, _ = state["patch_embed.proj.weight"].shape
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5) * patch_size
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    return VisionTransformer(
        side, patch_size, channels, len(state.get("head.bias", ())), dim, depth,
        config.get("model_args", {}).get("num_heads", dim // _HEAD_DIM),
        mlp_ratio=len(state["blocks.0.mlp.fc1.bias"]) / dim, norm_eps=1e-6,
    )  # fmt: skip


def _read_preprocessor(folder: Path) -> dict[str, Any]:
    path = folder / PREPROCESSOR
    said: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return said


_N_IMAGES = 16
_N_TOKENS = 2048  # most in a batch of more than two images


class Source(NamedTuple):
    """A model in evaluation mode and float64, a batch of images for it, and both in words.

    `metrics` are those of the training, if known.
    """

    model: nn.Module
    images: Tensor
    weights: str
    shown: str
    metrics: Sequence[dict[str, Any]] = ()


def find_source(name: str, *, images: str | None = None, untrained: bool = False) -> Source:
    """The model of a name or folder, with images to show to it.

    Parameters
    ----------
    name : str
        A shipped model, the folder of a training run, or the folder of a ViT of Hugging Face or
        timm.
    images : str, optional
        Folder of pictures. The default is: test images of a run of `twinsolve classify`; test
        digits for other models trained on digits; the pictures of another run; the two photographs
        of scikit-learn for a ViT of Hugging Face or timm.
    untrained : bool, default=False
        Take the model before training.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such model, its weights do not fit, or no images are known for it.
    """
    folder = Path(name)
    mean, std, trained = [0.0], [1.0], "trained"
    data: str | None = None
    metrics: list[dict[str, Any]] = []
    model: nn.Module
    if name in OPERATORS:
        model, data = at_start(name) if untrained else shipped(name), "digits"
        metrics = read_metrics(shipped_folder(name))
    elif (folder / SETTINGS).is_file():
        model = load_model(folder, START if untrained else WEIGHTS)
        run = read_settings(folder)
        data = run["settings"]["task"].get("data")
        rate = run["settings"]["recipe"]["learning_rate"]
        trained += f" (steps: {run['n_steps']:,}, rate: {rate:g})"
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
    embedding = _find_embedding(model, name)
    shape = embedding.image_shape
    if images is None and isinstance(model, Classifier):
        given = load_splits(data or "").test.levels[:_N_IMAGES].double()
    else:
        given = _load_pictures(images or data, shape)
    count = min(len(given), _N_IMAGES, max(2, _N_TOKENS // (embedding.grid[0] * embedding.grid[1])))
    scaled = (given[:count] - _make_column(mean)) / _make_column(std)
    weights = "at the start" if untrained else trained
    return Source(
        model.double().eval(), scaled, weights, f"{count} images of {images or data}", metrics
    )


def _find_embedding(model: nn.Module, name: str) -> PatchEmbedding:
    found = [part for part in model.modules() if isinstance(part, PatchEmbedding)]
    if not found:
        raise ValueError(
            f"MODEL: {name} has no tokens of image patches and no attention to look into; "
            "networks that denoise are inspected by twinsolve denoise"
        )
    return found[0]


def _make_column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def _load_pictures(name: str | None, shape: tuple[int, int, int]) -> Tensor:
    """Pictures of a name or folder in [0, 1], (n, channels, height, width)."""
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
    planes = [_cut_square(picture, shape[1:]) for picture in pictures[:_N_IMAGES]]
    found = torch.from_numpy(np.stack(planes))
    return found.permute(0, 3, 1, 2) if colour else found[:, None].expand(-1, *shape)


def _cut_square(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The largest central part of a picture with the proportions of `size`, resized to it."""
    height, width = picture.shape[:2]
    share = min(height / size[0], width / size[1])
    rows, columns = (max(1, round(share * side)) for side in size)
    top, left = (height - rows) // 2, (width - columns) // 2
    cut = picture[top : top + rows, left : left + columns]
    return resize(cut, (*size, *picture.shape[2:]), anti_aliasing=True).astype(np.float64)
