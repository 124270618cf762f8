"""Random patches of images: each is a function of seed, step and its place in the batch."""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


class Patches:
    """Random crops, turned and mirrored in the eight ways that keep a square.

    Parameters
    ----------
    images : sequence of ndarray of shape (height, width) or (height, width, channels)
        Grey levels in [0, 1], or of uint8, as packed images are. Only the crops are read.
    size : int
        Side of a patch.

    Raises
    ------
    ValueError
        If an image is smaller than a patch, or there is none.
    """

    def __init__(self, images: Sequence[Array], size: int) -> None:
        if not len(images):
            raise ValueError("images: must be one or more")
        for number, image in enumerate(images):
            if not 1 <= size <= min(image.shape[:2]):
                raise ValueError(f"size: no {size} x {size} patch in image {number}, {image.shape}")
        self.images, self.size = images, size

    def crop(self, rng: np.random.Generator) -> Array:
        """A patch of shape (channels, size, size), float32 in [0, 1]."""
        image = self.images[int(rng.integers(len(self.images)))]
        top, left = (int(rng.integers(extent - self.size + 1)) for extent in image.shape[:2])
        patch = image[top : top + self.size, left : left + self.size]
        turns, mirrored = divmod(int(rng.integers(8)), 2)
        patch = np.rot90(patch, turns)
        patch = patch[:, ::-1] if mirrored else patch
        planes = patch[None] if patch.ndim == 2 else np.moveaxis(patch, 2, 0)
        return np.ascontiguousarray(levels_of(planes), dtype=np.float32)


def levels_of(pixels: Array) -> Array:
    """Levels in [0, 1], also of pixels of 8 bits."""
    return pixels / np.float32(255) if pixels.dtype == np.uint8 else pixels


def generator_of(seed: int, step: int, sample: int) -> np.random.Generator:
    """What is random in a sample of a step, wherever and whenever it is drawn."""
    return np.random.default_rng((seed, step, sample))
