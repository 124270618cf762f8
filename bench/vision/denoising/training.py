"""Train denoising networks on pictures, and validate them on held-out pictures."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.utils import Bunch
from torch import Tensor, nn

from ....datasets import add_noise, fetch_train400, pack_image_folder
from ...recipe import Recipe
from ...run_folder import START, load_model, read_settings
from ...timing import Progress
from ...training import generator_of, train

_PACKAGED = "train400"
N_VALIDATION = 20  # the last images, on which no network is trained
_CROP = 128


class Patches:
    """Random crops, rotated and mirrored in one of the eight symmetries of a square.

    Parameters
    ----------
    images : sequence of ndarray of shape (height, width) or (height, width, channels)
        Grey levels in [0, 1], or uint8, such as packed images. Only the crops are read.
    size : int
        Side of a patch.

    Raises
    ------
    ValueError
        If an image is smaller than a patch, or there is no image.
    """

    def __init__(self, images: Sequence[np.ndarray], size: int) -> None:
        if not len(images):
            raise ValueError("images: must be one or more")
        for number, image in enumerate(images):
            if not 1 <= size <= min(image.shape[:2]):
                raise ValueError(
                    f"size: image {number} of shape {image.shape} has no patch of {size} x {size}"
                )
        self.images, self.size = images, size

    def crop(self, rng: np.random.Generator) -> np.ndarray:
        """A patch of shape (channels, size, size), float32 in [0, 1]."""
        image = self.images[int(rng.integers(len(self.images)))]
        top, left = (int(rng.integers(extent - self.size + 1)) for extent in image.shape[:2])
        patch = image[top : top + self.size, left : left + self.size]
        turns, mirrored = divmod(int(rng.integers(8)), 2)
        patch = np.rot90(patch, turns)
        patch = patch[:, ::-1] if mirrored else patch
        planes = patch[None] if patch.ndim == 2 else np.moveaxis(patch, 2, 0)
        return np.ascontiguousarray(levels_of(planes), dtype=np.float32)


def levels_of(pixels: np.ndarray) -> np.ndarray:
    """Pixels as levels in [0, 1]; those of 8 bits are divided by 255."""
    return pixels / np.float32(255) if pixels.dtype == np.uint8 else pixels


class NoisyPatches:
    """Batches of noisy and clean patches, each of shape (n_samples, channels, size, size).

    Parameters
    ----------
    images : sequence of ndarray
        As in `Patches`.
    size : int
    sigma : float
        Standard deviation of the noise, in grey levels.
    """

    def __init__(self, images: Sequence[np.ndarray], *, size: int, sigma: float) -> None:
        self.patches, self.sigma = Patches(images, size), np.float32(sigma)

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        clean, noisy = [], []
        for sample in samples:
            rng = generator_of(seed, step, sample)
            patch = self.patches.crop(rng)
            clean.append(patch)
            noisy.append(patch + self.sigma * rng.standard_normal(patch.shape, dtype=np.float32))
        return torch.from_numpy(np.stack(noisy)), torch.from_numpy(np.stack(clean))


def mean_squared_error(sigma: float) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Mean squared error divided by the noise variance: returning the noisy patch costs 1.

    Steps of AdamW do not depend on the scale of a loss, but the clipping of gradients does; with
    this scale, it means the same for each sigma, patch and batch size.
    """

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        noisy, clean = batch
        return nn.functional.mse_loss(model(noisy).to(clean.dtype), clean) / sigma**2

    return loss


def validation_db(
    images: Sequence[np.ndarray], sigma: float
) -> Callable[[nn.Module], dict[str, float]]:
    """Function of a model: mean PSNR over the middles of images, always with the same noise."""
    pairs = []
    for seed, image in enumerate(images):
        top, left = (max(0, (extent - _CROP) // 2) for extent in image.shape[:2])
        clean = levels_of(image[top : top + _CROP, left : left + _CROP])
        pairs.append(
            (_to_planes(add_noise(clean, sigma=sigma, random_state=seed)), _to_planes(clean))
        )

    def validate(model: nn.Module) -> dict[str, float]:
        weight = next(model.parameters())
        losses = [
            float(((model(noisy.to(weight)) - clean.to(weight)).double() ** 2).mean())
            for noisy, clean in pairs
        ]
        return {"validation_db": float(np.mean(-10 * np.log10(losses)))}

    return validate


def _to_planes(image: np.ndarray) -> Tensor:
    planes = image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)
    return torch.from_numpy(np.ascontiguousarray(planes))[None]


def train_denoiser(
    network: nn.Module,
    *,
    sigma: float,
    recipe: Recipe,
    directory: str | os.PathLike[str],
    patch_size: int = 48,
    data: str = "train400",
    colour: bool = False,
    data_home: str | None = None,
    progress: Progress | None = None,
    on_validation: Callable[[dict[str, Any]], None] | None = None,
) -> nn.Module:
    """Train a network to denoise; the last 20 images of the data validate it.

    Parameters
    ----------
    network : nn.Module
        Takes noisy images of shape (n_images, channels, height, width) and returns clean ones. It
        keeps the arguments of its constructor as attributes.
    sigma : float
        Standard deviation of the noise, in grey levels, for example 25 / 255.
    recipe : Recipe
    directory : path
        Folder of the run, from which an interrupted run continues.
    patch_size : int, default=48
    data : str, default="train400"
        "train400", or a folder of pictures, which may be larger than memory.
    colour : bool, default=False
        Read a folder's pictures in red, green and blue.
    data_home : str, optional
        Folder of the data sets, as in `twinsolve.datasets.fetch_train400`.
    progress, on_validation : callable, optional
        As in `twinsolve.bench.training.train`.

    Returns
    -------
    nn.Module
        The network with averaged weights, in evaluation mode.

    Raises
    ------
    ValueError
        If there are not more images than for validation, an image is smaller than a patch, or as
        in `twinsolve.bench.training.train`.
    FloatingPointError
        If loss or gradient is NaN or infinite; the last checkpoint is kept.
    """
    known = _load_pictures(data, colour, data_home)
    images = known.images
    if len(images) <= N_VALIDATION:
        raise ValueError(f"data: needs more than {N_VALIDATION} images, got {len(images)}")
    for name, image in zip(known.names, images, strict=True):
        if min(image.shape[:2]) < patch_size:
            raise ValueError(
                f"patch_size: {name} in {data} has {image.shape[0]} x {image.shape[1]} pixels, "
                f"fewer than a patch of {patch_size} x {patch_size}"
            )
    if data != _PACKAGED:
        data = str(Path(data).resolve())
    return train(
        network,
        NoisyPatches(images[:-N_VALIDATION], size=patch_size, sigma=sigma),
        mean_squared_error(sigma),
        recipe,
        directory=directory,
        validate=validation_db(images[-N_VALIDATION:], sigma),
        task={
            "sigma": sigma, "patch_size": patch_size, "data": data, "colour": colour,
            "key": known.get("key"),
        },
        progress=progress,
        on_validation=on_validation,
    )  # fmt: skip


def _load_pictures(data: str, colour: bool, data_home: str | None) -> Bunch:
    """Images and names; for a folder also `key`, a hash of its content."""
    if data == _PACKAGED:
        if colour:
            raise ValueError(f"colour: {data} is grey")
        return fetch_train400(data_home=data_home)
    return pack_image_folder(data, colour=colour)


def repeat_training(
    folder: str | os.PathLike[str],
    *,
    directory: str | os.PathLike[str],
    data: str | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> nn.Module:
    """Repeat the training run of a denoising network from its folder.

    The repetition takes as many steps, starts from the same weights and needs as many processes;
    `options` are `data_home`, `progress` and `on_validation` of `train_denoiser`.

    Parameters
    ----------
    folder, directory : path
        Folders of the run and of its repetition.
    data : str, optional
        New place of the training pictures; None is the place that the run recorded.
    device : torch.device or str, default="cpu"

    Raises
    ------
    ValueError
        If the pictures or the number of processes differ.
    """
    known = read_settings(folder)
    recipe, task = known["settings"]["recipe"], dict(known["settings"]["task"])
    recipe |= {"betas": tuple(recipe["betas"]), "n_steps": known["n_steps"], "minutes": None}
    key, task["data"] = task.pop("key"), data or task["data"]
    if _load_pictures(task["data"], task["colour"], options.get("data_home")).get("key") != key:
        raise ValueError(f"{task['data']}: holds other pictures than {folder} was trained on")
    n_processes = known["settings"].get("processes", 1)
    if n_processes != (dist.get_world_size() if dist.is_initialized() else 1):
        raise ValueError(f"{folder}: was trained in {n_processes} processes; start as many")
    network = load_model(folder, START).to(device)
    return train_denoiser(network, recipe=Recipe(**recipe), directory=directory, **task, **options)
