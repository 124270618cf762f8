"""Arrays that were decoded from an archive, kept in the user's cache folder."""

import hashlib
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from .files import whole_file
from .root import cache_folder


def load_unpacked(archive: Path, name: str) -> dict[str, np.ndarray] | None:
    """Return the arrays kept of an archive, or None if there are none or it has changed."""
    try:
        with _place(archive, name).open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            arrays = {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # no file, or a broken one
        return None
    stamp = arrays.pop("stamp", None)
    return arrays if np.array_equal(stamp, stamp_of(archive)) else None


def keep_unpacked(
    archive: Path, name: str, arrays: dict[str, np.ndarray], stamp: np.ndarray
) -> None:
    """Keep arrays for `load_unpacked`; do nothing if the cache folder cannot be written."""
    with suppress(OSError), whole_file(_place(archive, name)) as file:
        np.savez(file, allow_pickle=False, stamp=stamp, **arrays)


def stamp_of(archive: Path) -> np.ndarray:
    """Return the size and time of change of an archive; take it before reading the archive."""
    state = archive.stat()
    return np.array([state.st_size, state.st_mtime_ns])


def _place(archive: Path, name: str) -> Path:
    """Return the path at which arrays of an archive are kept."""
    key = hashlib.sha256(str(archive.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "unpacked" / f"{name}-{key}.npz"
