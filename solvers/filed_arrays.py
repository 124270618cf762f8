"""Arrays in files that machines share: written whole or not at all, and mapped for reading."""

from pathlib import Path
from shutil import rmtree
from uuid import uuid4

import numpy as np

from .inputs import Array

_PAGE = 4096  # bytes


def write_arrays(folder: Path, **arrays: Array) -> None:
    """Write arrays to `folder`, which appears when all of them are on disk.

    If another process was first, its arrays stay: both hold the same.
    """
    unfinished = folder.with_name(f"{folder.name}.{uuid4().hex}.part")
    unfinished.mkdir(parents=True)
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array)
        give_name(unfinished, folder)
    finally:
        rmtree(unfinished, ignore_errors=True)


def give_name(unfinished: Path, folder: Path) -> None:
    """Rename a finished folder, unless `folder` is there already."""
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def read_array(path: Path) -> Array:
    """Map an array of a file, read-only: the system reads a part when it is used."""
    is_large = path.stat().st_size > _PAGE  # an empty array cannot be mapped
    array = np.asarray(np.load(path, mmap_mode="r" if is_large else None))
    array.flags.writeable = False
    return array


def read_arrays(folder: Path) -> dict[str, Array]:
    """Map all arrays of a folder, by name."""
    return {path.stem: read_array(path) for path in folder.glob("*.npy")}
