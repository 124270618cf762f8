"""Points and labels in a user's own files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from .files import image_rows, naming, read_hdf5, read_mat
from .idx import read_idx
from .tables import Table, is_number, read_table

_HDF5 = (".h5", ".hdf5")
_KINDS = ".npz, .mat, .csv, .h5 or .hdf5, or bear idx in its name"
_DATA_NAMES = ("X", "x", "data", "fea", "features")
_MOST_NAMED = 8  # columns
_LABEL_KINDS = "biufUS"  # of NumPy: numbers but complex ones, and strings
TARGET_NAMES = ("y", "target", "targets", "label", "labels", "class", "gnd", "gt", "s")
Drop = str | int | Sequence[str | int] | None


def load_points(
    path: str | Path,
    *,
    data_key: str | None = None,
    target_key: str | int | None = None,
    transpose: bool = False,
    drop: Drop = None,
) -> Bunch:
    """Load points, and labels if there are any, from a file.

    The file is a ``.npz``, ``.mat``, ``.csv``, ``.h5`` or ``.hdf5`` file, or an IDX file, plain or
    with the suffix ``.gz``. An IDX file must have ``idx`` in its name; its labels are in another
    IDX file.

    Points are rows; in a MATLAB file, rows as MATLAB shows them. Nothing in a file is executed:
    NumPy archives with pickled objects are refused. HDF5 and MATLAB files of version 7.3 need h5py.
    The first line of a ``.csv`` file is its header if none of its fields is a number, if one of
    them is `target_key` or in `drop`, or if its first column is one of row numbers. Such a column,
    as pandas and R write it, is no feature: it has no name, or is called ``Unnamed: 0``, and holds
    0 to n - 1 or 1 to n.

    Parameters
    ----------
    path : str or Path
    data_key : str, optional
        Name of the array with the points in ``.npz``, ``.mat`` and HDF5 files; an array in a group
        is called group/name. None takes the array named X, x, data, fea or features, else the only
        matrix.
    target_key : str or int, optional
        Where the labels are: the name of an array; the name or number of a column of a ``.csv``
        file (-1 is the last); or the name of an IDX file in the same folder. None takes the array
        or column named y, target, targets, label, labels, class, gnd, gt or s, in capitals or not,
        that holds a word or a whole number for each point; or the IDX file named like that of the
        points with labels for images and idx1 for idx3. If there is none, or with False, the
        points have no labels. A column y of whole numbers beside a column x of whole numbers may be
        a coordinate: it must be named.
    transpose : bool, default=False
        Whether the columns of the array are the points.
    drop : str, int or list of these, optional
        Names or numbers of columns of a ``.csv`` file to leave out, such as identifiers. None
        leaves out row numbers alone; an empty list keeps these too.

    Returns
    -------
    Bunch
        ``data``: ndarray of shape (n_samples, n_features), float32 if the array in the file is,
        else float64; ``target``: labels counted from 0, or None; ``target_names``: the different
        labels in the file, sorted, or None (``target_names[target]`` are the labels of the
        points); ``feature_names``: the header of a ``.csv`` file for the features, or None;
        ``found``: where points and labels were found, in words, with what bears a name of labels
        and is none, what was left out, and features that may number the points; ``DESCR``: path of
        the file, what was found and all it holds; ``images``, only for IDX files of images: ndarray
        of shape (n_samples, height, width), whose pixels ``data`` holds in row-major order.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or of another kind, a key is not in it, several arrays or columns
        could be the labels, or none surely is, or the arrays have shapes that do not fit or entries
        that are not finite; the message says what the file holds.
    ImportError
        If the file needs h5py and it is not installed.

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
    holds, feature_names = "", None
    images: dict[str, np.ndarray] = {}
    if path.suffix == ".csv":
        if data_key is not None:
            raise ValueError("data_key: a .csv file holds a single table; leave data_key out")
        data, labels, feature_names, summary = _read_csv(path, target_key, drop)
    elif path.suffix in _READ:
        arrays = _READ[path.suffix](path)
        holds = f", which holds {_held(arrays)}"
        data, labels, summary = _choose(path, arrays, data_key, target_key, transpose)
    elif "idx" in path.name:
        if data_key is not None:
            raise ValueError("data_key: an IDX file holds a single array; leave data_key out")
        data, labels, images, summary = _read_idx_pair(path, target_key)
    else:
        raise ValueError(f"path: must end in {_KINDS}, got {path}")
    if transpose and path.suffix not in _READ:
        raise ValueError(f"transpose: must be False for {path}, whose points are rows")
    if drop is not None and path.suffix != ".csv":
        raise ValueError(f"drop: must be None for {path}, which is no .csv file")
    target_names = target = None
    if labels is not None:
        if len(labels) != len(data):
            read, other = ("columns", "rows") if transpose else ("rows", "columns")
            advice = f"; as many as {other}: " + (
                "leave out transpose=True" if transpose else "set transpose=True"
            )
            raise ValueError(
                f"{path}{holds}: the points are {len(data)} {read}, but there are {len(labels)} "
                f"labels{advice * (len(labels) == data.shape[1])}"
            )
        if labels.dtype.kind not in _LABEL_KINDS:
            raise ValueError(f"{path}: labels must be numbers or strings, got {labels.dtype}")
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError(f"{path}: holds NaN or infinite labels")
        target_names, target = np.unique(labels, return_inverse=True)
    return Bunch(
        data=data,
        target=target,
        target_names=target_names,
        feature_names=feature_names,
        found=summary,
        DESCR=f"Points of {path}{holds}: {summary}",
        **images,
    )


def point_files(path: str | Path, target_key: str | int | None = None) -> list[Path]:
    """Return the files that `load_points` reads: that of the points, and of the labels if any."""
    path = Path(path)
    if "idx" not in path.name or path.suffix in (*_READ, ".csv"):
        return [path]
    return [path, *filter(None, [_label_file(path, target_key)])]


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
) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray], str]:
    """Return points, labels, a dict of the images if the file holds any, and sources in words."""
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
    data = _numbers(path, image_rows(pixels) if len(pixels) else pixels, "the array")
    images = {"images": pixels} if pixels.ndim == 3 else {}
    source = "no labels" if label_file is None else f"labels in file {label_file.name!r}"
    return data, labels, images, source


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with naming(path, "NumPy archive"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        return {name: archive[name] for name in archive.files}


def _choose(
    path: Path,
    arrays: dict[str, np.ndarray],
    data_key: str | None,
    target_key: str | int | None,
    transpose: bool,
) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Choose the arrays of the points and of the labels; say in words which."""
    contents = _held(arrays)
    labelled = target_key is not False
    data_key = data_key if data_key is None else str(data_key)
    target_key = str(target_key) if labelled and target_key is not None else None
    for key, value in (("data_key", data_key), ("target_key", target_key)):
        if value is not None and value not in arrays:
            raise ValueError(f"{key}: no array {value!r} in {path}, which holds {contents}")
    named = [name for name in arrays if target_key is None and name.lower() in TARGET_NAMES]
    if data_key is None:
        data_key = next((name for name in _DATA_NAMES if name in arrays), None)
    if data_key is None:
        labels = {target_key, *(name for name in named if _is_vector(arrays[name]))}
        matrices = [name for name, a in arrays.items() if a.ndim == 2 and name not in labels]
        matrices = [name for name in matrices if 1 not in arrays[name].shape] or matrices
        if len(matrices) != 1:
            known = ", ".join(_DATA_NAMES)
            raise ValueError(
                f"data_key: name the array of the points in {path}, which holds {contents}; "
                f"without data_key, the names {known} are tried"
            )
        (data_key,) = matrices
    data = _numbers(
        path, arrays[data_key].T if transpose else arrays[data_key], f"array {data_key!r}"
    )
    source, why = f"points in array {data_key!r}, ", ""
    if not labelled:
        return data, None, f"{source}no labels"
    if target_key is None:
        named = [name for name in named if name != data_key]
        chosen, why = _pick_labels(path, [(name, arrays[name]) for name in named], data.shape)
        if chosen is None:
            return data, None, f"{source}no labels{why}"
        target_key = named[chosen]
    if not _is_vector(arrays[target_key]):
        raise ValueError(
            f"target_key: array {target_key!r} must be a vector, but {path} holds {contents}"
        )
    return data, arrays[target_key].ravel(), f"{source}labels in array {target_key!r}"


def _pick_labels(
    path: Path, named: list[tuple[str, np.ndarray]], shape: tuple[int, ...]
) -> tuple[int | None, str]:
    """Return the number of the only array that can hold the labels, or None and why, in words.

    `shape` is that of the points. As many labels as features count too, but last: the caller then
    advises to transpose.
    """
    why = [_why_no_labels(values, shape) for _, values in named]
    candidates = [number for number, reason in enumerate(why) if not reason]
    candidates = [
        number for number in candidates if named[number][1].size == shape[0]
    ] or candidates
    if len(candidates) > 1:
        words = " or ".join(f"target_key={named[number][0]}" for number in candidates)
        raise ValueError(f"target_key: {path} holds several that could be the labels; say {words}")
    reasons = (f"{name!r} {reason}" for (name, _), reason in zip(named, why, strict=True))
    return (
        (candidates[0], "") if candidates else (None, f" ({'; '.join(reasons)})" if named else "")
    )


def _why_no_labels(values: np.ndarray, shape: tuple[int, ...]) -> str:
    """Return why an array cannot hold one label for each point, or an empty string."""
    if not _is_vector(values):
        return f"is no vector but of shape {values.shape}"
    if values.size not in shape:
        return f"has {values.size} entries for {shape[0]} points"
    if values.dtype.kind not in _LABEL_KINDS:
        return f"holds {values.dtype}"
    finite = values.dtype.kind == "f" and np.isfinite(values).all()
    return "holds other than whole numbers" if finite and (values != np.rint(values)).any() else ""


def _is_vector(values: np.ndarray) -> bool:
    return max(values.shape, default=0) == values.size


def _held(arrays: dict[str, np.ndarray]) -> str:
    """Return the names and shapes of a file's arrays, in words."""
    return str({name: array.shape for name, array in arrays.items()})


def _numbers(path: Path, values: np.ndarray, what: str) -> np.ndarray:
    """Return a matrix of finite numbers as float32, or else as float64."""
    if values.ndim != 2 or values.dtype.kind not in "biuf" or not values.size:
        raise ValueError(
            f"{path}: {what} must hold numbers in shape (n_samples, n_features), got "
            f"{values.dtype} in shape {values.shape}"
        )
    data = np.ascontiguousarray(
        values, dtype=np.float32 if values.dtype == np.float32 else np.float64
    )
    if not np.isfinite(data).all():
        row = int(np.nonzero(~np.isfinite(data).all(axis=1))[0][0])
        raise ValueError(f"{path}: {what} holds NaN or infinite values, first in row {row}")
    return data


def _read_csv(
    path: Path, target_key: str | int | None, drop: Drop
) -> tuple[np.ndarray, np.ndarray | None, list[str] | None, str]:
    """Return points, labels, names of the features, and sources in words."""
    left_out = [drop] if isinstance(drop, str | int) else list(drop or [])
    keys = [] if target_key is None or target_key is False else [target_key]
    table = read_table(path, [*keys, *left_out])
    dropped = [table.find_column(key, "drop") for key in left_out]
    column, labelled = _label_column(table, target_key, dropped)
    if column in dropped:
        raise ValueError(f"drop: column {table.call(column)} of {path} holds the labels")
    numbering = [] if drop is not None and not left_out else table.find_row_numbers()
    numbering = [number for number in numbering if number not in (*dropped, column)]
    excluded = (*dropped, *numbering, column)
    kept = [number for number in range(table.width) if number not in excluded]
    data = _numbers(path, _read_numbers(table, kept), "the table")
    notes = [f"points in {_say_columns(table, kept)}, {labelled}"]
    notes += [f"column {table.call(n)} left out, as it numbers the rows" for n in numbering]
    notes += [f"column {table.call(n)} left out by drop" for n in dropped]
    notes += [
        f"column {table.call(n)} may number the points: drop={table.call(n)} leaves it out"
        for n in table.like_identifiers(kept, data)
    ]
    names = table.header and [table.header[number] for number in kept]
    labels = None if column is None else table.read_column(column)
    return data, labels, names, "; ".join(notes)


def _read_numbers(table: Table, columns: list[int]) -> np.ndarray:
    """Return the entries of these columns as float64."""
    for line, row in zip(table.lines, table.rows, strict=True):
        for number in columns:
            if not is_number(row[number]):
                raise ValueError(
                    f"{table.path}: line {line}: {row[number]!r} is not a number; "
                    f"drop={table.call(number)} leaves its column out"
                )
    return np.array([[row[number] for number in columns] for row in table.rows], dtype=np.float64)


def _say_columns(table: Table, columns: list[int]) -> str:
    """Return the columns in words: the first ones and the last if there are many."""
    called = [table.call(column) for column in columns]
    if len(called) > _MOST_NAMED:
        called = [*called[: _MOST_NAMED - 2], "...", called[-1]]
    return f"{len(columns)} column{'s' * (len(columns) > 1)} ({', '.join(called)})"


def _label_column(
    table: Table, target_key: str | int | None, dropped: list[int]
) -> tuple[int | None, str]:
    """Return the number of the column of labels, and where it was found, in words.

    Raises
    ------
    ValueError
        If there is no such column, or without `target_key` several could be it, or its only name
        may be that of a coordinate.
    """
    if target_key is False:
        return None, "no labels"
    if target_key is not None:
        column = table.find_column(target_key, "target_key")
        return column, f"labels in column {table.call(column)}"
    if table.header is None:
        return None, "no labels (no header; target_key=-1 takes the last column for labels)"
    names = [name.lower() for name in table.names]
    columns = [i for i, name in enumerate(names) if name in TARGET_NAMES and i not in dropped]
    named = [(table.names[i], table.read_column(i)) for i in columns]
    chosen, why = _pick_labels(table.path, named, (len(table.rows),))
    if chosen is None:
        return None, f"no labels{why}"
    name, values = named[chosen]
    beside = [i for i, other in enumerate(names) if other == "x" and i not in dropped]
    all_whole = values.dtype.kind == "i" and all(
        table.read_column(i).dtype.kind == "i" for i in beside
    )
    if name.lower() == "y" and beside and all_whole:
        raise ValueError(
            f"target_key: column {name!r} of {table.path} may hold labels, or a coordinate beside "
            f"{table.names[beside[0]]!r}; say target_key={name} if it holds labels, name the "
            "column that does, or say target_key=False if none does"
        )
    return columns[chosen], f"labels in column {name!r}"


_READ: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npz": _read_npz,
    ".mat": read_mat,
    **dict.fromkeys(_HDF5, read_hdf5),
}
