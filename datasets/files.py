"""Read and write data files: errors name the file, nothing is executed, no file is half written."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from time import time
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_STARTED = time()


class Unsupported(ValueError):
    """A file is whole, but of a kind that is not read."""


@contextmanager
def naming(place: Path | str, kind: str) -> Iterator[None]:
    """Turn what a parser raises on a damaged file into a ValueError that names the file.

    `Unsupported` keeps its reason: such a file is not damaged.
    """
    try:
        yield
    except Unsupported as error:
        raise Unsupported(f"{place}: {error}") from error
    except (ImportError, MemoryError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # parsers raise nearly anything on damaged bytes
        raise ValueError(f"{place}: truncated, corrupted or no {kind} file ({error})") from error


class NotWritten(OSError):
    """A file cannot be written."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only when all of it is on disk.

    Missing folders are made. Several writers do not disturb each other; one that fails leaves no
    file.

    Raises
    ------
    NotWritten
        If the file cannot be written: names it, or the file that lies where its folder should be.
    """
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        try:
            with open(unfinished, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        place = Path(error.filename or unfinished)
        if place not in (unfinished, *unfinished.parents):
            raise
        obstacle = next(filter(Path.is_file, path.parents), path)
        raise NotWritten(error.errno, error.strerror, str(obstacle)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that gets its name only when all of it is on disk."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@cache
def remove_leftovers(folder: Path) -> None:
    """Remove, once, the ``.part`` files of killed processes: those older than this process."""
    for part in folder.glob("*.part"):
        with suppress(OSError):
            if part.stat().st_mtime < _STARTED:
                rmtree(part) if part.is_dir() else part.unlink()


def is_hdf5(path: Path) -> bool:
    """Whether HDF5 content starts at byte 0 or, as in MATLAB 7.3, at byte 512."""
    with open(path, "rb") as file:
        start = file.read(520)
    return start[:8] == _HDF5_MAGIC or start[512:] == _HDF5_MAGIC


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading; what h5py raises on a damaged one names the file."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: HDF5 needs h5py: pip install 'twinsolve[bench]'") from error
    with naming(path, "HDF5"), h5py.File(path, "r") as file:
        yield file


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of numbers and strings by name; an array in a group is called group/name."""
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            return
        if item.dtype.kind in "biuf":
            arrays[name] = np.asarray(item[()])
        elif h5py.check_string_dtype(item.dtype):
            arrays[name] = np.asarray(item.asstr()[()], dtype=str)

    with open_hdf5(path) as file:
        import h5py

        file.visititems(keep)
    return arrays


def picture_reader() -> Callable[[Any, Path | str, str], np.ndarray]:
    """Return ``read(source, place, mode)``, which decodes a picture in a mode of pillow.

    `source` is a path or an open file; errors call it `place`.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures need pillow: pip install 'twinsolve[bench]'") from error

    def read(source: Any, place: Path | str, mode: str) -> np.ndarray:
        with naming(place, "picture"), Image.open(source) as picture:
            return np.asarray(picture.convert(mode))

    return read


def whole_labels(values: np.ndarray, place: Path | str) -> np.ndarray:
    """Return labels counted from 0, after a check that they are whole numbers."""
    labels = np.asarray(values).ravel()
    numbers = labels.dtype.kind in "biuf" and labels.size and np.isfinite(labels).all()
    if not numbers or (labels != np.rint(labels)).any():
        raise ValueError(f"{place}: labels must be whole numbers, got {labels[:10].tolist()}")
    return labels.astype(np.int64) - int(labels.min())


def image_rows(images: np.ndarray) -> np.ndarray:
    """Return each image as a row."""
    return images.reshape(len(images), -1)
