import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    duality_gap,
    lam_max,
    sparse_code,
    sparse_code_path,
    sparse_self_expression,
)
from twinsolve.solvers.sparse_coding import row_blocks


@pytest.fixture(scope="module")
def X():
    return make_union_of_subspaces(130, n_subspaces=3, noise=0.2, random_state=0)[0]


@pytest.fixture(scope="module")
def serial(X):
    return sparse_self_expression(X, lam=0.05)


def _assert_equal(solution, other):
    assert_array_equal(solution.coef.indptr, other.coef.indptr)
    assert_array_equal(solution.coef.indices, other.coef.indices)
    assert_array_equal(solution.coef.data, other.coef.data)
    assert_array_equal(solution.gap, other.gap)


def test_threads_give_the_serial_answer(X, serial):
    _assert_equal(sparse_self_expression(X, lam=0.05, n_jobs=2), serial)


def test_processes_give_the_serial_answer(X, serial):
    with joblib.parallel_config("loky", n_jobs=2):
        _assert_equal(sparse_self_expression(X, lam=0.05), serial)


def test_a_dask_cluster_gives_the_serial_answer(X, serial):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as them,
        distributed.Client(them),
        joblib.parallel_config("dask"),
    ):
        _assert_equal(sparse_self_expression(X, lam=0.05), serial)


def test_progress_sees_every_block(X, serial):
    seen = []

    def progress(blocks, total):
        for block in blocks:
            seen.append(total)
            yield block

    _assert_equal(sparse_self_expression(X, lam=0.05, progress=progress), serial)
    assert seen == [3, 3, 3]


def test_an_interrupted_solve_goes_on_from_its_folder(X, serial, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def interrupt(blocks, total):
        for count, block in enumerate(blocks):
            yield block
            if count == 1:
                raise Stop

    with pytest.raises(Stop):
        sparse_self_expression(X, lam=0.05, progress=interrupt, directory=tmp_path)
    solved = []
    solve = row_blocks.solve_block

    def watch(start, stop, *rest):
        solved.append((start, stop))
        return solve(start, stop, *rest)

    monkeypatch.setattr(row_blocks, "solve_block", watch)
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path), serial)
    assert solved == [(260, 390)]
    sparse_self_expression(X, lam=0.06, directory=tmp_path)
    assert len(solved) == 4, "another problem has no blocks there"


@pytest.mark.parametrize("slots", [7, 256])
@pytest.mark.parametrize("stored", [True, False])
def test_path_is_the_solve_of_each_penalty(X, monkeypatch, stored, slots):
    monkeypatch.setattr("twinsolve.solvers.sparse_coding.row_pool._SLOTS", slots)
    if not stored:
        monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    lams = np.outer([0.02, 0.5, 0.1], lam_max(X, X, zero_diagonal=True))
    path = sparse_code_path(X, X, lams=lams, zero_diagonal=True, tol=1e-10)
    for lam, solution in zip(lams, path, strict=True):
        alone = sparse_self_expression(X, lam=lam, tol=1e-10)
        assert_allclose(solution.objective, alone.objective, atol=2e-10)
        assert duality_gap(X, X, solution.coef, lam=lam, zero_diagonal=True).max() <= 1.01e-10
        assert (solution.coef.diagonal() == 0).all()


def test_path_takes_fewer_steps_than_the_solves_alone(X):
    lams = np.geomspace(0.5, 0.01, 12)
    path = sparse_code_path(X, X, lams=lams, zero_diagonal=True)
    alone = [sparse_self_expression(X, lam=lam) for lam in lams]
    steps = [sum(s.n_iter.sum() for s in solutions) for solutions in (path, alone)]
    assert steps[0] < 0.5 * steps[1]


def test_path_names_bad_penalties(X):
    for lams, words in (([], "lams"), ([[[0.1]]], "lams"), ([0.1, -1.0], "lam")):
        with pytest.raises(ValueError, match=words):
            sparse_code_path(X, X, lams=lams, zero_diagonal=True)
    with pytest.raises(ValueError, match="lam"):
        sparse_code_path(X[:5], X, lams=np.ones((2, 3)))


def test_elastic_net_and_nonnegative_paths(X):
    Y, D = X[:40], X[40:100]
    options = {"l1_ratio": 0.7, "nonnegative": True, "tol": 1e-10}
    for lam, solution in zip(
        (0.3, 0.03), sparse_code_path(Y, D, lams=[0.3, 0.03], **options), strict=True
    ):
        alone = sparse_code(Y, D, lam=lam, **options)
        assert_allclose(solution.coef.toarray(), alone.coef.toarray(), atol=1e-5)


def test_passes_count_products_with_all_atoms(X, monkeypatch):
    monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    solution = sparse_self_expression(X, lam=1e3)
    assert_array_equal(solution.n_passes, 1)


def test_a_damaged_block_is_solved_anew(X, serial, tmp_path):
    sparse_self_expression(X, lam=0.05, directory=tmp_path)
    (damaged, *_) = sorted(tmp_path.glob("*/*.npz"))
    damaged.write_bytes(b"half a block")
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path), serial)
    assert not list(tmp_path.glob("*/*.part"))
