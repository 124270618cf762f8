"""Points and labels in a user's own files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from .array_points import as_rows, choose_arrays, held
from .files import read_hdf5
from .idx import read_idx
from .labels import count_labels
from .matlab import read_mat
from .motion import trajectories
from .numpy_files import files_beside, is_single, read_archive, read_single
from .table_points import Drop, read_table_points
from .tables import is_table, is_text

_READ: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": read_archive,
    ".mat": read_mat,
    **dict.fromkeys((".h5", ".hdf5"), read_hdf5),
}
_KINDS = (
    ".csv, .tsv, .txt, .dat or .data, plain or with .gz; .parquet, .npy, .npz, .mat, .h5 or .hdf5; "
    "or bear idx in its name"
)


def load_points(
    path: str | Path,
    *,
    data_key: str | None = None,
    target_key: str | int | None = None,
    transpose: bool = False,
    drop: Drop = None,
    sep: str | None = None,
    decimal: str | None = None,
) -> Bunch:
    """Load points, and labels if there are any, from a file.

    A *table* is a text in UTF-8 (``.csv``, ``.tsv``, ``.txt``, ``.dat`` or ``.data``, plain or with
    ``.gz``) or a Parquet file. Arrays are in ``.npz``, ``.mat``, ``.h5`` or ``.hdf5`` files. A
    ``.npy`` file, and a sparse matrix that SciPy wrote as ``.npz``, hold the points alone: labels
    are in a ``.npy`` file of the same folder. The labels of an IDX file, plain or with ``.gz``, are
    in another IDX file; such files must have ``idx`` in their names.

    Points are rows; in a MATLAB file, rows as MATLAB shows them. An array of images, of shape
    (n, height, width) or (n, height, width, channels), has a row for each; so have the trajectories
    in a file ``NAME_truth.mat`` of Hopkins 155, as in `fetch_hopkins155`. Sparse points become
    dense, or stay a csr_array if that would take more than 2 GiB. Nothing in a file is executed:
    pickled objects are refused. HDF5 and MATLAB files of version 7.3 need h5py, Parquet needs
    pandas and pyarrow.

    The first line of a text table is its header if none of its fields is a number, if it counts
    columns from 0 (three or more, or two beside names), if one of its fields is `target_key` or in
    `drop`, or if its first column is one of row numbers. Such a column, as pandas and R write it,
    is no feature: it has no name, or is called ``Unnamed: 0``, and holds 0 to n - 1 or 1 to n.

    Parameters
    ----------
    path : str or Path
    data_key : str, optional
        Name of the array with the points. An array in a group or struct is called group/name, and
        the views in a MATLAB cell cell/1, cell/2 and so on. The name of the group or cell alone
        takes all its arrays side by side. None takes the array named X, x, data, fea or features,
        else the only matrix.
    target_key : str or int, optional
        Where the labels are: the name of an array; the name or number of a column of a table (-1 is
        the last); or the name of a ``.npy`` or IDX file in the same folder. None takes the array,
        column or ``.npy`` file named y, target, targets, label, labels, class, gnd, gt or s, in
        capitals or not, that holds a word or a whole number for each point; or the IDX file named
        like that of the points with labels for images and idx1 for idx3. If there is none, or with
        False, the points have no labels. A column y of whole numbers beside a column x of whole
        numbers may be a coordinate: it must be named.
    transpose : bool, default=False
        Whether the columns of the array are the points; of images, whether the last axis counts
        them.
    drop : str, int or list of these, optional
        Names or numbers of columns of a table to leave out, such as identifiers. None leaves out
        row numbers alone; an empty list keeps these too.
    sep : {"comma", "semicolon", "tab", "space"}, optional
        What separates the fields of a text table; space is any run of spaces and tabs. None takes
        the one by which the lines have as many fields, and most of these are numbers.
    decimal : {"point", "comma"}, optional
        The decimal sign of a text table. None finds it.

    Returns
    -------
    Bunch
        ``data``: ndarray of shape (n_samples, n_features), or a csr_array if sparse and large,
        float32 if the array in the file is, else float64; ``target``: labels counted from 0, or
        None; ``target_names``: the different labels in the file, sorted, or None
        (``target_names[target]`` are the labels of the points); ``feature_names``: the header of a
        table for the features, or None; ``found``: where points and labels were found, in words,
        with what bears a name of labels and is none, what was left out, and features that may
        number the points; ``DESCR``: path of the file, what was found and all it holds; ``images``,
        only if the file holds each point in two axes or three: ndarray of shape (n_samples, height,
        width) or (n_samples, height, width, channels), whose pixels ``data`` holds in row-major
        order.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or of another kind, a key is not in it, several arrays or columns
        could be the labels, or none surely is, commas may be decimal or group thousands, a field is
        empty or no number, or the arrays have shapes that do not fit or entries that are not
        finite; the message says where, and which argument would help.
    ImportError
        If the file needs h5py, or pandas and pyarrow, and they are not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets import load_points
    >>> np.savez("points.npz", X=np.eye(3), Y=["b", "a", "b"])
    >>> points = load_points("points.npz")
    >>> points.data.shape, points.target, points.target_names.tolist()
    ((3, 3), array([1, 0, 1]), ['a', 'b'])
    >>> points.found
    "points in array 'X', labels in array 'Y'"
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path: no file {path}")
    if not is_text(path) and (sep, decimal) != (None, None):
        raise ValueError(f"sep, decimal: must be None for {path}, which is no text")
    if not is_table(path) and drop is not None:
        raise ValueError(f"drop: must be None for {path}, which is no table")
    holds, feature_names, images = "", None, None
    if is_table(path):
        _refuse_keys(path, data_key, transpose)
        data, labels, feature_names, summary = read_table_points(
            path, target_key, drop, sep, decimal
        )
    elif is_turnable(path):
        if is_single(path):
            arrays, what = read_single(path, files_beside(path, target_key)), "file"
            data_key = data_key or path.name
        else:
            arrays, what = _with_trajectories(_READ[path.suffix](path)), "array"
        holds = f", which holds {held(arrays)}"
        data, images, labels, summary = choose_arrays(
            path, arrays, data_key, target_key, transpose, what
        )
    elif "idx" in path.name:
        _refuse_keys(path, data_key, transpose)
        data, labels, images, summary = _read_idx_pair(path, target_key)
    else:
        raise ValueError(f"path: must end in {_KINDS}; got {path}")
    target_names = target = None
    if labels is not None:
        target_names, target = count_labels(path, labels)
    return Bunch(
        data=data,
        target=target,
        target_names=target_names,
        feature_names=feature_names,
        found=summary,
        DESCR=f"Points of {path}{holds}: {summary}",
        **({} if images is None else {"images": images}),
    )


def _with_trajectories(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a file of Hopkins 155 with a row of `x` for each point, else the same.

    Such a file holds homogeneous coordinates x of shape (3, points, frames) beside motions s.
    """
    x, s = arrays.get("x"), arrays.get("s")
    if x is None or s is None or x.ndim != 3 or x.shape[:2] != (3, s.size) or (x[2] != 1).any():
        return arrays
    return arrays | {"x": trajectories(x)}


def is_turnable(path: Path) -> bool:
    """Whether the file holds arrays, whose columns may be the points."""
    return path.suffix in (*_READ, ".npy")


def point_files(path: str | Path, target_key: str | int | None = None) -> list[Path]:
    """Return the files that `load_points` reads: that of the points, and of the labels if any."""
    path = Path(path)
    if path.suffix in (".npy", ".npz"):
        return [path, *(files_beside(path, target_key) if is_single(path) else [])]
    if "idx" not in path.name or path.suffix in _READ or is_table(path):
        return [path]
    return [path, *filter(None, [_label_file(path, target_key)])]


def _refuse_keys(path: Path, data_key: str | None, transpose: bool) -> None:
    """Refuse settings of files that hold several arrays, or points as columns."""
    if data_key is not None:
        raise ValueError(f"data_key: must be None for {path}, which holds a single array or table")
    if transpose:
        raise ValueError(f"transpose: must be False for {path}, whose points are rows")


def _label_file(path: Path, target_key: str | int | None) -> Path | None:
    """Return the path of the IDX file of labels, plain or gzipped, beside that of the points."""
    if target_key is False:
        return None
    if target_key is not None:
        label_file = path.with_name(str(target_key))
        if not label_file.is_file():
            raise ValueError(f"target_key: no file {label_file}")
        return label_file
    file_name = path.name.removesuffix(".gz")
    name = file_name.replace("images", "labels").replace("idx3", "idx1")
    candidates = [path.with_name(name + end) for end in ("", ".gz") if name != file_name]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _read_idx_pair(
    path: Path, target_key: str | int | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, str]:
    """Return points, labels, the images if the file holds any, and sources in words."""
    pixels = read_idx(path)
    if pixels.ndim < 2:
        raise ValueError(
            f"{path}: holds {pixels.dtype} in shape {pixels.shape}, like labels; name the file "
            "of the points"
        )
    label_file = _label_file(path, target_key)
    labels = None if label_file is None else read_idx(label_file)
    if labels is not None and labels.ndim != 1:
        raise ValueError(f"{label_file}: labels must be a vector, got shape {labels.shape}")
    data = as_rows(path, pixels, "the array")
    if labels is not None and len(labels) != len(data):
        raise ValueError(
            f"{path}: the points are {len(data)} rows, but there are {len(labels)} labels in "
            f"{label_file}"
        )
    source = "no labels" if label_file is None else f"labels in file {label_file.name!r}"
    return data, labels, pixels if pixels.ndim == 3 else None, source
