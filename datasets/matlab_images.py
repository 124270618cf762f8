"""Sets of grey images as one matrix and one vector of labels, as MATLAB users exchange them."""

from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from .files import image_rows, is_hdf5, read_hdf5, whole_labels
from .matlab import read_mat
from .root import data_file, first_data_file

_PAGES = "http://www.cad.zju.edu.cn/home/dengcai/Data/"
_COIL20 = (
    "COIL-20, 20 objects in 72 views at 32 x 32 as COIL20.mat with fea and gnd "
    f"(Nene, Nayar and Murase, CUCS-005-96, 1996; {_PAGES}MLData.html; SHA-256 of the file "
    "used here: 2a35c105dbb327492b90389e55612bcbf39187bc7c408252239903e4ce7d6958)"
)
_COIL100 = (
    "COIL-100, 100 objects in 72 views, in grey at 32 x 32, as COIL100.mat with fea and gnd "
    f"(Nene, Nayar and Murase, CUCS-006-96, 1996; {_PAGES}MLData.html)"
)
_ORL = (
    "ORL, 10 faces of each of 40 persons at 32 x 32 as ORL_32x32.mat with fea and gnd "
    f"(Samaria and Harter, WACV 1994; {_PAGES}FaceData.html)"
)
_YALE = (
    "Yale, 11 faces of each of 15 persons at 32 x 32 as Yale_32x32.mat with fea and gnd "
    f"(Belhumeur, Hespanha and Kriegman, PAMI 1997; {_PAGES}FaceData.html)"
)
_USPS = (
    "USPS, 9,298 handwritten digits at 16 x 16 as USPS.mat with fea and gnd, or as usps.h5 with "
    "train/data, train/target, test/data and test/target (Hull, PAMI 1994; "
    f"{_PAGES}MLData.html)"
)


def fetch_coil20(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load COIL-20: 1,440 images of 20 objects, turned by 5 degrees from view to view.

    Parameters
    ----------
    data_home : str, optional
        Folder that holds ``COIL20.mat``. None is the folder in the environment variable
        TWINSOLVE_DATA, else the user's cache folder.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``data``: ndarray of shape (1440, 1024), one image a row in row-major order, grey levels 0
        to 1; ``images``: the same as (1440, 32, 32); ``target``: objects 0 to 19; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing: names it, the folder and where the data set comes from.
    ValueError
        If the file is damaged or does not hold the two arrays in the expected shapes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_coil20
    >>> fetch_coil20().data.shape  # doctest: +SKIP
    (1440, 1024)
    """
    path = data_file("COIL20.mat", data_home, _COIL20)
    return _two_keys(path, (32, 32), _COIL20, return_X_y)


def fetch_coil100(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load COIL-100: 7,200 grey images of 100 objects, turned by 5 degrees from view to view.

    Parameters, errors and fields as in `fetch_coil20`. The file is ``COIL100.mat``; ``data`` has
    shape (7200, 1024) and keeps the file's grey levels, as a rule 0 to 255.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_coil100
    >>> fetch_coil100().data.shape  # doctest: +SKIP
    (7200, 1024)
    """
    path = data_file("COIL100.mat", data_home, _COIL100)
    return _two_keys(path, (32, 32), _COIL100, return_X_y)


def fetch_orl(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load ORL: 400 faces of 40 persons.

    Parameters, errors and fields as in `fetch_coil20`. The file is ``ORL_32x32.mat``; ``data`` has
    shape (400, 1024) and keeps the file's grey levels, as a rule 0 to 255.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_orl
    >>> fetch_orl().data.shape  # doctest: +SKIP
    (400, 1024)
    """
    path = data_file("ORL_32x32.mat", data_home, _ORL)
    return _two_keys(path, (32, 32), _ORL, return_X_y)


def fetch_yale(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load Yale: 165 faces of 15 persons.

    Parameters, errors and fields as in `fetch_coil20`. The file is ``Yale_32x32.mat``; ``data``
    has shape (165, 1024) and keeps the file's grey levels, as a rule 0 to 255.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_yale
    >>> fetch_yale().data.shape  # doctest: +SKIP
    (165, 1024)
    """
    path = data_file("Yale_32x32.mat", data_home, _YALE)
    return _two_keys(path, (32, 32), _YALE, return_X_y)


def fetch_usps(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load USPS: 9,298 handwritten digits.

    Parameters, errors and fields as in `fetch_coil20`. The file is ``USPS.mat``, with images in
    column-major order as in the other MATLAB files, or else ``usps.h5``, with images in row-major
    order, the training part before the test part. ``data`` has shape (9298, 256) and keeps the
    file's grey levels; ``target_names`` are the digits.

    Some copies of ``USPS.mat`` list the pixels row by row, and nothing in the file says so: their
    digits come out mirrored at the diagonal. This does not change distances, inner products or
    principal components; it does change feature maps that depend on the orientation.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_usps
    >>> fetch_usps().data.shape  # doctest: +SKIP
    (9298, 256)
    """
    path = first_data_file(("USPS.mat", "usps.h5"), data_home, _USPS)
    digits = [str(digit) for digit in range(10)]
    if path.suffix == ".mat":
        return _two_keys(path, (16, 16), _USPS, return_X_y, digits)
    if not is_hdf5(path):
        raise ValueError(f"{path}: truncated, corrupted or no HDF5 file")
    parts = read_hdf5(path)
    try:
        rows = np.concatenate([parts["train/data"], parts["test/data"]])
        images = _reshape(rows, (16, 16))
        labels = np.concatenate([parts["train/target"], parts["test/target"]])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: is not {_USPS} ({error})") from error
    return image_bunch(path, images, labels, _USPS, return_X_y, digits)


def image_bunch(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    source: str,
    return_X_y: bool,
    target_names: list[str] | None = None,
) -> Bunch:
    """Return checked images and labels: a Bunch, or data and target if `return_X_y`."""
    target = whole_labels(labels, path)
    if len(target) != len(images):
        raise ValueError(f"{path}: holds {len(images)} images but {len(target)} labels")
    if target_names is not None and target.max() >= len(target_names):
        raise ValueError(
            f"{path}: must hold at most {len(target_names)} classes, got {target.max() + 1}"
        )
    images = np.ascontiguousarray(images, dtype=np.float64)
    if not np.isfinite(images).all():
        raise ValueError(f"{path}: holds NaN or infinite grey levels")
    data = image_rows(images)
    if return_X_y:
        return data, target
    names = {} if target_names is None else {"target_names": target_names}
    return Bunch(data=data, images=images, target=target, DESCR=source, **names)


def column_major_images(rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return images of `shape` from rows that list the pixels column by column."""
    return _reshape(rows, shape[::-1]).transpose(0, 2, 1)


def _reshape(rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return images of `shape` from rows; a matrix with images as columns is an error."""
    if rows.ndim != 2 or rows.shape[1] != shape[0] * shape[1]:
        raise ValueError(f"rows must have {shape[0] * shape[1]} pixels, got shape {rows.shape}")
    return rows.reshape(-1, *shape)


def _two_keys(
    path: Path,
    shape: tuple[int, int],
    source: str,
    return_X_y: bool,
    target_names: list[str] | None = None,
) -> Bunch:
    """Read a MATLAB file with the images in `fea` and the labels in `gnd`."""
    content = read_mat(path)
    try:
        images = column_major_images(content["fea"], shape)
        labels = content["gnd"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: is not {source} ({error})") from error
    return image_bunch(path, images, labels, source, return_X_y, target_names)
