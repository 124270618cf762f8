import errno
import os
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import sparse_code, sparse_self_expression
from twinsolve.solvers.sparse_coding import (
    duality_gap,
    lam_max,
    lasso,
    row_blocks,
    sparse_code_path,
)
from twinsolve.solvers.sparse_coding.penalty import Penalty


@pytest.fixture(scope="module")
def X():
    return make_union_of_subspaces(130, n_subspaces=3, noise=0.2, random_state=0)[0]


@pytest.fixture(scope="module")
def serial(X):
    return sparse_self_expression(X, lam=0.05)


@pytest.fixture
def solved(monkeypatch):
    """The row ranges of the blocks that are solved, not read."""
    rows, solve = [], row_blocks.solve_block

    def watch(start, stop, *rest):
        rows.append((start, stop))
        return solve(start, stop, *rest)

    monkeypatch.setattr(row_blocks, "solve_block", watch)
    return rows


def _assert_equal(solution, other):
    assert_array_equal(solution.coef.indptr, other.coef.indptr)
    assert_array_equal(solution.coef.indices, other.coef.indices)
    assert_array_equal(solution.coef.data, other.coef.data)
    assert_array_equal(solution.gap, other.gap)


def test_a_dask_cluster_gives_the_serial_answer(X, serial):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as them,
        distributed.Client(them),
        joblib.parallel_config("dask"),
    ):
        _assert_equal(sparse_self_expression(X, lam=0.05), serial)


def test_what_certified_the_rows_is_not_computed_again(X, serial, monkeypatch):
    def again(*arguments):
        raise AssertionError("products of all rows with all atoms")

    monkeypatch.setattr(lasso, "certify", again)
    _assert_equal(sparse_self_expression(X, lam=0.05), serial)
    sparse_code(X[:9], X, lam=0.05, nonnegative=True)
    sparse_code_path(X, X, lams=[0.5, 0.2], zero_diagonal=True)


def test_progress_sees_every_block(X, serial):
    seen = []

    def progress(blocks, total):
        for block in blocks:
            seen.append(total)
            yield block

    _assert_equal(sparse_self_expression(X, lam=0.05, progress=progress), serial)
    assert seen == [3, 3, 3]


@pytest.mark.parametrize("affine", [False, True])
def test_a_progress_that_loses_blocks_is_named(X, affine):
    with pytest.raises(ValueError, match=r"^progress: must yield every block .* 2 of 3 are lost"):
        sparse_self_expression(
            X, lam=0.3, affine=affine, progress=lambda blocks, total: list(blocks)[:1]
        )


def test_an_interrupted_solve_goes_on_from_its_folder(X, serial, tmp_path, solved):
    class Stop(Exception):
        pass

    def interrupt(blocks, total):
        for count, block in enumerate(blocks):
            yield block
            if count == 1:
                raise Stop

    with pytest.raises(Stop):
        sparse_self_expression(X, lam=0.05, progress=interrupt, directory=tmp_path)
    solved.clear()
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=str(tmp_path)), serial)
    assert solved == [(260, 390)]
    with pytest.raises(TypeError, match="directory: must be the path of a folder or None, got 3"):
        sparse_self_expression(X, lam=0.05, directory=3)
    sparse_self_expression(X, lam=0.06, directory=tmp_path)
    assert len(solved) == 4, "another problem has no blocks there"


@pytest.mark.parametrize(("slots", "stored"), [(7, True), (256, False)])
def test_path_is_the_solve_of_each_penalty(X, monkeypatch, stored, slots):
    monkeypatch.setattr("twinsolve.solvers.kernels.row_pool._SLOTS", slots)
    if not stored:
        monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    lams = np.outer([0.02, 0.5, 0.1], lam_max(X, X, zero_diagonal=True))
    path = sparse_code_path(X, X, lams=lams, zero_diagonal=True, tol=1e-10)
    for lam, solution in zip(lams, path, strict=True):
        alone = sparse_self_expression(X, lam=lam, tol=1e-10)
        assert_allclose(solution.objective, alone.objective, atol=2e-10)
        assert duality_gap(X, X, solution.coef, lam=lam, zero_diagonal=True).max() <= 1.01e-10
        assert (solution.coef.diagonal() == 0).all()


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


def _blocks(directory):
    return sorted(directory.glob("*/*.block"), key=lambda path: int(path.stem))


def test_what_a_killed_process_left_goes_and_a_full_disk_leaves_nothing(
    X, serial, tmp_path, monkeypatch
):
    sparse_self_expression(X, lam=0.05, directory=tmp_path)
    block = _blocks(tmp_path)[0]
    block.unlink()
    left, live = block.with_suffix(".part"), block.with_name("live.part")
    left.touch()
    live.touch()
    os.utime(left, (1, 1))

    def full(path, target):
        raise OSError(errno.ENOSPC, "no space left", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="block"):
            sparse_self_expression(X, lam=0.05, directory=tmp_path)
    assert list(tmp_path.glob("*/*.part")) == [live]
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path), serial)


def test_a_block_that_is_cut_or_has_any_bit_flipped_is_solved_anew(X, serial, tmp_path, solved):
    sparse_self_expression(X, lam=0.05, directory=tmp_path)
    block = _blocks(tmp_path)[0]
    whole = block.read_bytes()
    solved.clear()
    places = np.random.default_rng(0).choice(len(whole), 20, replace=False).tolist()
    for place in [0, len(whole) - 1, *places]:
        flipped = bytearray(whole)
        flipped[place] ^= 4
        for damaged in (flipped, whole[:place]):
            block.write_bytes(damaged)
            _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path), serial)
    assert solved == [(0, 130)] * 44
    assert not list(tmp_path.glob("*/*.part"))


def test_blocks_of_another_solve_or_of_other_rows_are_never_mixed_in(X, serial, tmp_path, solved):
    """Whatever stands under the name of a block of this solve."""
    sparse_self_expression(X, lam=0.06, directory=tmp_path / "other")
    sparse_self_expression(X, lam=0.05, directory=tmp_path / "own")
    own = _blocks(tmp_path / "own")
    for place, source in zip(own, _blocks(tmp_path / "other"), strict=True):
        place.write_bytes(source.read_bytes())
    solved.clear()
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path / "own"), serial)
    assert sorted(solved) == [(0, 130), (130, 260), (260, 390)]
    own[0].write_bytes(own[2].read_bytes())
    solved.clear()
    _assert_equal(sparse_self_expression(X, lam=0.05, directory=tmp_path / "own"), serial)
    assert solved == [(0, 130)]


def test_all_that_an_answer_depends_on_makes_another_solve(X, tmp_path, solved, monkeypatch):
    Y, D = X[:40], X[40:90]
    penalty = Penalty(np.full(40, 0.05))
    plain = {"tol": 1e-6, "max_rounds": 100, "penalty": penalty}
    atoms = row_blocks.Atoms(D)

    def solve(Y=Y, atoms=atoms, **changed):
        solved.clear()
        row_blocks.solve_rows(Y, atoms, directory=tmp_path, **plain | changed)
        return len(solved)

    assert solve() == 1
    assert solve() == 0
    moved = Y.copy()
    moved[3, 2] = np.nextafter(moved[3, 2], 1)
    for changed in (
        {"Y": moved},
        {"atoms": row_blocks.Atoms(D[::-1])},
        {"penalty": replace(penalty, lam=np.full(40, 0.05 + 1e-16))},
        {"penalty": replace(penalty, l1_ratio=0.9)},
        {"penalty": replace(penalty, nonnegative=True)},
        {"penalty": replace(penalty, own=np.arange(40))},
        {"tol": 1e-7},
        {"max_rounds": 99},
        {"start": csr_array(np.eye(40, 50))},
    ):
        assert solve(**changed) == 1, changed
        assert solve(**changed) == 0, changed
    monkeypatch.setattr(row_blocks, "hash_code", lambda: "another version of the solver")
    assert solve() == 1


def test_whenever_it_is_interrupted_the_answer_of_affine_codes_is_that_of_one_run(X, tmp_path):
    class Stop(Exception):
        pass

    call = {"lam": 0.3, "affine": True, "tol": 1e-4}
    alone = sparse_self_expression(X, **call)
    call["directory"] = tmp_path
    for allowed in (0, 1, 2):
        seen = []

        def progress(blocks, total, allowed=allowed, seen=seen):
            for block in blocks:
                if len(seen) == allowed:
                    raise Stop
                seen.append(block)
                yield block

        with pytest.raises(Stop):
            sparse_self_expression(X, progress=progress, **call)
    _assert_equal(sparse_self_expression(X, **call), alone)
