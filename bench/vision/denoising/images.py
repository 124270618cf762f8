"""Images to denoise: packaged photographs, Set12, or a folder of the user."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import skimage
from skimage.color import rgb2gray

from ....datasets import (
    add_noise,
    fetch_camvid,
    fetch_set12,
    fetch_train400,
    load_photographs,
)
from ....datasets.image_folder import read_pictures
from ....solvers.solution import Array

N_VALIDATION = 20  # of train400, the last ones: no network is trained on them
_CROP = 192
_HELD_OUT_CROP, _SCENES_APART = 256, 10
# Photographs of scenes and surfaces that scikit-image comes with.
_PACKAGED = (
    "astronaut", "brick", "camera", "cat", "coffee", "coins", "grass", "gravel", "moon", "rocket",
)  # fmt: skip
SMALLEST = 16  # pixels of a side that all methods take
BUILT_IN = ("photographs", "set12", "held-out")


class Images(NamedTuple):
    """Images in [0, 1], their names, and why other pictures of their folder were left out."""

    names: tuple[str, ...]
    clean: tuple[Array, ...]
    left_out: tuple[str, ...] = ()


def load_images(name: str, data_home: str | None = None, colour: bool = False) -> Images:
    """Load images in [0, 1].

    Parameters
    ----------
    name : str
        "photographs": the middles, of 192 x 192 pixels, of the two that scikit-learn has;
        "set12"; "held-out": photographs that no network was trained on, namely the last 20 of
        train400, middles of 256 x 256 pixels of 12 that scikit-image and scikit-learn have, and
        every tenth test picture of CamVid; or a folder of pictures.
    data_home : str, optional
        Folder of the data sets.
    colour : bool, default=False
        Images of shape (height, width, 3); else they become grey.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such set or folder, or not in colour, or no picture of it can be used.
    """
    if name in BUILT_IN or not Path(name).is_dir():
        return _loaded(name, data_home, colour)
    stats = ((str(path), path.stat()) for path in sorted(Path(name).rglob("*")))
    stamps = tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)
    return _loaded(name, data_home, colour, stamps)


@lru_cache(maxsize=4)
def _loaded(name: str, data_home: str | None, colour: bool, stamps: object = None) -> Images:
    if colour and name in ("set12", "held-out"):
        raise ValueError(f"colour: {name} is grey")
    if name == "photographs":
        found = load_photographs(colour=colour)
        return Images(tuple(found.names), tuple(middle(image, _CROP) for image in found.images))
    if name == "set12":
        found = fetch_set12(data_home=data_home)
        return Images(tuple(found.names), tuple(found.images))
    if name == "held-out":
        held_out = _held_out(data_home)
        return Images(tuple(held_out), tuple(held_out.values()))
    if Path(name).exists():
        return _usable(name, colour)
    known = ", ".join(BUILT_IN)
    raise ValueError(f"images: must be {known} or a folder of pictures; got {name!r}")


def _held_out(data_home: str | None) -> dict[str, Array]:
    """Grey photographs by name: where they come from, and what they are called there."""
    validated = fetch_train400(data_home=data_home)
    scenes = fetch_camvid(subset="test", data_home=data_home)
    photographs = load_photographs()
    packaged = {name: _grey(getattr(skimage.data, name)()) for name in _PACKAGED}
    packaged |= dict(zip(photographs.names, photographs.images, strict=True))
    whole = list(zip(validated.names, validated.images, strict=True))[-N_VALIDATION:]
    apart = list(zip(scenes.names, scenes.images, strict=True))[::_SCENES_APART]
    return {
        **{f"train400/{name}": image for name, image in whole},
        **{f"packaged/{name}": middle(image, _HELD_OUT_CROP) for name, image in packaged.items()},
        **{f"camvid/{name}": _grey(image) for name, image in apart},
    }


def _grey(picture: Array) -> Array:
    """Levels in [0, 1] of a picture of 8 bits."""
    return rgb2gray(picture) if picture.ndim == 3 else picture / 255


def _usable(folder: str, colour: bool) -> Images:
    """The pictures of a folder that can be read and are large enough."""
    found, reasons = read_pictures(folder, colour=colour)
    for name, (high, wide, *_) in [(name, image.shape) for name, image in found.items()]:
        if min(high, wide) < SMALLEST:
            reasons[name] = (
                f"{Path(folder, name)}: has {high} x {wide} pixels; must have {SMALLEST} x "
                f"{SMALLEST} or more"
            )
            del found[name]
    if not found:
        raise ValueError(next(iter(reasons.values())))
    return Images(tuple(found), tuple(found.values()), tuple(reasons.values()))


def middle(image: Array, side: int) -> Array:
    """The square of so many pixels, or fewer if an image is smaller, in the middle of an image."""
    side = min(side, *image.shape[:2])
    top, left = ((extent - side) // 2 for extent in image.shape[:2])
    return image[top : top + side, left : left + side]


def noisy_image(clean: Array, sigma: float, seed: int, place: int) -> Array:
    """The image with noise of its own: that of a seed, of its place in the set and of the level."""
    generator = np.random.SeedSequence([seed, place, round(10 * 255 * sigma)]).generate_state(1)[0]
    return add_noise(clean, sigma=sigma, random_state=int(generator))


@dataclass(frozen=True)
class NoisyImages:
    """The images of `load_images`, each with noise of its own."""

    images: str
    seed: int = 0
    data_home: str | None = None
    colour: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self._found.names

    @property
    def clean(self) -> tuple[Array, ...]:
        return self._found.clean

    @property
    def left_out(self) -> tuple[str, ...]:
        return self._found.left_out

    @property
    def _found(self) -> Images:
        return load_images(self.images, self.data_home, self.colour)

    def noisy(self, place: int, sigma: float) -> Array:
        """An image with noise of standard deviation `sigma`, in grey levels of [0, 1]."""
        return noisy_image(self.clean[place], sigma, self.seed, place)
