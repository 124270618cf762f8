"""Extended Yale B, the faces of subspace clustering."""

import numpy as np
from scipy.io import loadmat
from sklearn.utils import Bunch

from .root import data_file

_SOURCE = (
    "Extended Yale B, cropped faces at 48 x 42 as ExtendedYaleB.mat with EYALEB_DATA and "
    "EYALEB_LABEL (Georghiades et al., PAMI 2001; Lee et al., PAMI 2005)"
)
_SHAPE = (48, 42)


def fetch_extended_yale_b(*, data_home: str | None = None, return_X_y: bool = False) -> Bunch:
    """Load Extended Yale B: 2,414 cropped faces of 38 persons under 64 lights.

    Parameters
    ----------
    data_home : str, optional
        Folder that holds ``ExtendedYaleB.mat``. None is the folder in the environment variable
        TWINSOLVE_DATA, else the user's cache folder.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``data``: ndarray of shape (2414, 2016), one image a row in row-major order, grey levels 0
        to 255; ``images``: the same as (2414, 48, 42); ``target``: persons 0 to 37; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing: names it, the folder and where the data set comes from.
    ValueError
        If the file does not hold the two arrays in the expected shapes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_extended_yale_b
    >>> fetch_extended_yale_b().data.shape  # doctest: +SKIP
    (2414, 2016)
    """
    path = data_file("ExtendedYaleB.mat", data_home, _SOURCE)
    content = loadmat(path, variable_names=["EYALEB_DATA", "EYALEB_LABEL"])
    try:
        pixels = content["EYALEB_DATA"].T.reshape(-1, *_SHAPE[::-1]).astype(np.float64)
        target = content["EYALEB_LABEL"].ravel().astype(np.int64) - 1
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: is not {_SOURCE}") from error
    if len(target) != len(pixels):
        raise ValueError(f"{path}: holds {len(pixels)} images but {len(target)} labels")
    images = np.ascontiguousarray(pixels.transpose(0, 2, 1))
    data = images.reshape(len(images), -1)
    if return_X_y:
        return data, target
    return Bunch(data=data, images=images, target=target, DESCR=_SOURCE)
