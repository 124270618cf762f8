"""Coefficients and affinities that were drawn, with the points behind them, as a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from ...datasets.files import naming, whole_file
from ...solvers.inputs import Array
from .problems import Problem

MOST_ENTRIES, MOST_VALUES = 40_000, 1_000_000  # kept of a matrix, and of all points together
KINDS = "coefficients", "affinity"


@dataclass(frozen=True, eq=False)
class Matrix:
    """The largest of the `n_entries` entries of a matrix that are not zero, by their places."""

    name: str
    rows: Array
    columns: Array
    values: Array
    n_entries: int


@dataclass(frozen=True, eq=False)
class DrawnMatrices:
    """Matrices of one set of points, which are sorted by label; `word` is class or cluster.

    `numbers` are those of the points in the whole data set, from 0. `points` are rows or images;
    None if they are too large to keep.
    """

    title: str
    word: str
    numbers: Array
    labels: Array
    points: Array | None
    matrices: tuple[Matrix, ...]


def write_matrices(
    matrices: Mapping[str, tuple[Any, Any]],
    labels: Array,
    problem: Problem,
    *,
    title: str,
    word: str,
    path: Path,
) -> None:
    """Write the largest entries of coefficients and affinities, and the points as they were."""
    order = np.argsort(labels, kind="stable")
    arrays = {"title": np.array(title), "word": np.array(word)}
    arrays |= {"numbers": problem.rows[order], "labels": labels[order]}
    points = problem.X if problem.images is None else problem.images
    if math.prod(points.shape) <= MOST_VALUES:
        arrays["points"] = np.asarray(points)[order].astype(np.float32)
    named = {
        f"{name}\n{kind}": matrix
        for name, both in matrices.items()
        for kind, matrix in zip(KINDS, both, strict=True)
    }
    for number, (name, matrix) in enumerate(named.items()):
        found = coo_array(matrix[np.ix_(order, order)])
        largest = np.argsort(-np.abs(found.data), kind="stable")[:MOST_ENTRIES]
        parts = {
            "name": np.array(name),
            "rows": found.row[largest].astype(np.uint16),
            "columns": found.col[largest].astype(np.uint16),
            "values": found.data[largest].astype(np.float32),
            "n_entries": np.array(found.nnz),
        }
        arrays |= {f"{number}/{part}": array for part, array in parts.items()}
    with whole_file(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_matrices(path: Path) -> DrawnMatrices:
    """Read what `write_matrices` wrote.

    Raises
    ------
    ValueError
        If the file is damaged; the message names it.
    """
    with naming(path, "file of matrices of twinsolve cluster"), np.load(path) as kept:
        numbers = sorted({int(name.partition("/")[0]) for name in kept.files if "/" in name})
        return DrawnMatrices(
            str(kept["title"]),
            str(kept["word"]),
            kept["numbers"],
            kept["labels"],
            kept["points"] if "points" in kept.files else None,
            tuple(
                Matrix(
                    str(kept[f"{i}/name"]),
                    kept[f"{i}/rows"],
                    kept[f"{i}/columns"],
                    kept[f"{i}/values"],
                    int(kept[f"{i}/n_entries"]),
                )
                for i in numbers
            ),
        )
