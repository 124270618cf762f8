"""Points in files that represent each other: a task holds its own rows, and reads the others."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from ..filed_arrays import give_name, read_array, read_arrays, write_arrays
from ..inputs import Array, check_matrix
from ..kernels.cell_rows import CellBlock
from ..kernels.cells import Cells, make_cells, strongest_in_cells
from ..kernels.many_atoms import solve_block
from ..kernels.row_pool import Codes
from ..kernels.slots import Problem, freeze_arrays
from .penalty import Penalty
from .problem import Energies, check_range, largest_by_parts
from .row_blocks import FEWEST_IN_CELLS, Atoms, cells_serve, join_blocks

PenaltyOf = Callable[[Array, Array], Penalty]  # of `lam_max` and of the rows' numbers

_PIECE = 1 << 22  # bytes of points that are read at a time
_MOST_IN_CELLS = 4_000_000  # atoms; whoever sorts them holds several copies
_PROBED = 64  # rows on which it is tried whether cells pay


class Certified(NamedTuple):
    """Codes of a block of rows, their objectives, and their certified gaps."""

    codes: Codes
    objective: Array
    gap: Array


def write_points(X: Any, directory: Path) -> Path:
    """Write points and what solvers derive of them to a folder of that name; return the folder.

    X has a `shape`, and slices of rows that NumPy makes arrays of: an array in memory or in a file,
    or a Dask array. It is read twice, in pieces. The name is a digest of the points.

    Raises
    ------
    ValueError
        If X is not two-dimensional with two rows, or `check_matrix` or `check_range` refuses it.
    """
    n, p = check_shape(X)
    digest, largest = sha256(f"{n} {p}".encode()), 0.0
    unfinished = directory / f"{uuid4().hex}.part"
    unfinished.mkdir(parents=True)
    try:
        rows, lengths = _new_file(unfinished, "rows", (n, p)), np.empty(n)
        for part, piece in _pieces(X, n, p):
            digest.update(piece.tobytes())
            rows[part] = piece
            lengths[part] = np.sqrt(np.einsum("ij,ij->i", piece, piece))
        rows.flush()
        np.save(unfinished / "lengths.npy", lengths)
        largest = float(lengths.max()) or 1.0
        np.save(unfinished / "largest.npy", largest)
        scaled = _new_file(unfinished, "scaled32", (n, p), np.float32)
        for part, piece in _pieces(rows, n, p):
            scaled[part] = piece / largest
        scaled.flush()
        folder = directory / f"points-{digest.hexdigest()[:16]}"
        give_name(unfinished, folder)
    finally:
        rmtree(unfinished, ignore_errors=True)
    return folder


def check_shape(X: Any) -> tuple[int, int]:
    """Return the shape of a matrix of two or more points.

    Raises
    ------
    ValueError
        If X is something else.
    """
    shape = tuple(np.shape(X))
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise ValueError(f"X: must be a matrix of two or more points, got shape {shape}")
    return shape


def _new_file(folder: Path, name: str, shape: tuple[int, int], dtype: Any = np.float64) -> Any:
    return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)


def _pieces(X: Any, n: int, p: int) -> Iterator[tuple[slice, Array]]:
    """Read X in pieces of float64, which are checked."""
    step = max(1, _PIECE // (8 * p))
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        piece = check_matrix(np.asarray(X[part]), "X").astype(np.float64, order="C", copy=False)
        check_range(piece, "X")
        yield part, piece


class FiledAtoms(Atoms):
    """The points that `write_points` wrote, as atoms; they are read when they are needed."""

    def __init__(self, folder: Path, cells: Cells | None = None) -> None:
        self.rows, self.lengths, self.scaled32 = (
            read_array(folder / f"{name}.npy") for name in ("rows", "lengths", "scaled32")
        )
        self.largest = float(np.load(folder / "largest.npy"))
        self._gram, self._cells = np.empty((0, 0)), cells

    def largest_correlations(self, own: Array) -> Array:
        """``max_j |x_i . x_j|`` over j != i of the points `own`."""
        signals = np.array(self.rows[own])
        if self._cells is None:
            return largest_by_parts(signals, self.rows, self.scaled32, own)
        found, looked = np.empty(len(own)), np.empty(len(own), np.int64)
        strongest_in_cells(signals, own, self.rows, self._cells, found, looked)
        unsure = np.flatnonzero(found == 0)
        if unsure.size:
            some = signals[unsure], self.rows, self.scaled32, own[unsure]
            found[unsure] = largest_by_parts(*some)
        return found

    def problem(self, penalty: Penalty) -> Problem:
        """The Lassos of the points ``penalty.own``, numbered from 0."""
        n, p = len(penalty.lam), self.rows.shape[1]
        own = np.asarray(penalty.own)
        return freeze_arrays(
            Problem(
                signals=np.array(self.rows[own]),
                atoms=self.rows,
                atoms32=np.empty((0, p), np.float32) if self._cells else self.scaled32,
                gram=np.empty((0, 0)),
                half=penalty.half,
                ridge=penalty.ridge,
                own=own,
                hidden=np.empty((0, 0), np.bool_),
                start_at=np.zeros(n + 1, np.int64),
                start_atom=np.empty(0, np.int64),
                start_value=np.empty(0),
                largest=self.largest,
                own_signals=False,
                nonneg=penalty.nonnegative,
            )
        )

    def solve(self, penalty: Penalty, tol: float, max_iter: int) -> Certified:
        """Codes of the points ``penalty.own``; their gaps include the rounding of correlations."""
        problem, n = self.problem(penalty), len(penalty.lam)
        if self._cells is None:
            codes = solve_block(0, n, problem, tol, max_iter)
        else:
            codes = CellBlock(0, n, problem, freeze_arrays(self._cells), tol, max_iter).solve()
        C = coded_rows([codes], len(self.rows))
        energies = Energies.of(problem.signals, C, problem.signals - C @ self.rows, penalty)
        largest = codes.correlation + self.rounding(C, energies.norm)
        gap, _ = energies.gap(penalty.dual_scale(largest))
        return Certified(codes, energies.objective, gap)


def coded_rows(blocks: list[Codes], n_atoms: int) -> csr_array:
    """Codes of successive blocks as the rows of one matrix."""
    return join_blocks(blocks, n_atoms).coef


def read_cells(folder: Path) -> Cells:
    """Map the cells that `write_cells` wrote."""
    return Cells(**read_arrays(folder / "cells"))


def write_cells(folder: Path, penalty_of: PenaltyOf, tol: float, max_iter: int) -> bool:
    """Sort the points of a folder into cells, and write these if searches in them pay.

    That is tried on some rows. Returns whether the cells are there.
    """
    atoms = FiledAtoms(folder)
    n = len(atoms.rows)
    if not FEWEST_IN_CELLS <= n <= _MOST_IN_CELLS or not atoms.lengths.any():
        return False
    if (folder / "cells").is_dir():
        cells = read_cells(folder)
    else:
        with threadpool_limits(1):  # OpenMP's as well
            cells = make_cells(atoms.rows)
    own = np.linspace(0, n - 1, _PROBED).astype(np.int64)
    problem = atoms.problem(penalty_of(2 * atoms.largest_correlations(own), own))
    pays = cells_serve(problem, cells, tol, max_iter)
    if pays:
        write_arrays(folder / "cells", **cells._asdict())
    return pays
