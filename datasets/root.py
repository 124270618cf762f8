"""Where data sets lie on disk."""

import os
from collections.abc import Sequence
from pathlib import Path


def data_root(data_home: str | os.PathLike[str] | None = None) -> Path:
    """Folder of the data sets: `data_home`, else $TWINSOLVE_DATA, else the user's cache folder.

    Raises
    ------
    TypeError
        If `data_home` is not a path.
    """
    if data_home is not None and not isinstance(data_home, str | os.PathLike):
        raise TypeError(f"data_home: must be the path of a folder or None, got {data_home!r}")
    if named := data_home or os.environ.get("TWINSOLVE_DATA"):
        return Path(named)
    return cache_folder()


def cache_folder() -> Path:
    """The user's cache folder, ``$XDG_CACHE_HOME/twinsolve`` or ``~/.cache/twinsolve``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinsolve"


def data_file(name: str, data_home: str | os.PathLike[str] | None, source: str) -> Path:
    """Return the path of an existing file below the data root.

    Raises
    ------
    FileNotFoundError
        If the file does not exist; the message names it, the folder and the data set's source.
    """
    return first_data_file((name,), data_home, source)


def first_data_file(
    names: Sequence[str], data_home: str | os.PathLike[str] | None, source: str
) -> Path:
    """Return the path of the first of `names` that exists below the data root.

    Raises
    ------
    FileNotFoundError
        If none exists; the message names them, the folder and the data set's source.
    """
    root = data_root(data_home)
    for name in names:
        if (root / name).exists():
            return root / name
    raise missing(" or ".join(names), data_home, source)


def missing(name: str, data_home: str | os.PathLike[str] | None, source: str) -> FileNotFoundError:
    """Return the error for a file that is not below the data root."""
    return FileNotFoundError(
        f"{name} is not in {data_root(data_home)}. Put it there, or name the folder that has it "
        f"with data_home= or the environment variable TWINSOLVE_DATA. Source: {source}."
    )
