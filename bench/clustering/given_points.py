"""Points given as an array or a frame: they become a file, which the jobs read."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from ...datasets.array_points import as_rows
from ...datasets.files import write_whole
from ...datasets.labels import count_labels
from ...solvers.clustering.selection import check_distinct
from ...solvers.inputs import as_array
from ...validation import check_integer


@contextmanager
def points_file(
    X: Any, y: ArrayLike | None, n_clusters: int | None, directory: Path | None
) -> Iterator[str]:
    """Write points and labels to `directory`, or else for the time being; yield their name.

    Raises
    ------
    ValueError
        If they are no finite numbers with a label each, or the number of clusters is missing or too
        large.
    """
    rows = as_rows("X", _values_of(X), "the array")
    arrays = {"X": rows if issparse(X) else _values_of(X)}
    if y is not None:
        arrays["y"] = _labels_of(y, len(rows))
        if n_clusters is None and (arrays["y"] == arrays["y"][0]).all():
            raise ValueError("y: all labels are of one class; say n_clusters, or give other labels")
    elif n_clusters is None:
        raise ValueError("n_clusters: say how many clusters to look for, or give labels y")
    if n_clusters is not None:
        check_integer(n_clusters, "n_clusters", minimum=1, maximum=len(rows))
    check_distinct(rows, n_clusters, "X")
    content = BytesIO()
    np.savez(content, **arrays)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:16]
    with TemporaryDirectory() as temporary:
        path = (directory or Path(temporary)) / f"points-{digest}.npz"
        if ":" in str(path):
            raise ValueError(f"directory: must have no colon in its path, got {path.parent}")
        write_whole(path, content.getvalue())
        yield f"{path}" + (f":n_clusters={n_clusters}" if n_clusters else "")


def _values_of(X: Any) -> Any:
    """Return the numbers of an array, a sparse matrix or a frame."""
    if hasattr(X, "select_dtypes"):
        others = X.select_dtypes(exclude=["number", "bool"]).columns.tolist()
        if others:
            raise ValueError(f"X: must hold numbers; leave out the columns {others}")
        return X.to_numpy(dtype=np.float64, na_value=np.nan)
    return X if issparse(X) else as_array(X, "X")


def _labels_of(y: ArrayLike, n_points: int) -> np.ndarray:
    labels = np.asarray(y)
    labels = np.asarray(labels.tolist()) if labels.dtype == object else labels
    if labels.shape != (n_points,):
        raise ValueError(
            f"y: must be a vector with a label for each of the {n_points} points, got shape "
            f"{labels.shape}"
        )
    names, _ = count_labels("y", labels)
    if labels.dtype.kind == "f" and (names != np.rint(names)).any():
        other = names[names != np.rint(names)][0]
        raise ValueError(f"y: labels must be whole numbers or words, got {other}")
    return labels
