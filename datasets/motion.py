"""Hopkins 155, the point trajectories of motion segmentation."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Bunch, check_array

from .files import whole_labels
from .matlab import read_mat
from .root import data_root, missing

_SOURCE = (
    "Hopkins 155 motion segmentation as hopkins155/NAME/NAME_truth.mat with x and s (Tron and "
    "Vidal, CVPR 2007; http://www.vision.jhu.edu/data/hopkins155/)"
)
_LEFT_OUT = "dancing"


def fetch_hopkins155(*, data_home: str | None = None, include_dancing: bool = False) -> list[Bunch]:
    """Load Hopkins 155: trajectories of tracked points in sequences of 2 or 3 rigid motions.

    Parameters
    ----------
    data_home : str, optional
        Folder that holds ``hopkins155``. None is the folder in the environment variable
        TWINSOLVE_DATA, else the user's cache folder.
    include_dancing : bool, default=False
        Add the sequence ``dancing`` (5 motions), which published averages leave out.

    Returns
    -------
    list of Bunch
        One for each sequence, sorted by name. ``data``: ndarray of shape (n_points, 2 n_frames);
        row i holds the coordinates ``x, y`` of point i in frame 1, then in frame 2, and so on,
        scaled so that the image is the square from -1 to 1, with y downwards; ``target``: motions
        from 0; ``X`` and ``labels``: the same two arrays; ``name``; ``n_motions``; ``width`` and
        ``height`` of the frames in pixels, None where the file does not say; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the folder is missing or empty: names it and where the data set comes from.
    ValueError
        If a file is damaged or does not hold the two arrays in the expected shapes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_hopkins155
    >>> len(fetch_hopkins155())  # doctest: +SKIP
    155
    """
    paths = sorted(data_root(data_home).glob("hopkins155/*/*_truth.mat"))
    if not paths:
        raise missing("hopkins155/NAME/NAME_truth.mat", data_home, _SOURCE)
    names = [path.parent.name for path in paths]
    return [
        _read(path, name)
        for path, name in zip(paths, names, strict=True)
        if include_dancing or name != _LEFT_OUT
    ]


def project_trajectories(X: ArrayLike, dimension: int) -> np.ndarray:
    """Coordinates of the rows of X along their leading right singular vectors, without centring.

    The result is ``X R``; the columns of R are the `dimension` leading right singular vectors, or
    all of them if there are fewer. The trajectories of n motions span at most 4 n dimensions.

    Parameters
    ----------
    X : array-like of shape (n_points, n_features)
    dimension : int

    Returns
    -------
    ndarray of shape (n_points, min(dimension, n_points, n_features))

    Raises
    ------
    ValueError
        If X is not a finite matrix, or ``dimension < 1``.

    Examples
    --------
    >>> from twinsolve.datasets import project_trajectories
    >>> abs(project_trajectories([[3.0, 0.0], [0.0, 1.0]], 1))
    array([[3.],
           [0.]])
    """
    if dimension < 1:
        raise ValueError(f"dimension: must be >= 1, got {dimension}")
    points = check_array(X, dtype=np.float64, input_name="X")
    U, s, _ = np.linalg.svd(points, full_matrices=False)
    return U[:, :dimension] * s[:dimension]


def homogeneous_coordinates(X: ArrayLike) -> np.ndarray:
    """Append a feature that is 1 for every row, so that affine subspaces become linear ones.

    Parameters
    ----------
    X : array-like of shape (n_points, n_features)

    Returns
    -------
    ndarray of shape (n_points, n_features + 1)

    Raises
    ------
    ValueError
        If X is not a finite matrix.

    Examples
    --------
    >>> from twinsolve.datasets import homogeneous_coordinates
    >>> homogeneous_coordinates([[3.0, 4.0]])
    array([[3., 4., 1.]])
    """
    points = check_array(X, dtype=np.float64, input_name="X")
    return np.hstack([points, np.ones((len(points), 1))])


def _read(path: Path, name: str) -> Bunch:
    """Read the sequence `name`."""
    content = read_mat(path)
    try:
        x, labels = content["x"], whole_labels(content["s"], path)
    except KeyError as error:
        raise ValueError(f"{path}: is not {_SOURCE}") from error
    if x.ndim != 3 or x.shape[:2] != (3, len(labels)):
        raise ValueError(f"{path}: x must have shape (3, points, frames), got {x.shape}")
    X = trajectories(x)
    if not np.isfinite(X).all():
        raise ValueError(f"{path}: holds NaN or infinite coordinates")
    return Bunch(
        data=X,
        target=labels,
        X=X,
        labels=labels,
        name=name,
        n_motions=len(np.unique(labels)),
        width=_pixels(content.get("width")),
        height=_pixels(content.get("height")),
        DESCR=_SOURCE,
    )


def trajectories(x: np.ndarray) -> np.ndarray:
    """Return homogeneous coordinates of shape (3, points, frames) as a row ``x, y`` a point."""
    points = np.ascontiguousarray(x[:2].transpose(1, 2, 0), dtype=np.float64)
    return points.reshape(x.shape[1], -1)


def _pixels(value: np.ndarray | None) -> int | None:
    """Return an entry of the file as a whole number, or None if it is missing."""
    return int(value.item()) if value is not None and value.size == 1 else None
