"""MATLAB files of any version: matrices, also sparse, cells and structs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatlabFunction, MatlabOpaque
from scipy.sparse import csc_array, csr_array, issparse

from .files import is_hdf5, naming, open_hdf5


def read_mat(path: Path) -> dict[str, Any]:
    """Read the arrays of a MATLAB file by name; sparse matrices are csr_arrays.

    A field of a struct is called struct/field, and an entry of a cell cell/number, counted from 1
    as in MATLAB. A cell of words, or of single numbers, is one array. Objects, such as tables and
    function handles, are left out.
    """
    content: dict[str, Any]
    if is_hdf5(path):
        with open_hdf5(path) as file:
            content = {key: _read_item(file, file[key]) for key in file if key[0] != "#"}
    else:
        with naming(path, "MATLAB"):
            raw = loadmat(path)
            content = {key: _plain(raw[key]) for key in raw if not key.startswith("__")}
    return {name: array for key in content for name, array in _flatten(key, content[key])}


def _plain(value: Any) -> Any:
    """Turn structs into dicts, and cells into arrays of plain values; objects become None."""
    if isinstance(value, MatlabOpaque | MatlabFunction):
        return None
    if issparse(value):
        return csr_array(value)
    if value.dtype.names:
        return _cell(
            [{name: _plain(one[name]) for name in value.dtype.names} for one in value.ravel("F")],
            value.shape,
        )
    if value.dtype == object:
        return _cell([_plain(entry) for entry in value.ravel("F")], value.shape, keep=True)
    return value


def _cell(entries: list[Any], shape: tuple[int, ...], *, keep: bool = False) -> Any:
    """Return an array of objects; of a single struct, the struct itself."""
    if len(entries) == 1 and not keep:
        return entries[0]
    cell = np.empty(len(entries), dtype=object)
    cell[:] = entries
    return cell.reshape(shape, order="F")


def _read_item(file: Any, item: Any) -> Any:
    """Read an item of a file of version 7.3 as `_plain` returns it."""
    import h5py

    if "MATLAB_sparse" in item.attrs:
        n_rows, starts = int(item.attrs["MATLAB_sparse"]), item["jc"][()]
        stored = (item["data"][()], item["ir"][()]) if "data" in item else ([], [])
        return csr_array(csc_array((*stored, starts), shape=(n_rows, len(starts) - 1)))
    if isinstance(item, h5py.Group):
        return {name: _read_item(file, item[name]) for name in item}
    if item.shape is None or "MATLAB_object_decode" in item.attrs:
        return None
    is_text = item.attrs.get("MATLAB_class") in (b"char", "char")
    if "MATLAB_empty" in item.attrs:
        return np.empty(item[()].astype(int), dtype="U1" if is_text else np.float64)
    if h5py.check_ref_dtype(item.dtype):
        references = item[()].T
        entries = [_read_item(file, file[one]) for one in references.ravel("F")]
        return _cell(entries, references.shape, keep=True)
    if is_text:
        return np.array(["".join(map(chr, row)) for row in np.atleast_2d(item[()].T)])
    if h5py.check_string_dtype(item.dtype):
        return np.asarray(item.asstr()[()], dtype=str).T
    return item[()].T if item.dtype.kind in "biuf" else None


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a value with their names."""
    if isinstance(value, dict):
        for key, field in value.items():
            yield from _flatten(f"{name}/{key}", field)
    elif issparse(value):
        yield name, value.toarray() if 1 in value.shape else value
    elif value is not None and value.dtype == object:
        entries = value.ravel("F").tolist()
        for is_kind in (_is_word, _is_number):
            if entries and all(map(is_kind, entries)):
                flat = np.array([entry.item() if entry.size else "" for entry in entries])
                yield name, flat.reshape(value.shape, order="F")
                return
        for number, entry in enumerate(entries, start=1):
            yield from _flatten(f"{name}/{number}", entry)
    elif value is not None:
        yield name, value


def _is_word(entry: Any) -> bool:
    return isinstance(entry, np.ndarray) and entry.dtype.kind == "U" and entry.size < 2


def _is_number(entry: Any) -> bool:
    return isinstance(entry, np.ndarray) and entry.dtype.kind in "biuf" and entry.size == 1
