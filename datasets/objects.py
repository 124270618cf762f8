"""COIL-20, the turned objects of subspace clustering."""

import numpy as np
from scipy.io import loadmat
from sklearn.utils import Bunch

from .root import data_file

_SOURCE = (
    "COIL-20, 20 objects in 72 views at 32 x 32 as COIL20.mat with fea and gnd "
    "(Nene, Nayar and Murase, CUCS-005-96, 1996)"
)
_SHAPE = (32, 32)


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
        If the file does not hold the two arrays in the expected shapes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_coil20
    >>> fetch_coil20().data.shape  # doctest: +SKIP
    (1440, 1024)
    """
    path = data_file("COIL20.mat", data_home, _SOURCE)
    content = loadmat(path, variable_names=["fea", "gnd"])
    try:
        pixels = content["fea"].reshape(-1, *_SHAPE[::-1]).astype(np.float64)
        target = content["gnd"].ravel().astype(np.int64) - 1
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: is not {_SOURCE}") from error
    if len(target) != len(pixels):
        raise ValueError(f"{path}: holds {len(pixels)} images but {len(target)} labels")
    images = np.ascontiguousarray(pixels.transpose(0, 2, 1))
    data = images.reshape(len(images), -1)
    if return_X_y:
        return data, target
    return Bunch(data=data, images=images, target=target, DESCR=_SOURCE)
