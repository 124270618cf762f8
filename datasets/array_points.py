"""Points and labels among the arrays of a user's own file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, get_index_dtype, issparse

from .files import image_rows
from .labels import TARGET_NAMES, is_vector, pick_labels

Values = Any  # an ndarray or csr_array
Arrays = dict[str, Values]  # by name, those of a group as group/name
_DATA_NAMES = ("X", "x", "data", "fea", "features")
_MOST_BYTES = 2**31  # of a dense copy of sparse points


def choose_arrays(
    path: Path,
    arrays: Arrays,
    data_key: str | None,
    target_key: str | int | None,
    transpose: bool,
    what: str = "array",
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, str]:
    """Choose the arrays of the points and of the labels.

    Returns the points as rows; as images, if the file holds each in two axes or three; the labels;
    and in words, where they were found.
    """
    labelled = target_key is not False
    target_key = str(target_key) if labelled and target_key is not None else None
    data_key = data_key if data_key is None else str(data_key)
    if target_key is not None and target_key not in arrays:
        raise ValueError(
            f"target_key: no {what} {target_key!r} in {path}, which holds {held(arrays)}"
        )
    named = [name for name in arrays if target_key is None and _last(name).lower() in TARGET_NAMES]
    keys = _find_points(path, arrays, data_key, {target_key, *named})
    data, images, note = _read_points(path, arrays, keys, transpose, what)
    other = arrays[keys[0]].shape[0 if transpose else -1]  # as many points if read the other way
    called = " beside ".join(map(repr, keys))
    source = f"points in {what}{'s' * (len(keys) > 1)} {called}{note}, "
    if not labelled:
        return data, images, None, f"{source}no labels"
    if target_key is None:
        named = [name for name in named if name not in keys]
        shape = (data.shape[0], other)
        chosen, why = pick_labels(path, [(name, arrays[name]) for name in named], shape)
        if chosen is None:
            return data, images, None, f"{source}no labels{why}"
        target_key = named[chosen]
    labels = arrays[target_key]
    if not is_vector(labels):
        raise ValueError(
            f"target_key: {what} {target_key!r} must be a vector, but {path} holds {held(arrays)}"
        )
    if labels.size != data.shape[0]:
        read, advice = (
            ("columns", "; as many as rows: leave out transpose=True")
            if transpose
            else ("rows", "; as many as columns: set transpose=True")
        )
        raise ValueError(
            f"{path}, which holds {held(arrays)}: the points are {data.shape[0]} {read}, but there "
            f"are {labels.size} labels{advice * (labels.size == other)}"
        )
    return data, images, labels.ravel(), f"{source}labels in {what} {target_key!r}"


def held(arrays: Arrays) -> str:
    """Return the names and shapes of a file's arrays, in words."""
    return str({name: array.shape for name, array in arrays.items()})


def _last(name: str) -> str:
    """Return the name of an array without that of its group."""
    return name.removesuffix(".npy").rpartition("/")[2]


def _find_points(
    path: Path, arrays: Arrays, data_key: str | None, labels: set[str | None]
) -> list[str]:
    """Return the names of the arrays whose columns are the features."""
    vectors = {name for name in labels if name is not None and is_vector(arrays[name])}

    def members(group: str) -> list[str]:
        return [name for name in arrays if name.startswith(f"{group}/") and name not in vectors]

    if data_key is not None:
        keys = [data_key] if data_key in arrays else members(data_key)
        if not keys:
            raise ValueError(
                f"data_key: no array {data_key!r} in {path}, which holds {held(arrays)}"
            )
        return keys
    for known in _DATA_NAMES:
        keys = [known] if known in arrays else [n for n in arrays if _last(n) == known]
        if keys := keys or members(known):
            return _only(path, arrays, keys)
    keys = [name for name, array in arrays.items() if array.ndim > 1 and name not in vectors]
    return _only(path, arrays, [name for name in keys if 1 not in arrays[name].shape] or keys)


def _only(path: Path, arrays: Arrays, keys: list[str]) -> list[str]:
    if len(keys) == 1:
        return keys
    group, *others = {key.rpartition("/")[0] for key in keys} or {""}
    views = f"; data_key={group} takes all of {group} side by side" if group and not others else ""
    raise ValueError(
        f"data_key: name the array of the points in {path}, which holds {held(arrays)}; without "
        f"data_key, the names {', '.join(_DATA_NAMES)} are tried{views}"
    )


def _read_points(
    path: Path, arrays: Arrays, keys: list[str], transpose: bool, what: str
) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Return the points as rows, also as images if each has several axes, and notes in words."""
    views = [_move_points_first(arrays[key], transpose) for key in keys]
    counts = [view.shape[0] for view in views]
    if len(set(counts)) > 1:
        advice = "leave out transpose=True" if transpose else "set transpose=True"
        same = len({view.shape[-1] for view in views}) == 1
        raise ValueError(
            f"data_key: {path}: {', '.join(keys)} hold {', '.join(map(str, counts))} points; to be "
            f"taken side by side they must hold as many{f': {advice}' * same}"
        )
    alone = len(keys) == 1
    rows = [
        as_rows(path, view, f"{what} {key!r}", keep_large=alone)
        for key, view in zip(keys, views, strict=True)
    ]
    data = rows[0] if len(rows) == 1 else np.hstack(rows)
    if len(rows) > 1:
        return data, None, " side by side"
    if issparse(views[0]):
        how = "kept so" if issparse(data) else "made dense"
        return data, None, f" (sparse, {views[0].nnz / math.prod(data.shape):.2%} stored, {how})"
    if views[0].ndim == 2:
        return data, None, ""
    return data, views[0], f", each of shape {' x '.join(map(str, views[0].shape[1:]))}"


def _move_points_first(values: Values, transpose: bool) -> Values:
    if not transpose:
        return values
    return csr_array(values.T) if issparse(values) else np.moveaxis(values, -1, 0)


def as_rows(path: Path | str, values: Values, what: str, *, keep_large: bool = False) -> Values:
    """Return points of finite numbers as rows of float32, or else of float64.

    Sparse points become dense. With `keep_large` they stay a csr_array if that takes over 2 GiB.
    """
    if values.ndim not in (2, 3, 4) or values.dtype.kind not in "biuf" or 0 in values.shape:
        raise ValueError(
            f"{path}: {what} must hold numbers in shape (n_samples, n_features), or as many images "
            f"in shape (n_samples, height, width), got {values.dtype} in shape {values.shape}"
        )
    if issparse(values):
        n_bytes = 8 * math.prod(values.shape)
        if n_bytes > _MOST_BYTES and keep_large:
            return _as_sparse_rows(path, values, what)
        if n_bytes > _MOST_BYTES:
            raise ValueError(
                f"{path}: {what} is sparse, and would take {n_bytes / 2**30:.0f} GiB as a dense "
                "array. Reduce its features first, as TruncatedSVD of scikit-learn does"
            )
        values = values.toarray()
    single = values.dtype == np.float32
    data = np.ascontiguousarray(image_rows(values), dtype=np.float32 if single else np.float64)
    for row, column in np.argwhere(~np.isfinite(data))[:1]:
        raise _not_finite(path, what, row, column)
    return data


def _as_sparse_rows(path: Path | str, values: Values, what: str) -> csr_array:
    rows = csr_array(values, dtype=np.float32 if values.dtype == np.float32 else np.float64)
    rows.sum_duplicates()
    kind = get_index_dtype(maxval=max(rows.nnz, *rows.shape))  # scikit-learn takes 32 bits
    parts = rows.data, rows.indices.astype(kind), rows.indptr.astype(kind)
    rows = csr_array(parts, shape=rows.shape)
    for place in np.flatnonzero(~np.isfinite(rows.data))[:1]:
        row = int(np.searchsorted(rows.indptr, place, side="right")) - 1
        raise _not_finite(path, what, row, int(rows.indices[place]))
    return rows


def _not_finite(path: Path | str, what: str, row: int, column: int) -> ValueError:
    return ValueError(
        f"{path}: {what} holds NaN or infinite values, first in row {row}, column {column}"
    )
