"""The graph of coefficients in files: a part holds the edges of some rows, and serves products."""

from collections.abc import Callable
from itertools import pairwise, starmap
from pathlib import Path
from uuid import uuid4

import numpy as np
from scipy.sparse import csr_array

from ..filed_arrays import read_array, read_arrays, write_arrays
from ..inputs import Array, narrow
from ..kernels.row_pool import Codes
from ..kernels.workers import spread
from ..sparse_coding.filed_atoms import coded_rows
from ..sparse_coding.row_blocks import row_bounds

_BLOCKS = 32  # blocks of codes whose rows are a part

Bounds = tuple[int, int]


class FiledGraph:
    """The normalised affinity of the codes in `folder`, whose products the workers compute.

    The affinity is ``|C| + |C|^T``, without rows of isolated points. Every part has a file for its
    entries. A task reads one part, and the vectors that it multiplies. The caller holds the
    vectors, and numbers for each point.

    Attributes
    ----------
    connected : ndarray of bool of shape (n_points,)
        Whether a point has edges to others.
    part : ndarray of int
        Component of each connected point; components are sorted by first point.
    degree : ndarray
        Sum of the edges of each connected point.
    shape : tuple
        Numbers of connected points.
    """

    def __init__(self, folder: Path, n_points: int, n_jobs: int | None) -> None:
        blocks = row_bounds(n_points)
        edges = [*(block[0] for block in blocks[::_BLOCKS]), n_points]
        self.folder, self.n_jobs, self.parts = folder, n_jobs, list(pairwise(edges))
        common = [(folder, part, edges) for part in self.parts]
        list(spread(_turn_codes, common, n_jobs))
        degree = np.concatenate(list(spread(_add_turned, common, n_jobs)))
        part = self._components(n_points)
        self.connected = np.bincount(part)[part] > 1
        self.part = np.unique(part[self.connected], return_inverse=True)[1]
        self.degree = degree[self.connected]
        self.shape = 2 * (len(self.part),)
        scale = np.zeros(n_points)
        scale[self.connected] = 1 / np.sqrt(self.degree)
        self._ask(_scale_part, scale)

    def __matmul__(self, X: Array) -> Array:
        vectors = np.zeros((len(self.connected), X.shape[1]))
        vectors[self.connected] = X
        return self._ask(_multiply, vectors)[self.connected]

    def _components(self, n_points: int) -> Array:
        """Number the components, by pointers to ever smaller points of the same component.

        Zhang, Azad and Hu, "FastSV: a distributed-memory connected component algorithm" (2020).
        """
        parent = np.arange(n_points)
        while True:
            least = self._ask(_least_of_neighbors, parent)
            found = parent.copy()
            np.minimum.at(found, parent, least)
            found = np.minimum(found, least)
            found = found[found]
            if np.array_equal(found, parent):
                return np.unique(parent, return_inverse=True)[1]
            parent = found

    def _ask(self, task: Callable[..., Array], vectors: Array) -> Array:
        """Return the answers of all parts, which read `vectors` from a file of their own.

        The caller answers for a single part, as that takes less time than to ask.
        """
        name = f"vectors-{uuid4().hex}"
        write_arrays(self.folder / name, vectors=vectors)
        path = self.folder / name / "vectors.npy"
        try:
            tasks = [(self.folder, part, path) for part in self.parts]
            alone = len(tasks) == 1
            answers = starmap(task, tasks) if alone else spread(task, tasks, self.n_jobs)
            return np.concatenate(list(answers))
        finally:
            path.unlink()
            path.parent.rmdir()


def codes_of(folder: Path, bounds: Bounds, n_points: int) -> csr_array:
    """Read the codes of the rows from ``bounds[0]`` to ``bounds[1] - 1``, whole blocks."""
    blocks = []
    for start, _ in row_bounds(n_points):
        if bounds[0] <= start < bounds[1]:
            arrays = read_arrays(folder / f"codes-{start}")
            blocks.append(Codes(**{name: arrays[name] for name in Codes._fields}))
    return coded_rows(blocks, n_points)


def _turn_codes(folder: Path, part: Bounds, edges: list[int]) -> None:
    """Write ``|C|^T`` of the rows of a part, sorted, so that each part finds its own rows."""
    if (folder / f"turned-{part[0]}").is_dir():
        return
    C = codes_of(folder, part, edges[-1]).tocoo()
    rows, columns = C.coords
    order = np.argsort(columns, kind="stable")
    columns = columns[order]
    write_arrays(
        folder / f"turned-{part[0]}",
        row=columns,
        column=rows[order] + rows.dtype.type(part[0]),
        size=np.abs(C.data[order]),
        first=np.searchsorted(columns, edges),
    )


def _add_turned(folder: Path, part: Bounds, edges: list[int]) -> Array:
    """Write the rows of ``|C| + |C|^T`` of a part; return their sums."""
    if not (folder / f"edges-{part[0]}").is_dir():
        C = codes_of(folder, part, edges[-1]).tocoo()
        found = [(C.coords[0], C.coords[1], np.abs(C.data))]
        at = edges.index(part[0])
        for start in edges[:-1]:
            other = read_arrays(folder / f"turned-{start}")
            inside = slice(*other["first"][at : at + 2])
            row = other["row"][inside] - other["row"].dtype.type(part[0])
            found.append((row, other["column"][inside], other["size"][inside]))
        row, column, size = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        A = narrow(csr_array((size, (row, column)), shape=(part[1] - part[0], edges[-1])))
        arrays = {"data": A.data, "indices": A.indices, "indptr": A.indptr}
        write_arrays(folder / f"edges-{part[0]}", **arrays)
    sums: Array = _edges_of(folder, part, edges[-1]).sum(axis=1)
    return sums


def _edges_of(folder: Path, part: Bounds, n_points: int, name: str = "edges") -> csr_array:
    arrays = read_arrays(folder / f"edges-{part[0]}")
    data = arrays["data"] if name == "edges" else read_array(folder / f"{name}-{part[0]}/data.npy")
    shape = (part[1] - part[0], n_points)
    return csr_array((data, arrays["indices"], arrays["indptr"]), shape=shape)


def _least_of_neighbors(folder: Path, part: Bounds, path: Path) -> Array:
    """The least parent among the neighbours of each point and its own parent."""
    parent = read_array(path)
    A = _edges_of(folder, part, len(parent))
    least = np.array(parent[slice(*part)])
    filled = np.flatnonzero(np.diff(A.indptr))
    if filled.size:
        of_neighbors = np.minimum.reduceat(parent[A.indices], A.indptr[filled])
        least[filled] = np.minimum(least[filled], of_neighbors)
    return least


def _scale_part(folder: Path, part: Bounds, path: Path) -> Array:
    """Write the entries of ``D^(-1/2) A D^(-1/2)`` of a part."""
    if not (folder / f"scaled-{part[0]}").is_dir():
        scale = read_array(path)
        A = _edges_of(folder, part, len(scale))
        data = np.repeat(scale[slice(*part)], np.diff(A.indptr)) * A.data
        data *= scale[A.indices]
        write_arrays(folder / f"scaled-{part[0]}", data=data)
    return np.empty(0)


def _multiply(folder: Path, part: Bounds, path: Path) -> Array:
    vectors = read_array(path)
    product: Array = _edges_of(folder, part, len(vectors), "scaled") @ vectors
    return product
