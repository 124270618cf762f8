"""Train denoising networks on pictures, and validate them on held-out pictures."""

import math
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
from .networks import takes_levels

NoiseLevels = float | tuple[float, float]
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
    """Batches of noisy and clean patches (n_samples, channels, size, size), and noise levels.

    Parameters
    ----------
    images : sequence of ndarray
        As in `Patches`.
    size : int
    sigma : float or pair of float
        Standard deviation of the noise, in grey levels; or its range, in which the logarithm is
        uniform.
    """

    def __init__(self, images: Sequence[np.ndarray], *, size: int, sigma: NoiseLevels) -> None:
        self.patches, self.sigma = Patches(images, size), sigma

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor, Tensor]:
        clean, noisy, levels = [], [], []
        for sample in samples:
            rng = generator_of(seed, step, sample)
            patch = self.patches.crop(rng)
            level = np.float32(self._draw_level(rng))
            clean.append(patch)
            noisy.append(patch + level * rng.standard_normal(patch.shape, dtype=np.float32))
            levels.append(level)
        stacked = [torch.from_numpy(np.stack(x)) for x in (noisy, clean, levels)]
        return stacked[0], stacked[1], stacked[2]

    def _draw_level(self, rng: np.random.Generator) -> float:
        if isinstance(self.sigma, float):
            return self.sigma
        return float(np.exp(rng.uniform(*np.log(self.sigma))))


def mean_squared_error(
    sigma: NoiseLevels,
) -> Callable[[nn.Module, tuple[Tensor, Tensor, Tensor]], Tensor]:
    """Mean squared error in units of the noise variance: returning the noisy patch costs 1.

    Steps of AdamW do not depend on the scale of a loss, but the clipping of gradients does; with
    this scale, it means the same for each sigma, patch and batch size. In a range, the error of a
    patch at level s is divided by s and by the middle: good denoisers leave an error about
    proportional to s, so that each level counts about the same.
    """
    known = levels_in(sigma)
    middle = known[len(known) // 2]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        noisy, clean, levels = batch
        denoised = model(noisy, levels) if takes_levels(model) else model(noisy)
        errors = (denoised.to(clean.dtype) - clean).square().mean(dim=(1, 2, 3))
        return (errors / levels).mean() / middle

    return loss


def levels_in(sigma: NoiseLevels) -> tuple[float, ...]:
    """The level, or the ends of a range and its geometric mean between them."""
    if isinstance(sigma, float):
        return (sigma,)
    lowest, highest = sigma
    return lowest, math.sqrt(lowest * highest), highest


def validation_db(
    images: Sequence[np.ndarray], sigma: NoiseLevels
) -> Callable[[nn.Module], dict[str, float]]:
    """Function of a model: mean PSNR over the middles of images, always with the same noise.

    In a range of noise levels it is the mean over the ends and the middle.
    """
    known = []
    for seed, image in enumerate(images):
        top, left = (max(0, (extent - _CROP) // 2) for extent in image.shape[:2])
        clean = levels_of(image[top : top + _CROP, left : left + _CROP])
        for level in levels_in(sigma):
            noisy = add_noise(clean, sigma=level, random_state=seed)
            known.append((_to_planes(noisy), _to_planes(clean), level))

    def validate(model: nn.Module) -> dict[str, float]:
        weight, losses = next(model.parameters()), []
        for noisy, clean, level in known:
            given = (noisy.to(weight), level) if takes_levels(model) else (noisy.to(weight),)
            losses.append(float(((model(*given) - clean.to(weight)).double() ** 2).mean()))
        return {"validation_db": float(np.mean(-10 * np.log10(losses)))}

    return validate


def _to_planes(image: np.ndarray) -> Tensor:
    planes = image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)
    return torch.from_numpy(np.ascontiguousarray(planes))[None]


def train_denoiser(
    network: nn.Module,
    *,
    sigma: NoiseLevels,
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
    sigma : float or pair of float
        Standard deviation of the noise, in grey levels, for example 25 / 255; or its range, for a
        network that takes it: ``network(noisy, sigma)`` with a level for each image.
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
        If there are not more images than for validation, an image is smaller than a patch, a
        range is empty or for a network that takes no level, or as in
        `twinsolve.bench.training.train`.
    FloatingPointError
        If loss or gradient is NaN or infinite; the last checkpoint is kept.
    """
    sigma = _check_levels(sigma, network)
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


def _check_levels(sigma: Any, network: nn.Module) -> NoiseLevels:
    """Return a level as float or a range as pair; JSON has lists."""
    if isinstance(sigma, int | float):
        return float(sigma)
    lowest, highest = map(float, sigma)
    if not 0 < lowest < highest < math.inf:
        raise ValueError(f"sigma: a range must rise from above 0, got {lowest:g} to {highest:g}")
    if not takes_levels(network):
        raise ValueError(
            f"sigma: a range needs a network(noisy, sigma); {type(network).__name__} takes no level"
        )
    return lowest, highest


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
