"""Arrays in NumPy's files: archives, and single matrices whose labels lie in a file beside them."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, load_npz

from .files import naming
from .labels import TARGET_NAMES


def read_archive(path: Path) -> dict[str, Any]:
    """Read the arrays of a .npz file by name."""
    with naming(path, "NumPy archive"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        return {name: archive[name] for name in archive.files}


def is_single(path: Path) -> bool:
    """Whether the file is a .npy file, or a sparse matrix as SciPy writes it."""
    if path.suffix != ".npz":
        return path.suffix == ".npy"
    with naming(path, "NumPy archive"), path.open("rb") as file:
        return {"format", "shape", "data"} <= set(np.load(file, allow_pickle=False).files)


def read_single(path: Path, label_files: list[Path]) -> dict[str, Any]:
    """Read the matrix and the labels that may belong to it, by the names of their files."""
    if path.suffix == ".npz":
        with naming(path, "sparse matrix of SciPy"):
            matrix = csr_array(load_npz(path))
    else:
        matrix = read_array(path)
    return {path.name: matrix} | {file.name: read_array(file) for file in label_files}


def files_beside(path: Path, target_key: Any) -> list[Path]:
    """Return the files that may hold the labels of a single matrix.

    Raises
    ------
    ValueError
        If there is no file `target_key`.
    """
    if target_key is False:
        return []
    if target_key is not None:
        file = path.with_name(str(target_key))
        if not file.is_file() or file.suffix != ".npy":
            raise ValueError(f"target_key: no .npy file {file}")
        return [file]
    others = sorted(path.parent.glob("*.npy"))
    return [file for file in others if file.stem.lower() in TARGET_NAMES and file != path]


def read_array(path: Path) -> np.ndarray:
    """Read a .npy file; a damaged one is named, and nothing is executed."""
    with naming(path, "NumPy file"), path.open("rb") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
