"""Images to denoise: packaged photographs, Set12, or a folder of the user."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from ....datasets import add_noise, fetch_set12, load_image_folder, load_photographs
from ....solvers.solution import Array

_CROP = 192
BUILT_IN = ("photographs", "set12")


@lru_cache(maxsize=4)
def load_images(
    name: str, data_home: str | None = None
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Names and grey images in [0, 1].

    Parameters
    ----------
    name : str
        "photographs": the middles, of 192 x 192 pixels, of the two that scikit-learn has;
        "set12"; or a folder of pictures. Colours become grey.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such set or folder, or a picture in it is damaged.
    """
    if name == "photographs":
        found = load_photographs()
        images = [middle(image, _CROP) for image in found.images]
    elif name == "set12":
        found = fetch_set12(data_home=data_home)
        images = found.images
    elif Path(name).exists():
        found = load_image_folder(name)
        images = found.images
    else:
        raise ValueError(
            f"images: must be {' or '.join(BUILT_IN)}, a folder of pictures; got {name!r}"
        )
    return tuple(found.names), tuple(np.asarray(image, dtype=np.float64) for image in images)


def middle(image: Array, side: int) -> Array:
    """The square of so many pixels, or fewer if an image is smaller, in the middle of an image."""
    side = min(side, *image.shape)
    top, left = ((extent - side) // 2 for extent in image.shape)
    return image[top : top + side, left : left + side]


def noisy_image(clean: Array, sigma: float, seed: int, place: int) -> Array:
    """The image with noise of its own: that of a seed, of its place in the set and of the level."""
    generator = np.random.SeedSequence([seed, place, round(10 * 255 * sigma)]).generate_state(1)[0]
    return add_noise(clean, sigma=sigma, random_state=int(generator))
