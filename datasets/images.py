"""Grey photographs and noise, the data of image denoising."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import load_sample_images
from sklearn.utils import Bunch, check_random_state

from .files import picture_reader
from .root import data_file

_LUMA = np.array([0.2125, 0.7154, 0.0721])
_SET12_SOURCE = "the Set12 images of the DnCNN paper (Zhang et al., 2017), as 01.png to 12.png"


def load_photographs() -> Bunch:
    """Load the two photographs packaged with scikit-learn, in grey.

    Returns
    -------
    Bunch
        ``images``: list of two ndarrays of shape (427, 640) with grey levels in [0, 1] (luma of
        Rec. 709); ``names``: ["china", "flower"]; ``DESCR``.

    Examples
    --------
    >>> from twinsolve.datasets import load_photographs
    >>> photographs = load_photographs()
    >>> photographs.names, photographs.images[0].shape
    (['china', 'flower'], (427, 640))
    """
    sample = load_sample_images()
    images = [np.minimum(image @ _LUMA / 255, 1.0) for image in sample.images]
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
        If the image is not two-dimensional or smaller than the square, or ``sigma < 0``.

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
        raise ValueError(f"size: no {size} x {size} square in an image of shape {pixels.shape}")
    if sigma < 0:
        raise ValueError(f"sigma: must be >= 0, got {sigma}")
    rng = check_random_state(random_state)
    top, left = (rng.randint(extent - size + 1) for extent in pixels.shape)
    clean = pixels[top : top + size, left : left + size].copy()
    return clean + sigma * rng.standard_normal(clean.shape), clean
