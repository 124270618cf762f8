"""Solve blocks of rows in threads or processes, with progress, resuming from a folder."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from time import time
from typing import Any, NamedTuple
from uuid import uuid4

import joblib
import numpy as np
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from ...validation import check_folder
from ..inputs import Array, narrow
from ..kernels import (
    active_set,
    cell_rows,
    cells,
    compiled,
    many_atoms,
    row_pool,
    selection,
    slots,
    spans,
)
from ..kernels.cell_rows import CellBlock
from ..kernels.cells import Cells, make_cells, strongest_in_cells
from ..kernels.many_atoms import solve_block
from ..kernels.row_pool import Codes
from ..kernels.slots import Problem, freeze_arrays, read_only
from ..kernels.workers import one_blas_thread, spread
from .penalty import Penalty
from .problem import largest_correlations

Progress = Callable[[Iterable[Any], int], Iterable[Any]]

MOST_STORED = 15_000  # atoms whose Gram matrix is stored
FEWEST_IN_CELLS = 25_000  # atoms; with fewer, products cost little more than making the cells
# Blocks depend only on the number of rows: the answer must not depend on the number of workers.
_MOST_ROWS, _FEWEST_ROWS, _BLOCKS = 1024, 128, 8
# Cells are searched if on average they leave at most this share of the atoms to look at.
_LEFT_BY_CELLS = 1 / 20
# Rows on which this is tried; the first few suffice where half of the atoms are left.
_PROBED = (4, 64)
_CELLS = "cells "
_SEAL = sha256().digest_size  # bytes in front of a stored block
_STARTED = time()


class Atoms:
    """A dictionary, with arrays that speed up products with it, for many problems."""

    def __init__(self, dictionary: Array) -> None:
        self.rows = np.ascontiguousarray(dictionary, dtype=np.float64)
        self.lengths = np.sqrt(np.einsum("ij,ij->i", self.rows, self.rows))
        self.largest = float(self.lengths.max()) or 1.0
        self._gram = np.empty((0, 0))
        self._cells: Cells | None = None

    @cached_property
    def scaled32(self) -> Array:
        return (self.rows / self.largest).astype(np.float32)

    def rounding(self, C: csr_array, norm: Array) -> Array:
        """Bound the rounding of correlations with the residuals ``y - c D`` of rows.

        Those with a residual of k atoms, rounded in two orders, differ by at most ``(2 k + p + 4) u
        max_j |d_j| (|y| + sum_j |c_j| |d_j|)``. Here p is the number of features, u half the
        spacing of float64 at 1, and `norm` has ``|y|^2``.
        """
        n_terms = 2 * np.diff(C.indptr) + self.rows.shape[1] + 4
        sizes = np.sqrt(norm) + abs(C) @ self.lengths
        return np.asarray(n_terms * 2.0**-53 * self.largest * sizes)

    def gram(self, n_signals: int) -> Array:
        """Return the Gram matrix if it pays to store it, else an empty matrix."""
        m = len(self.rows)
        if self._gram.size == 0 and m <= MOST_STORED and n_signals >= m // 4:
            with one_blas_thread:  # so that sums have one order
                self._gram = self.rows @ self.rows.T
        return self._gram

    def cells(self, n_signals: int) -> Cells | None:
        """Return the cells of the atoms, or None if they cannot pay."""
        m = len(self.rows)
        enough = m >= FEWEST_IN_CELLS and n_signals >= m // 4 and self.lengths.any()
        if self._cells is None and enough:
            with threadpool_limits(1):  # OpenMP's as well
                self._cells = make_cells(self.rows)
        return self._cells


def largest_of_rows(Y: Array, atoms: Atoms, own_atom: Array, n_jobs: int | None) -> Array:
    """`largest_correlations` of the rows of Y, by searches in the cells of the atoms if it pays."""
    n, m = len(Y), len(atoms.rows)
    cells = atoms.cells(n)
    if cells is None:
        return largest_correlations(Y, atoms.rows, own_atom)
    found, looked = np.empty(n), np.empty(n, np.int64)
    some = np.linspace(0, n - 1, min(n, _PROBED[-1])).astype(np.int64)
    probed = slice(len(some))
    strongest_in_cells(Y[some], own_atom[some], atoms.rows, cells, found[probed], looked[probed])
    if looked[probed].mean() > _LEFT_BY_CELLS * m:
        return largest_correlations(Y, atoms.rows, own_atom)
    blocks = [slice(*bounds) for bounds in row_bounds(n)]
    tasks = [(Y[b], own_atom[b], atoms.rows, cells, found[b], looked[b]) for b in blocks]
    with one_blas_thread:
        list(spread(strongest_in_cells, tasks, n_jobs, shared=True))
    unsure = np.flatnonzero(found == 0)
    if unsure.size:
        found[unsure] = largest_correlations(Y[unsure], atoms.rows, own_atom[unsure])
    return found


class Rows(NamedTuple):
    """Codes of many rows, with counts and the bounds that certify them."""

    coef: csr_array
    n_iter: Array  # steps of the active set
    n_passes: Array  # products with all atoms, or searches in their cells
    n_looked: Array  # atoms that these looked at
    correlation: Array  # an upper bound on max_j |q_j|, at least lam r / 2


def solve_rows(
    Y: Array,
    atoms: Atoms,
    penalty: Penalty,
    *,
    tol: float,
    max_rounds: int,
    start: csr_array | None = None,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    directory: str | Path | None = None,
) -> Rows:
    """Codes of the rows of Y in the atoms.

    The search begins at the codes `start`. `progress` wraps the iteration over the blocks. Finished
    blocks are stored in `directory`. A stored block is read if it is undamaged and belongs to the
    same rows, problem, start, options and source code of this solver; otherwise its rows are solved
    again.
    """
    Y = np.ascontiguousarray(Y, dtype=np.float64)
    n, m = len(Y), len(atoms.rows)
    start = csr_array((n, m)) if start is None else start
    own_atom = np.full(n, -1) if penalty.own is None else penalty.own
    arrays: dict[str, Any] = {
        "signals": Y,
        "atoms": atoms.rows,
        "atoms32": np.empty((0, atoms.rows.shape[1]), np.float32),
        "gram": atoms.gram(n),
        "half": penalty.half,
        "ridge": penalty.ridge,
        "own": own_atom,
        "hidden": np.empty((0, 0), np.bool_) if penalty.hidden is None else penalty.hidden,
        "start_at": start.indptr.astype(np.int64),
        "start_atom": start.indices.astype(np.int64),
        "start_value": start.data,
    }
    options: dict[str, Any] = {
        "largest": atoms.largest,
        "own_signals": penalty.own is not None and Y is atoms.rows,
        "nonneg": penalty.nonnegative,
    }
    cells = atoms.cells(n) if penalty.hidden is None else None
    if cells is not None and cells_serve(Problem(**options, **arrays), cells, tol, max_rounds):
        arrays |= {_CELLS + name: array for name, array in cells._asdict().items()}
    else:
        arrays["atoms32"] = atoms.scaled32
    bounds = row_bounds(n)
    folder = check_folder(directory, "directory")
    if folder is not None:
        folder /= _name_solve(arrays, options, tol, max_rounds, bounds)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
    codes_by_rows = {rows: codes for rows in bounds if (codes := _read_block(folder, rows))}
    tasks = [
        (rows, tol, max_rounds, options, tuple(arrays), *arrays.values())
        for rows in bounds
        if rows not in codes_by_rows
    ]

    def finish() -> Iterator[tuple[tuple[int, int], Codes]]:
        yield from list(codes_by_rows.items())
        for rows, codes in spread(_solve_rows_of, tasks, n_jobs, in_order=False):
            _write_block(folder, rows, codes)
            yield rows, codes

    with one_blas_thread:
        finished = progress(finish(), len(bounds)) if progress else finish()
        codes_by_rows.update(finished)
    if missing := len(bounds) - len(codes_by_rows):
        raise ValueError(
            f"progress: must yield every block it is given, {missing} of {len(bounds)} are lost"
        )
    return join_blocks([codes_by_rows[rows] for rows in bounds], m)


def row_bounds(n: int) -> list[tuple[int, int]]:
    """Return the first row of each block, and the row after its last row."""
    n_blocks = max(-(-n // _MOST_ROWS), min(n // _FEWEST_ROWS, _BLOCKS), 1)
    edges = [n * block // n_blocks for block in range(n_blocks + 1)]
    return list(pairwise(edges))


def _solve_rows_of(
    rows: tuple[int, int],
    tol: float,
    max_rounds: int,
    options: dict[str, Any],
    names: tuple[str, ...],
    *arrays: Array,
) -> tuple[tuple[int, int], Codes]:
    """Solve one block. Arrays are separate arguments, so that backends share them among tasks."""
    fields: dict[str, Any] = dict(zip(names, map(read_only, arrays), strict=True))
    problem = Problem(**options, **{name: fields[name] for name in fields if _CELLS not in name})
    if len(fields) + len(options) == len(problem):
        return rows, solve_block(*rows, problem, tol, max_rounds)
    cells = Cells(**{name: fields[_CELLS + name] for name in Cells._fields})
    return rows, CellBlock(*rows, problem, cells, tol, max_rounds).solve()


def cells_serve(problem: Problem, cells: Cells, tol: float, max_rounds: int) -> bool:
    """Whether searches in cells look at few of the atoms, by a trial on some rows."""
    n, m = len(problem.signals), len(problem.atoms)
    few, many = _PROBED
    for n_probed, max_share in ((few, max(_LEFT_BY_CELLS, 1 / 2)), (many, _LEFT_BY_CELLS)):
        some = np.linspace(0, n - 1, min(n, n_probed)).astype(np.int64)
        probe = problem._replace(
            signals=problem.signals[some],
            half=problem.half[some],
            ridge=problem.ridge[some],
            own=problem.own[some],
            start_at=np.zeros(len(some) + 1, np.int64),
            own_signals=False,
        )
        block = CellBlock(0, len(some), freeze_arrays(probe), freeze_arrays(cells), tol, max_rounds)
        codes = block.solve()
        if codes.n_looked.sum() > max_share * m * codes.n_passes.sum():
            return False
    return True


def _name_solve(arrays: dict[str, Array], *rule: Any) -> str:
    """Return a hash of all that a solve's blocks depend on, including the source code."""
    derived = ("atoms32", "gram", *(_CELLS + name for name in Cells._fields))
    inputs = {name: array for name, array in arrays.items() if name not in derived}
    choices = arrays["gram"].size > 0, derived[-1] in arrays
    return str(joblib.hash((inputs, choices, rule, hash_code())))


@cache
def hash_code() -> str:
    """Return a hash of the source of the kernels."""
    modules = (
        compiled, active_set, cell_rows, cells, many_atoms, row_pool, selection, slots, spans,
    )  # fmt: skip
    files = [Path(str(module.__file__)) for module in modules]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _seal_block(folder: Path, rows: tuple[int, int], block: bytes) -> bytes:
    """Return a digest of a block, its rows and its solve."""
    return sha256(f"{folder.name} {rows} ".encode() + block).digest()


def _read_block(folder: Path | None, rows: tuple[int, int]) -> Codes | None:
    """Read a stored block; None if it is missing, damaged, or not of these rows and this solve."""
    if folder is None or not (path := folder / f"{rows[0]}.block").is_file():
        return None
    content = path.read_bytes()
    seal, block = content[:_SEAL], content[_SEAL:]
    if seal != _seal_block(folder, rows, block):
        return None
    with np.load(BytesIO(block)) as arrays:
        return Codes(**arrays)


def _remove_leftovers(folder: Path) -> None:
    """Remove unfinished files older than this process: newer ones may still be written."""
    for part in folder.glob("*.part"):
        with suppress(FileNotFoundError):
            if part.stat().st_mtime < _STARTED:
                part.unlink()


def _write_block(folder: Path | None, rows: tuple[int, int], codes: Codes) -> None:
    """Write a block whole or not at all; a crash may leave a file of another name."""
    if folder is None:
        return
    buffer = BytesIO()
    np.savez(buffer, **codes._asdict())
    block = buffer.getvalue()
    unfinished = folder / f"{rows[0]}.{uuid4().hex}.part"
    try:
        unfinished.write_bytes(_seal_block(folder, rows, block) + block)
        unfinished.replace(folder / f"{rows[0]}.block")
    finally:
        unfinished.unlink(missing_ok=True)


def join_blocks(blocks: list[Codes], m: int) -> Rows:
    """Join the codes of blocks to those of all rows."""
    joined = Codes(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
    indptr = np.concatenate([[0], np.cumsum(joined.nnz)])
    coef = narrow(csr_array((joined.value, joined.atom, indptr), shape=(joined.nnz.size, m)))
    coef.sort_indices()
    return Rows(coef, joined.n_iter, joined.n_passes, joined.n_looked, joined.correlation)
