"""Searches in cells against products with all atoms."""

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.kernels import cell_rows
from twinsolve.solvers.kernels.cells import make_cells, nearby, violators
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective, row_blocks, sparse_code
from twinsolve.solvers.sparse_coding.lasso import Lasso
from twinsolve.solvers.sparse_coding.problem import duality_gap, largest_correlations

KINDS = [
    "dense",
    "random",
    "antipodal",
    "duplicated",
    "with zeros",
    "lengths",
    "line",
    "one",
    "wide",
]


def draw(kind, seed, n=400, p=6):
    """Atoms that strain a bound in their own way."""
    rng = np.random.default_rng(seed)
    atoms = rng.standard_normal((n, 3)) @ rng.standard_normal((3, p))
    if kind == "random":
        atoms = rng.standard_normal((n, p))
    elif kind == "antipodal":
        atoms[n // 2 :] = -atoms[: n // 2]
    elif kind == "duplicated":
        atoms[n // 2 :] = atoms[: n // 2]
    elif kind == "with zeros":
        atoms[::3] = 0
    elif kind == "lengths":
        atoms *= 10 ** rng.uniform(-6, 6, (n, 1))
    elif kind == "line":
        atoms = rng.standard_normal((n, 1)) * np.ones(p)
    elif kind == "one":
        atoms = atoms[:1]
    elif kind == "wide":  # more directions than a basis holds
        atoms = rng.standard_normal((n, 3)) @ rng.standard_normal((3, 40))
        atoms += 0.2 * rng.standard_normal(atoms.shape)
    return np.ascontiguousarray(atoms)


def search(atoms, r, low, *, share=0.0, most=10_000, own=-1, support=(), nonneg=False):
    cells = make_cells(atoms)
    key, index = np.empty(20_000), np.empty(20_000, np.int64)
    n, looked = violators(
        r, low, share, most, own, np.array(support, np.int64), nonneg, atoms, cells,
        np.empty(len(cells.first) - 1), key, index,
    )  # fmt: skip
    assert looked <= len(atoms)
    return dict(zip(index[:n].tolist(), key[:n].tolist(), strict=True)), looked


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    at=st.floats(0.05, 0.999),
    nonneg=st.booleans(),
    towards=st.sampled_from(["an atom", "anywhere", "aside"]),
)
def test_all_that_exceed_the_bound_are_found_and_no_others(kind, seed, at, nonneg, towards):
    atoms = draw(kind, seed)
    rng = np.random.default_rng(seed + 1)
    r = rng.standard_normal(atoms.shape[1])
    if towards == "an atom":
        r = atoms[rng.integers(len(atoms))].copy()
    elif towards == "aside":  # what the basis of a span leaves of one of its atoms
        cells = make_cells(atoms)
        g = rng.integers(len(cells.first) - 1)
        basis = cells.basis[cells.first[g] : cells.first[g + 1]]
        atom = atoms[cells.atom[cells.start[cells.begin[cells.group[g]]]]]
        r = atom - basis.T @ (basis @ atom)
    products = atoms @ r if nonneg else abs(atoms @ r)
    low = at * products.max()
    if low <= 0:
        return
    own = int(products.argmax())
    support = np.flatnonzero(products > low)[-2:]
    found, _ = search(atoms, r, low, own=own, support=support, nonneg=nonneg)
    # A product within its rounding of the bound may fall on either side.
    margin = 1e-13 * np.abs(atoms).max() * np.abs(r).sum()
    allowed = set(range(len(atoms))) - {own, *support.tolist()}
    assert {j for j in allowed if products[j] > low + margin} <= set(found)
    assert set(found) <= {j for j in allowed if products[j] > low - margin}
    assert_allclose([products[j] for j in found], list(found.values()), atol=margin)


@pytest.mark.parametrize("share", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["dense", "duplicated", "lengths", "wide"])
def test_those_left_out_are_no_larger_than_those_found(kind, share):
    atoms = draw(kind, 3)
    r = np.random.default_rng(4).standard_normal(atoms.shape[1])
    products = abs(atoms @ r)
    found, _ = search(atoms, r, 0.1 * products.max(), share=share, most=5)
    assert 1 <= len(found) <= 5
    assert_allclose(max(found.values()), products.max())
    if share:
        assert min(found.values()) >= share * products.max() * (1 - 1e-12)
    left = np.delete(products, list(found))
    enough = len(found) == 5 and left.size
    if enough:
        assert left.max() <= min(found.values()) * (1 + 1e-12)


def test_atoms_of_the_direction_of_a_signal_are_near_it():
    X = dense_points()
    cells = make_cells(X)
    key, index = np.empty(448), np.empty(448, np.int64)
    lengths = np.empty(len(cells.first) - 1)
    for i in (0, 17, 2999):
        n = nearby(X[i], 40, i, False, cells, lengths, key, index)
        found = index[:n]
        assert n == 40
        assert len(set(found) - {i}) == 40
        assert abs(X[found] @ X[i]).min() > np.quantile(abs(X @ X[i]), 0.9)
    assert nearby(X[0], 40, -1, False, cells, lengths, key[:3], index) == 3, "room for three"


def test_products_looked_at_are_counted_row_by_row(used, monkeypatch):
    X = dense_points()
    few = sparse_self_expression(X, lam=0.1)
    assert (few.n_looked > 0).all()
    assert few.n_looked.sum() < few.n_passes.sum() * len(X) / 4
    seen = []
    search = cell_rows.violators

    def watched(*arguments):
        n, looked = search(*arguments)
        seen.append(looked)
        return n, looked

    monkeypatch.setattr(cell_rows, "violators", watched)
    monkeypatch.setattr(cell_rows, "_solve_row", cell_rows._solve_row.py_func)
    again = sparse_self_expression(X[:300], lam=0.1)
    assert again.n_looked.sum() == sum(seen[-int(again.n_passes.sum()) :])
    monkeypatch.setattr(row_blocks, "_LEFT_BY_CELLS", -1.0)
    all_of_them = sparse_self_expression(X, lam=0.1)
    assert_array_equal(all_of_them.n_looked, all_of_them.n_passes * len(X))


@pytest.fixture
def tried(monkeypatch):
    """The blocks that cells solved, which are tried for 300 atoms and more."""
    monkeypatch.setattr(row_blocks, "MOST_STORED", 300)
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 300)
    used = []
    block = row_blocks.CellBlock

    def watched(start, stop, *arguments):
        used.append((start, stop))
        return block(start, stop, *arguments)

    monkeypatch.setattr(row_blocks, "CellBlock", watched)
    return used


@pytest.fixture
def used(tried, monkeypatch):
    """The same, where cells are taken however little they leave out."""
    monkeypatch.setattr(row_blocks, "_LEFT_BY_CELLS", 1.0)
    return tried


def dense_points(n=3000):
    X, _ = make_union_of_subspaces(
        n // 3, n_subspaces=3, n_features=12, dimension=2, random_state=1
    )
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, np.float32),
        ({"l1_ratio": 0.6}, np.float64),
        ({"nonnegative": True}, np.float64),
    ],
)
def test_solution_is_certified_by_its_definition(used, monkeypatch, options, dtype):
    X = dense_points().astype(dtype)
    solution = sparse_self_expression(X, lam=0.1, tol=1e-5, **options)
    assert len(used) > 1, "cells were tried and used"
    gaps = duality_gap(X, X, solution.coef, lam=0.1, zero_diagonal=True, **options)
    assert gaps.max() <= 1.001e-5
    monkeypatch.setattr(row_blocks, "MOST_STORED", 10**6)
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 10**6)
    stored = sparse_self_expression(X, lam=0.1, tol=1e-5, **options)
    objectives = [
        lasso_objective(X, X, s.coef, lam=0.1, l1_ratio=options.get("l1_ratio", 1.0))
        for s in (solution, stored)
    ]
    assert_allclose(*objectives, atol=1.1e-5)


def test_penalties_of_rows_and_a_dictionary_of_its_own(used):
    D = dense_points()
    rng = np.random.default_rng(0)
    Y = D[::3] + 0.05 * rng.standard_normal((1000, 12))
    Y[7] = 0
    lam = rng.uniform(0.05, 0.5, len(Y))
    solution = sparse_code(Y, D, lam=lam, tol=1e-6)
    assert len(used) > 1
    assert duality_gap(Y, D, solution.coef, lam=lam).max() <= 1.001e-6
    assert solution.coef[7].nnz == 0


def test_noise_in_all_directions_is_multiplied_with_all_atoms(tried):
    X = np.random.default_rng(0).standard_normal((600, 40))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    sparse_self_expression(X, lam=0.05, tol=1e-3)
    assert tried == [(0, 4)]  # the first few rows that it was tried on


def test_processes_and_a_file_give_the_answer_of_one_thread(used, tmp_path):
    X = dense_points()
    np.save(tmp_path / "X.npy", X)
    one = sparse_self_expression(X, lam=0.1).coef
    with joblib.parallel_config("loky", n_jobs=2):
        two = sparse_self_expression(np.load(tmp_path / "X.npy", mmap_mode="r"), lam=0.1).coef
    assert (one != two).nnz == 0


def test_a_solve_that_was_stopped_goes_on_to_the_same_codes(used, tmp_path):
    def stopped(blocks, total):
        for n, block in enumerate(blocks, 1):
            yield block
            if n == 3:
                raise KeyboardInterrupt

    X = dense_points()
    with pytest.raises(KeyboardInterrupt):
        sparse_self_expression(X, lam=0.1, directory=tmp_path, progress=stopped)
    assert len(list(tmp_path.glob("*/*.block"))) == 3
    used.clear()
    whole = sparse_self_expression(X, lam=0.1)
    n_blocks = len(used) - 1
    used.clear()
    rest = sparse_self_expression(X, lam=0.1, directory=tmp_path)
    assert len(used) - 1 == n_blocks - 3, "without the rows that it was tried on"
    assert (rest.coef != whole.coef).nnz == 0
    assert_array_equal(rest.n_looked, whole.n_looked)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "one"])
def test_lam_max_by_cells_is_that_of_all_products(kind, monkeypatch):
    """Among rows are zeros, and one that is orthogonal to all atoms up to rounding."""
    X = draw(kind, 3)
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 1)
    monkeypatch.setattr(row_blocks, "_LEFT_BY_CELLS", 1)
    monkeypatch.setattr(row_blocks, "largest_correlations", count := Count(largest_correlations))
    own = Lasso(X, X, 1e-6, 100).lam_max(2, zero_diagonal=True)
    assert_allclose(own, lam_max(X, X, zero_diagonal=True), rtol=1e-14)
    Y = np.random.default_rng(0).standard_normal((200, X.shape[1]))
    Y[0] = 0
    assert_allclose(Lasso(Y, X, 1e-6, 100).lam_max(None), lam_max(Y, X), rtol=1e-14)
    assert count.rows < len(X) + len(Y), "some rows are searched for in the cells"


def test_lam_max_by_products_where_cells_exclude_little(monkeypatch):
    X = draw("random", 0, p=30)
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 1)
    monkeypatch.setattr(row_blocks, "largest_correlations", count := Count(largest_correlations))
    own = Lasso(X, X, 1e-6, 100).lam_max(None, zero_diagonal=True)
    assert count.rows == len(X)
    assert_array_equal(own, lam_max(X, X, zero_diagonal=True))


class Count:
    """A function of rows that counts them."""

    def __init__(self, function):
        self.function, self.rows = function, 0

    def __call__(self, rows, *arguments):
        self.rows += len(rows)
        return self.function(rows, *arguments)
