"""Images to denoise: packaged photographs, Set12, or a folder of the user."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ....datasets import add_noise, fetch_set12, load_image_folder, load_photographs
from ....solvers.solution import Array

_CROP = 192
BUILT_IN = ("photographs", "set12")
Images = tuple[tuple[str, ...], tuple[Array, ...]]


def load_images(name: str, data_home: str | None = None, colour: bool = False) -> Images:
    """Names and images in [0, 1].

    Parameters
    ----------
    name : str
        "photographs": the middles, of 192 x 192 pixels, of the two that scikit-learn has;
        "set12"; or a folder of pictures.
    data_home : str, optional
        Folder of the data sets.
    colour : bool, default=False
        Images of shape (height, width, 3); else they become grey.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such set or folder, or not in colour, or a picture in it is damaged.
    """
    if name in BUILT_IN or not Path(name).is_dir():
        return _loaded(name, data_home, colour)
    stats = ((str(path), path.stat()) for path in sorted(Path(name).rglob("*")))
    stamps = tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)
    return _loaded(name, data_home, colour, stamps)


@lru_cache(maxsize=4)
def _loaded(name: str, data_home: str | None, colour: bool, stamps: object = None) -> Images:
    if name == "photographs":
        found = load_photographs(colour=colour)
        images = [middle(image, _CROP) for image in found.images]
    elif name == "set12":
        if colour:
            raise ValueError("colour: set12 is grey")
        found = fetch_set12(data_home=data_home)
        images = found.images
    elif Path(name).exists():
        found = load_image_folder(name, colour=colour)
        images = found.images
    else:
        raise ValueError(
            f"images: must be {' or '.join(BUILT_IN)}, a folder of pictures; got {name!r}"
        )
    return tuple(found.names), tuple(np.asarray(image, dtype=np.float64) for image in images)


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
        return load_images(self.images, self.data_home, self.colour)[0]

    @property
    def clean(self) -> tuple[Array, ...]:
        return load_images(self.images, self.data_home, self.colour)[1]

    def noisy(self, place: int, sigma: float) -> Array:
        """An image with noise of standard deviation `sigma`, in grey levels of [0, 1]."""
        return noisy_image(self.clean[place], sigma, self.seed, place)
