"""Where data sets lie on disk."""

import os
from pathlib import Path


def data_root(data_home: str | os.PathLike[str] | None = None) -> Path:
    """Folder of the data sets: `data_home`, else $TWINSOLVE_DATA, else the user's cache folder."""
    if named := data_home or os.environ.get("TWINSOLVE_DATA"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinsolve"


def data_file(name: str, data_home: str | os.PathLike[str] | None, source: str) -> Path:
    """Path of an existing file below the data root.

    Raises
    ------
    FileNotFoundError
        If it is not there; the message names the file, the folder and the data set's source.
    """
    path = data_root(data_home) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{name} is not in {data_root(data_home)}. Put it there, or name the folder that has "
            f"it with data_home= or the environment variable TWINSOLVE_DATA. Source: {source}."
        )
    return path
