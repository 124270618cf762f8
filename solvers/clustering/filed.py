"""Sparse subspace clustering in steps whose results lie in files, for more points than memory."""

import warnings
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from ...validation import check_folder, check_integer, check_positive
from ..filed_arrays import read_array, read_arrays, write_arrays
from ..inputs import Array
from ..kernels.workers import one_blas_thread, spread
from ..solution import aim
from ..sparse_coding.filed_atoms import (
    FiledAtoms,
    PenaltyOf,
    check_shape,
    read_cells,
    write_cells,
    write_points,
)
from ..sparse_coding.penalty import Penalty
from ..sparse_coding.row_blocks import Progress, hash_code, row_bounds
from .affinity import symmetric_affinity
from .eigenvectors import eigenpairs_of
from .filed_graph import FiledGraph
from .sparse import ElasticNetSubspaceClustering, SparseSubspaceClustering
from .spectral import EmbeddedGraph, check_n_clusters, embed_by

Lasso = SparseSubspaceClustering | ElasticNetSubspaceClustering

_SAMPLE, _RESTARTS = 10_000, 20  # points whose k-means gives the first centres
_BATCH = 4096
_KNOWN = ("gap", "objective", "nnz", "n_passes", "n_looked", "n_iter")  # of each row


class FiledClustering:
    """Sparse subspace clustering of points in files; the steps are spread over workers.

    The steps are `points`, `cells`, `lam_max`, `codes`, `graph`, `embedding` and `labels`. Each
    needs those before, and writes files to `directory`, from which an interrupted job goes on.
    Workers get names of files and read what they need, so that all machines must see the folder
    under the same name. They are threads, unless ``joblib.parallel_config`` names another backend,
    such as Dask. The answer does not depend on the workers. One job at a time may use a folder.

    1. `points` writes the points in float64, and scaled in float32.
    2. `cells` sorts 25,000 to 4,000,000 points, if searches in cells exclude most of them. Other
       searches are products with all points, in parts of up to 4,096 points.
    3. `lam_max` finds the penalty from which on the code of a row is zero, in blocks of up to 1,024
       rows.
    4. `codes` solves these blocks to the certified gap of the model.
    5. `graph` makes the affinity ``|C| + |C|^T`` in parts of 32 blocks.
    6. `embedding` is that of `spectral_labels`. The workers multiply the graph by blocks of
       vectors; the search for eigenvectors never factors the graph.
    7. `labels` are those of mini-batch k-means, from the best centres of 20 restarts of k-means on
       10,000 random points.

    **Memory.** Besides mapped files, which the system drops when it needs room, a worker holds a
    hundred bytes for each coefficient of a part, and some 200 MB. Mapping is no copy, but counts as
    a worker's memory in Dask: give its workers no limit. The caller holds about ``9 k + 100``
    numbers for each point with k clusters. Making cells takes about three copies of the points.

    Parameters
    ----------
    model : SparseSubspaceClustering or ElasticNetSubspaceClustering
        With a number of clusters, a number `gamma`, ``affine=False`` and the default `affinity` and
        `assign_labels`. Its `directory` is not used. Its `n_jobs` is the number of workers.
    X : array-like of shape (n_samples, n_features)
        An array in memory or in a file (``numpy.load(..., mmap_mode="r")``), a Dask array, or what
        else has a `shape` and slices of rows. It is read in pieces.
    directory : str or Path
        Folder for the files.

    Raises
    ------
    ValueError
        On NaN, infinity, one sample, more clusters than samples, or a parameter outside its range.
    TypeError
        If the model is another.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        As `SparseSubspaceClustering`.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); Sculley, "Web-scale k-means
    clustering" (2010); EQUATIONS SE-12, CL-1, CL-2, PP-SC.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from twinsolve.datasets import make_union_of_subspaces
    >>> from twinsolve.solvers import SparseSubspaceClustering, clustering_accuracy
    >>> from twinsolve.solvers.clustering import FiledClustering
    >>> X, y = make_union_of_subspaces(100, n_subspaces=3, random_state=0)
    >>> with TemporaryDirectory() as folder:
    ...     model = SparseSubspaceClustering(3, gamma=50.0, random_state=0)
    ...     labels = FiledClustering(model, X, folder).labels()
    >>> clustering_accuracy(y, labels)
    1.0
    """

    def __init__(self, model: Lasso, X: Any, directory: str | Path) -> None:
        folder = check_folder(directory, "directory")
        if folder is None:
            raise ValueError("directory: must be a folder, got None")
        self.model, self.X, self.directory = _check_model(model), X, folder.resolve()
        self.n_points, _ = check_shape(X)
        self.n_clusters = check_n_clusters(
            model.n_clusters, self.n_points, why_not_none="the graph is never whole"
        )

    @cached_property
    def points(self) -> Path:
        """The folder of the points, written at first use."""
        return write_points(self.X, self.directory)

    @property
    def _penalty_of(self) -> PenaltyOf:
        return partial(_penalty_of, self.model)  # Dask would hand over a model without gamma_

    @property
    def _tol(self) -> float:
        return aim(self.model.tol, np.float64)

    @cached_property
    def folder(self) -> Path:
        """The folder of all but the points; its name is a digest of what the codes depend on."""
        model = self.model
        about = model.gamma, model.l1_ratio, model.nonnegative, model.tol, model.max_iter
        name = joblib.hash((self.points.name, about, hash_code()))
        folder = self.directory / f"codes-{name[:16]}"
        folder.mkdir(exist_ok=True)
        return folder

    @cached_property
    def cells(self) -> bool:
        """Whether searches in cells pay, by a trial that is made once."""
        plan = self.folder / "plan"
        if not plan.is_dir():
            rule = self._penalty_of, self._tol, self.model.max_iter
            with one_blas_thread:
                pays = write_cells(self.points, *rule)
            write_arrays(plan, cells=np.array(pays))
        return bool(read_array(plan / "cells.npy"))

    def lam_max(self, progress: Progress | None = None) -> Array:
        """Find the penalty from which on the code of a row is zero, ``2 max_j |x_i . x_j|``.

        Parameters
        ----------
        progress : callable, optional
            As in `codes`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        self._finish("lam_max", _find_lam_max, (), progress)
        return self._read("lam_max", "lam_max")

    def codes(self, progress: Progress | None = None) -> dict[str, Array]:
        """Solve all blocks; return what is known of each row, by name.

        Parameters
        ----------
        progress : callable, optional
            Wraps the iteration over the blocks, as in `sparse_self_expression`.

        Returns
        -------
        dict of str to ndarray of shape (n_samples,)
            The ``gap`` and the ``objective`` of each row, and its numbers of nonzeros, ``nnz``, of
            searches, ``n_passes``, of points that these looked at, ``n_looked``, and of steps,
            ``n_iter``.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If a row ends with a gap above the tolerance of the model.
        """
        self.lam_max()
        rule = self._penalty_of, self._tol, self.model.max_iter
        self._finish("codes", _solve_codes, rule, progress)
        rows = {name: self._read("codes", name) for name in _KNOWN}
        if n_open := int((rows["gap"] > self.model.tol).sum()):
            warnings.warn(
                f"codes: {n_open} of {self.n_points} rows did not converge: the largest gap is "
                f"{rows['gap'].max():.1e}, above tol={self.model.tol}; increase max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return rows

    def _finish(
        self, step: str, task: Any, common: tuple[Any, ...], progress: Progress | None
    ) -> None:
        """Run the task of a step on each block of rows whose results are not there."""
        bounds = row_bounds(self.n_points)
        missing = [block for block in bounds if not _results(self.folder, step, block).is_dir()]
        if missing:
            tasks = [(self.points, self.folder, block, self.cells, *common) for block in missing]
            finished = spread(task, tasks, self.model.n_jobs, in_order=False)
            with one_blas_thread:
                for _ in progress(finished, len(tasks)) if progress else finished:
                    pass

    def _read(self, step: str, name: str) -> Array:
        """Read what a step found for all rows."""
        folders = [_results(self.folder, step, block) for block in row_bounds(self.n_points)]
        return np.concatenate([np.load(folder / f"{name}.npy") for folder in folders])

    @cached_property
    def graph(self) -> FiledGraph:
        """The graph of the codes, written at first use."""
        self.codes()
        with one_blas_thread:
            return FiledGraph(self.folder, self.n_points, self.model.n_jobs)

    @cached_property
    def embedding(self) -> EmbeddedGraph:
        """The embedded graph, as `spectral_labels` embeds it."""
        folder = self.folder / f"embedding-{self.n_clusters}"
        if not folder.is_dir():
            with one_blas_thread:
                write_arrays(folder, **_embed(self.graph, self.n_clusters).arrays())
        return EmbeddedGraph.from_arrays(read_arrays(folder))

    def labels(self) -> Array:
        """Labels of all points, an array of int of shape (n_samples,)."""
        random, k = self.model.random_state, self.embedding.n_clusters
        return self.embedding.labels(lambda rows: _cut(normalize(rows), k, random))


def _check_model(model: Lasso) -> Lasso:
    if not isinstance(model, Lasso):
        raise TypeError(
            "model: must be a SparseSubspaceClustering or an ElasticNetSubspaceClustering, got "
            f"{type(model).__name__}"
        )
    if model.affine or model.affinity is not symmetric_affinity or model.assign_labels != "kmeans":
        raise ValueError(
            "model: in files needs affine=False and the defaults of affinity and assign_labels, "
            f"got {model}"
        )
    if isinstance(model.gamma, str):
        raise ValueError(f"gamma: must be a number above 1 in files, got {model.gamma!r}")
    check_positive(model.tol, "tol")
    check_integer(model.max_iter, "max_iter", minimum=1)
    model = clone(model)
    model.gamma_ = model.gamma
    model._settings(np.ones(1))
    return model


def _results(folder: Path, step: str, block: tuple[int, int]) -> Path:
    return folder / f"{step}-{block[0]}"


def _penalty_of(model: Lasso, lam_max: Array, own: Array) -> Penalty:
    """The penalties of the points `own`, whose codes are zero from `lam_max` on."""
    known = model._settings(lam_max)
    return Penalty(known["lam"], known["l1_ratio"], known["nonnegative"], own)


def _open(points: Path, has_cells: bool) -> FiledAtoms:
    return FiledAtoms(points, read_cells(points) if has_cells else None)


def _find_lam_max(points: Path, folder: Path, block: tuple[int, int], has_cells: bool) -> None:
    """Write the penalties from which on the codes of a block of rows are zero."""
    largest = _open(points, has_cells).largest_correlations(np.arange(*block))
    write_arrays(_results(folder, "lam_max", block), lam_max=2 * largest)


def _solve_codes(
    points: Path,
    folder: Path,
    block: tuple[int, int],
    has_cells: bool,
    penalty_of: PenaltyOf,
    tol: float,
    max_iter: int,
) -> None:
    """Write the codes of a block of rows with their certificates."""
    lam_max = np.load(_results(folder, "lam_max", block) / "lam_max.npy")
    penalty = penalty_of(lam_max, np.arange(*block))
    codes, objective, gap = _open(points, has_cells).solve(penalty, tol, max_iter)
    arrays = codes._asdict() | {"objective": objective, "gap": gap}
    write_arrays(_results(folder, "codes", block), **arrays)


def _embed(graph: FiledGraph, n_clusters: int) -> EmbeddedGraph:
    part, connected = graph.part, graph.connected
    k = min(n_clusters, len(part))
    if k == 0 or part.max() + 1 >= k:
        return EmbeddedGraph(k, connected, None, part)
    pairs = eigenpairs_of(graph, graph.degree, k, lambda: part)
    return embed_by(pairs, k, connected, part)


def _cut(rows: Array, k: int, random_state: Any) -> Array:
    """Labels of rows by mini-batch k-means, from the centres of k-means on some of them."""
    random = check_random_state(random_state)
    some = random.permutation(len(rows))[: max(_SAMPLE, 10 * k)]
    with threadpool_limits(1):  # so that sums have one order
        first = KMeans(k, n_init=_RESTARTS, random_state=random).fit(rows[some])
        model = MiniBatchKMeans(
            k, init=first.cluster_centers_, n_init=1, batch_size=_BATCH, random_state=random
        )
        labels: Array = model.fit_predict(rows)
    return labels
