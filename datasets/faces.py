"""Extended Yale B, the face images of subspace clustering, and its standard trials."""

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Bunch

from .matlab import read_mat
from .matlab_images import column_major_images, image_bunch
from .root import data_file

_SOURCE = (
    "Extended Yale B, cropped faces at 48 x 42 as ExtendedYaleB.mat with EYALEB_DATA and "
    "EYALEB_LABEL (Georghiades et al., PAMI 2001; Lee et al., PAMI 2005; the pictures at 192 x 168 "
    "are at http://vision.ucsd.edu/~leekc/ExtYaleDatabase/ExtYaleB.html; SHA-256 of the file "
    "used here: 27381c31d45c36202f30fbef5b3a1e0bb36e6101b5c52123351b7e7ee100355c)"
)
_SHAPE = (48, 42)
_N_SUBJECTS = 38
_GROUPS = (range(10), range(10, 20), range(20, 30), range(30, _N_SUBJECTS))


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
        If the file is damaged or does not hold the two arrays in the expected shapes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_extended_yale_b
    >>> fetch_extended_yale_b().data.shape  # doctest: +SKIP
    (2414, 2016)
    """
    path = data_file("ExtendedYaleB.mat", data_home, _SOURCE)
    content = read_mat(path)
    try:
        images = column_major_images(content["EYALEB_DATA"].T, _SHAPE)
        labels = content["EYALEB_LABEL"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: is not {_SOURCE} ({error})") from error
    return image_bunch(path, images, labels, _SOURCE, return_X_y)


def yale_b_subsets(n_subjects: int) -> list[tuple[int, ...]]:
    """List the standard trials of Extended Yale B: all subsets of subjects of one group.

    The four groups are subjects 1-10, 11-20, 21-30 and 31-38. There are 163, 416, 812, 136 and 3
    subsets of 2, 3, 5, 8 and 10 subjects, and one trial of all 38.

    Parameters
    ----------
    n_subjects : int
        1 to 10, or 38.

    Returns
    -------
    list of tuple of int
        Subjects from 0, as in the ``target`` of `fetch_extended_yale_b`, group by group in
        lexicographic order. `select_classes` selects the images of a trial.

    Raises
    ------
    ValueError
        If no group has `n_subjects` subjects.

    References
    ----------
    Elhamifar and Vidal, "Sparse subspace clustering: algorithm, theory, and applications" (2013).

    Examples
    --------
    >>> from twinsolve.datasets import yale_b_subsets
    >>> [len(yale_b_subsets(n)) for n in (2, 3, 5, 8, 10, 38)]
    [163, 416, 812, 136, 3, 1]
    """
    if n_subjects == _N_SUBJECTS:
        return [tuple(range(_N_SUBJECTS))]
    if n_subjects not in range(1, 11):
        raise ValueError(f"n_subjects: must be 1 to 10, or {_N_SUBJECTS}, got {n_subjects}")
    return [subset for group in _GROUPS for subset in combinations(group, n_subjects)]


def select_classes(X: ArrayLike, y: ArrayLike, classes: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Select the samples of some classes, and count their labels from 0.

    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
    y : array-like of shape (n_samples,)
    classes : array-like of shape (n_classes,)
        Labels that occur in `y`, without repetition.

    Returns
    -------
    X : ndarray
        The samples of the classes, in their order in `X`.
    y : ndarray of int
        Position in `classes` of the class of each sample.

    Raises
    ------
    ValueError
        If `X` and `y` differ in length, or a class is not in `y` or is repeated.

    Examples
    --------
    >>> from twinsolve.datasets import select_classes
    >>> select_classes([[1.0], [2.0], [3.0]], [4, 7, 9], [9, 4])
    (array([[1.],
           [3.]]), array([1, 0]))
    """
    X, y, classes = np.asarray(X), np.asarray(y), np.asarray(classes)
    if y.shape != X.shape[:1]:
        raise ValueError(f"y: must have shape {X.shape[:1]}, one label a row of X, got {y.shape}")
    if classes.ndim != 1 or len(np.unique(classes)) != len(classes):
        raise ValueError(f"classes: must be a list of different labels, got {classes.tolist()}")
    if unknown := sorted(set(classes.tolist()) - set(y.tolist())):
        raise ValueError(f"classes: must be labels in y, got {unknown} which are not")
    chosen, position = np.nonzero(y[:, None] == classes)
    return X[chosen], position
