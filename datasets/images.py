"""Grey photographs and noise, the data of image denoising."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import load_sample_images
from sklearn.utils import Bunch, check_random_state

from .archives import packed_files
from .files import picture_reader
from .root import data_file, first_data_file
from .unpacked import keep_unpacked, load_unpacked, stamp_of

_LUMA = np.array([0.2125, 0.7154, 0.0721])
_SET12_SOURCE = (
    "the Set12 images of the DnCNN paper (Zhang et al., 2017; folder testsets/Set12 of "
    "https://github.com/cszn/DnCNN), as 01.png to 12.png"
)
_TRAIN400_SOURCE = (
    "the 400 grey training images of 180 x 180 pixels of denoising papers (Chen and Pock, PAMI "
    "2017; Zhang et al., 2017; folder Train400 of https://github.com/cszn/DnCNN), cut out of the "
    "Berkeley segmentation data, as test_001.png to test_400.png"
)


def load_photographs(*, colour: bool = False) -> Bunch:
    """Load the two photographs packaged with scikit-learn.

    Parameters
    ----------
    colour : bool, default=False
        True gives red, green and blue; False gives grey (luma of Rec. 709).

    Returns
    -------
    Bunch
        ``images``: list of two ndarrays of shape (427, 640) or, in colour, (427, 640, 3), levels
        in [0, 1]; ``names``: ["china", "flower"]; ``DESCR``.

    Examples
    --------
    >>> from twinsolve.datasets import load_photographs
    >>> photographs = load_photographs()
    >>> photographs.names, photographs.images[0].shape
    (['china', 'flower'], (427, 640))
    """
    sample = load_sample_images()
    images = [
        image / 255 if colour else np.minimum(image @ _LUMA / 255, 1.0) for image in sample.images
    ]
    names = [str(name).removesuffix(".jpg") for name in sample.filenames]
    return Bunch(images=images, names=[name.split("/")[-1] for name in names], DESCR=sample.DESCR)


def fetch_set12(*, data_home: str | None = None) -> Bunch:
    """Load Set12, the twelve grey images that denoising papers report on.

    Parameters
    ----------
    data_home : str, optional
        Folder that holds ``set12/01.png`` to ``set12/12.png``. None is the folder in the
        environment variable TWINSOLVE_DATA, else the user's cache folder.

    Returns
    -------
    Bunch
        ``images``: list of twelve ndarrays, 256 x 256 or 512 x 512, grey levels in [0, 1];
        ``names``: "01" to "12"; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If a file is missing: names it, the folder and where the data set comes from.
    ValueError
        If a file is damaged.
    ImportError
        If pillow is not installed.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_set12
    >>> fetch_set12().images[0].shape  # doctest: +SKIP
    (256, 256)
    """
    read = picture_reader()
    names = [f"{number:02d}" for number in range(1, 13)]
    images = []
    for name in names:
        path = data_file(f"set12/{name}.png", data_home, _SET12_SOURCE)
        images.append(read(path, path, "L") / 255)
    return Bunch(images=images, names=names, DESCR=f"Set12: {_SET12_SOURCE}.")


def fetch_train400(*, data_home: str | None = None) -> Bunch:
    """Load the 400 grey images on which denoising networks are trained.

    They hold no image of Set12. The decoded images of an archive are kept in the user's cache
    folder (13 MB) and read from there until the archive changes.

    Parameters
    ----------
    data_home : str, optional
        Folder that holds ``train400.tar.xz``, or ``train400`` with the same files. None is the
        folder in the environment variable TWINSOLVE_DATA, else the user's cache folder.

    Returns
    -------
    Bunch
        ``images``: ndarray of shape (400, 180, 180), grey levels in [0, 1]; ``names``: "test_001"
        to "test_400"; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If neither exists: names them, the folder and where the data set comes from.
    ValueError
        If a file is damaged or images are missing.
    ImportError
        If pictures are to be read and pillow is not installed.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_train400
    >>> fetch_train400().images.shape  # doctest: +SKIP
    (400, 180, 180)
    """
    path = first_data_file(("train400", "train400.tar.xz"), data_home, _TRAIN400_SOURCE)
    names = [f"test_{number:03d}" for number in range(1, 401)]
    arrays = None if path.is_dir() else load_unpacked(path, "train400")
    if arrays is None:
        stamp = stamp_of(path)
        arrays = {"images": _train400_pixels(path, names)}
        if not path.is_dir():
            keep_unpacked(path, "train400", arrays, stamp)
    return Bunch(images=arrays["images"] / 255, names=names, DESCR=f"train400: {_TRAIN400_SOURCE}.")


def _train400_pixels(path: Path, names: list[str]) -> np.ndarray:
    """Return images as bytes of shape (400, 180, 180), from a folder or an archive."""
    read = picture_reader()
    files = {f"{name}.png" for name in names}
    by_name = {}
    for parts, content in packed_files(path, lambda parts: parts[-1] in files):
        place = f"{path}: {'/'.join(parts)}"
        image = read(io.BytesIO(content), place, "L")
        if image.shape != (180, 180):
            size = f"{image.shape[1]} x {image.shape[0]}"
            raise ValueError(f"{place}: must be 180 x 180, got {size}")
        by_name[parts[-1]] = image
    if absent := sorted(files - set(by_name)):
        raise ValueError(f"{path}: {len(absent)} of 400 images are missing, such as {absent[0]}")
    return np.stack([by_name[f"{name}.png"] for name in names])


def make_noisy_crop(
    image: ArrayLike,
    *,
    size: int,
    sigma: float,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a square out of an image at random and add white Gaussian noise.

    Parameters
    ----------
    image : array-like of shape (height, width)
        Grey levels in [0, 1].
    size : int
        Side of the square, in pixels.
    sigma : float
        Standard deviation of the noise, in grey levels; 25 / 255 is the usual setting. The noisy
        image is not clipped.
    random_state : int, RandomState or None

    Returns
    -------
    noisy, clean : ndarray of shape (size, size)

    Raises
    ------
    ValueError
        If the image is not two-dimensional or smaller than the square, or sigma is negative or
        not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets import make_noisy_crop
    >>> noisy, clean = make_noisy_crop(np.zeros((9, 9)), size=4, sigma=0.1, random_state=0)
    >>> noisy.shape, bool(clean.any())
    ((4, 4), False)
    """
    pixels = np.asarray(image, dtype=np.float64)
    if pixels.ndim != 2 or not 1 <= size <= min(pixels.shape):
        raise ValueError(
            f"size: an image of shape {pixels.shape} holds no square of {size} x {size} pixels"
        )
    rng = check_random_state(random_state)
    top, left = (rng.randint(extent - size + 1) for extent in pixels.shape)
    clean = pixels[top : top + size, left : left + size].copy()
    return add_noise(clean, sigma=sigma, random_state=rng), clean


def add_noise(
    image: ArrayLike, *, sigma: float, random_state: int | np.random.RandomState | None = None
) -> np.ndarray:
    """Add white Gaussian noise to an image.

    Parameters
    ----------
    image : array-like
        Grey levels in [0, 1], of any shape.
    sigma : float
        Standard deviation of the noise, in grey levels; 25 / 255 is the usual setting. The noisy
        image is not clipped.
    random_state : int, RandomState or None

    Returns
    -------
    noisy : ndarray of the same shape

    Raises
    ------
    ValueError
        If sigma is negative or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets import add_noise
    >>> add_noise(np.zeros((5, 4, 3)), sigma=0.1, random_state=0).shape
    (5, 4, 3)
    """
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma: must be >= 0 and finite, got {sigma}")
    pixels = np.asarray(image, dtype=np.float64)
    return pixels + sigma * check_random_state(random_state).standard_normal(pixels.shape)
