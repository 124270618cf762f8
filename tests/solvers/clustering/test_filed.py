"""Clustering in files: the answer of arrays in memory, whoever solves it and whoever dies."""

import os
import signal
import tracemalloc
from shutil import copytree

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import block_diag
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    SparseSubspaceClustering,
    clustering_accuracy,
)
from twinsolve.solvers.clustering import FiledClustering, filed, filed_graph, symmetric_affinity
from twinsolve.solvers.clustering.spectral import embed_graph
from twinsolve.solvers.filed_arrays import write_arrays
from twinsolve.solvers.kernels import many_atoms, row_pool
from twinsolve.solvers.sparse_coding import (
    duality_gap,
    filed_atoms,
    lam_max,
    problem,
    sparse_code,
)
from twinsolve.solvers.sparse_coding.penalty import Penalty


@pytest.fixture(scope="module")
def points():
    X, y = make_union_of_subspaces(
        220, n_subspaces=4, n_features=12, dimension=3, noise=0.2, random_state=0
    )
    order = np.random.default_rng(0).permutation(len(X))
    return normalize(X[order]), y[order]


@pytest.fixture(autouse=True)
def several_parts(monkeypatch):
    monkeypatch.setattr(filed_graph, "_BLOCKS", 2)
    monkeypatch.setattr(filed_atoms, "_PIECE", 8 * 12 * 300)
    monkeypatch.setattr(row_pool, "_PART", 100)
    monkeypatch.setattr(problem, "_PART_ATOMS", 100)


def model(**settings):
    return SparseSubspaceClustering(4, **{"gamma": 20.0, "tol": 1e-8, "random_state": 0} | settings)


@pytest.fixture(scope="module")
def serial(points, tmp_path_factory):
    job = FiledClustering(model(), points[0], tmp_path_factory.mktemp("serial"))
    return job.codes(), job.embedding, job.labels()


def read_codes(job):
    return filed_graph.codes_of(job.folder, (0, job.n_points), job.n_points)


@pytest.mark.parametrize("kind", ["products", "cells", "elastic net", "nonnegative"])
def test_codes_are_those_in_memory(points, tmp_path, monkeypatch, kind):
    X, _ = points
    settings = {"nonnegative": True} if kind == "nonnegative" else {}
    if kind == "cells":
        monkeypatch.setattr(filed_atoms, "FEWEST_IN_CELLS", 2)
        monkeypatch.setattr("twinsolve.solvers.sparse_coding.row_blocks._LEFT_BY_CELLS", 1.0)
    chosen = model(**settings)
    if kind == "elastic net":
        chosen = ElasticNetSubspaceClustering(4, gamma=20.0, tol=1e-8, l1_ratio=0.8)
    job = FiledClustering(chosen, X, tmp_path)
    found, coef = job.codes(), read_codes(job)
    assert job.cells == (kind == "cells")
    rule = {"l1_ratio": chosen.l1_ratio, "nonnegative": chosen.nonnegative, "zero_diagonal": True}
    zero_from = lam_max(X, X, zero_diagonal=True)
    assert_allclose(job.lam_max(), zero_from, rtol=1e-14)
    lam = zero_from / (20 * chosen.l1_ratio)
    gap = duality_gap(X, X, coef, lam=lam, **rule)
    assert found["gap"].max() <= 1e-8
    # The kept gap adds a bound on rounding: below 100 u, times the sizes of some ten codes.
    assert (found["gap"] >= gap).all()
    assert_allclose(found["gap"], gap, atol=1e-12)
    objective = sparse_code(X, X, lam=lam, tol=1e-8, **rule).objective
    assert_allclose(found["objective"], objective, atol=2e-8)  # two gaps of rows of unit norm


def test_graph_and_embedding_are_those_in_memory(points, serial, tmp_path):
    job = FiledClustering(model(), points[0], tmp_path)
    A = symmetric_affinity(read_codes(job) if job.codes() else None)
    scale = 1 / np.sqrt(A.sum(axis=1))
    vectors = np.random.default_rng(0).standard_normal((job.n_points, 3))
    assert len(job.graph.parts) == 3
    expected = scale[:, None] * (A @ (scale[:, None] * vectors))
    assert_allclose(job.graph @ vectors, expected, rtol=1e-12, atol=1e-13)
    embedded = embed_graph(A, 4)
    cosines = np.linalg.svd(job.embedding.embedding.T @ embedded.embedding)[1]
    assert_allclose(cosines, 1, atol=1e-9)  # residuals leave angles of 1e-5
    assert_array_equal(job.graph.part, embedded.part)
    assert clustering_accuracy(points[1], serial[2]) > 0.97
    alike = clustering_accuracy(model().fit_predict(points[0]), serial[2])
    assert alike > 0.99  # k-means of batches may move points between clusters


def test_components_and_isolated_points(tmp_path, monkeypatch):
    """Chains, whose ends find each other only by pointers, a pair, and points without edges."""
    chain, pair = np.diag(np.ones(69), 1), [[0, 1], [0, 0]]
    blocks = [np.zeros((30, 30)), chain, chain[:60, :60], pair, np.zeros((18, 18))]
    order = np.random.default_rng(0).permutation(180)
    C = csr_array(block_diag(*blocks)[order][:, order])
    monkeypatch.setattr(filed_graph, "codes_of", lambda folder, rows, n: C[slice(*rows)])
    monkeypatch.setattr(filed_graph, "row_bounds", lambda n: [(i, i + 20) for i in range(0, n, 20)])
    graph = filed_graph.FiledGraph(tmp_path, 180, None)
    A = symmetric_affinity(C)
    expected = embed_graph(A, 3)
    assert_array_equal(graph.connected, expected.connected)
    assert_array_equal(graph.part, expected.part)
    assert_array_equal(graph.degree, A.sum(axis=1)[graph.connected])
    found = filed._embed(graph, 3)
    assert found.embedding is None
    assert_array_equal(found.cluster_qr(), expected.cluster_qr())
    labels = filed._embed(graph, 4)
    assert labels.embedding.shape == (132, 4)
    assert_allclose(np.abs(labels.embedding), np.abs(embed_graph(A, 4).embedding), atol=1e-8)


def test_an_interrupted_job_goes_on(points, serial, tmp_path, monkeypatch):
    def interrupt(blocks, total):
        for count, block in enumerate(blocks):
            yield block
            if count == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FiledClustering(model(), points[0], tmp_path).codes(interrupt)
    solved, solve = [], filed._solve_codes
    monkeypatch.setattr(filed, "_solve_codes", lambda *task: solved.append(task) or solve(*task))
    assert_array_equal(FiledClustering(model(), points[0], tmp_path).labels(), serial[2])
    assert len(solved) == 6 - 3
    solved.clear()
    monkeypatch.setattr(filed, "FiledGraph", None)
    assert_array_equal(FiledClustering(model(), points[0], tmp_path).labels(), serial[2])
    assert not solved, "all is there"
    FiledClustering(model(gamma=10.0), points[0], tmp_path).codes()
    FiledClustering(model(), 2 * points[0], tmp_path).codes()
    assert len(solved) == 12, "another problem has other files"


def test_a_killed_worker_changes_nothing(points, serial, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    several, vectors = tmp_path / "several", np.random.default_rng(0).standard_normal((880, 3))
    killed = []

    def kill(blocks, total):
        for block in blocks:
            yield block
            if not killed:
                killed.append(client.run(os.getpid))
                os.kill(min(killed[0].values()), signal.SIGKILL)

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="localhost:0"
        ) as them,
        distributed.Client(them) as client,
        joblib.parallel_config("dask"),
    ):
        job = FiledClustering(model(), points[0], tmp_path)
        codes = job.codes(kill)
        copytree(job.folder, several)
        product = filed_graph.FiledGraph(several, 880, None) @ vectors
        monkeypatch.setattr(filed_graph, "_BLOCKS", 32)
        embedding, labels = job.embedding, job.labels()
        now = client.run(os.getpid)
    assert min(killed[0].values()) not in now.values()
    for name, array in serial[0].items():
        assert_array_equal(codes[name], array)
    assert len(job.graph.parts) == 1
    assert_array_equal(product, job.graph @ vectors)
    assert_array_equal(embedding.embedding, serial[1].embedding)
    assert_array_equal(labels, serial[2])


def test_memory_of_a_task_does_not_grow_with_the_points(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(many_atoms, "_SAMPLE", 1000)
    monkeypatch.setattr(many_atoms, "_FEWEST", 10_000)
    monkeypatch.setattr(many_atoms, "_ENTRIES", 0)
    peaks = []
    for n in (10_000, 40_000):
        X = normalize(np.random.default_rng(0).standard_normal((n, 20)))
        atoms = filed_atoms.FiledAtoms(filed_atoms.write_points(X, tmp_path))
        own = np.arange(100)
        penalty = Penalty(2 * atoms.largest_correlations(own) / 3, own=own)
        atoms.solve(penalty, 1e-3, 100)  # compile
        tracemalloc.start()
        atoms.largest_correlations(own)
        atoms.solve(penalty, 1e-3, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Products of 100 rows with all atoms would take 4 and 16 MB, copies of the points as much more.
    assert peaks[1] < 1.1 * peaks[0] < 8e6


def test_points_may_be_in_a_file_or_a_dask_array(points, serial, tmp_path):
    np.save(tmp_path / "X.npy", points[0])
    mapped = FiledClustering(model(), np.load(tmp_path / "X.npy", mmap_mode="r"), tmp_path)
    array = pytest.importorskip("dask.array")
    lazy = FiledClustering(model(), array.from_array(points[0], chunks=(100, 5)), tmp_path)
    assert mapped.points == lazy.points
    assert_array_equal(np.load(lazy.points / "rows.npy"), points[0])


def test_rows_that_do_not_converge_are_told(points, tmp_path):
    job = FiledClustering(model(max_iter=1), points[0], tmp_path)
    with pytest.warns(ConvergenceWarning, match=r"^codes: \d+ of 880 rows did not converge"):
        assert job.codes()["gap"].max() > 1e-8


def test_files_appear_whole_and_once(tmp_path):
    write_arrays(tmp_path / "a", x=np.arange(3.0))
    write_arrays(tmp_path / "a", x=np.arange(5.0))
    assert_array_equal(np.load(tmp_path / "a" / "x.npy"), np.arange(3.0))
    with pytest.raises(ValueError, match="inhomogeneous"):
        write_arrays(tmp_path / "b", x=np.arange(3.0), y=[[1.0], [1.0, 2.0]])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_files_cannot_serve_is_refused(points, tmp_path):
    X, _ = points
    for settings, words in (
        ({"gamma": "auto"}, "^gamma: must be a number above 1 in files, got 'auto'"),
        ({"gamma": 0.5}, "^gamma: must be > 1"),
        ({"affine": True}, "^model: in files needs affine=False and the defaults"),
        ({"assign_labels": "cluster_qr"}, "^model: in files needs affine=False"),
        ({"affinity": np.abs}, "^model: in files needs affine=False"),
        ({"n_clusters": None}, "^n_clusters: must be a number, not None: the graph is never whole"),
        ({"n_clusters": 1000}, "^n_clusters: must be at most n_samples=880"),
        ({"tol": 0.0}, "^tol: must be"),
    ):
        with pytest.raises(ValueError, match=words):
            FiledClustering(model().set_params(**settings), X, tmp_path)
    with pytest.raises(TypeError, match=r"^model: must be a SparseSubspaceClustering .* got dict"):
        FiledClustering({}, X, tmp_path)
    with pytest.raises(
        ValueError, match=r"^X: must be a matrix of two or more points, got .*\(9,\)"
    ):
        FiledClustering(model(), np.ones(9), tmp_path)
    bad = X.copy()
    bad[700, 3] = np.nan
    with pytest.raises(ValueError, match=r"^X: Input X contains NaN"):
        FiledClustering(model(), bad, tmp_path).labels()
    assert not list(tmp_path.iterdir()), "nothing is left of it"
