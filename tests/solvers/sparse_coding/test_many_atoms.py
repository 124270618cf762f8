"""With many atoms, rows that start from a sample, and stay with near atoms, get the same codes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import sparse_code, sparse_self_expression
from twinsolve.solvers.kernels import many_atoms, row_pool
from twinsolve.solvers.sparse_coding import duality_gap, row_blocks

TOL = 1e-9


@pytest.fixture(scope="module")
def X():
    return make_union_of_subspaces(100, n_subspaces=4, n_features=20, noise=0.3, random_state=0)[0]


def _many(monkeypatch, **constants):
    """Let the atoms count as many; no Gram matrix is stored."""
    monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    usual = {"_FEWEST": 8, "_ENTRIES": 0, "_SAMPLE": 50, "_COSTLY": 0.0}
    for name, value in (usual | constants).items():
        monkeypatch.setattr(many_atoms, name, value)


@pytest.mark.parametrize("near", [1, 7, 200])
@pytest.mark.parametrize(
    "options",
    [{}, {"nonnegative": True}, {"l1_ratio": 0.7}, {"l1_ratio": 0.4, "nonnegative": True}],
)
@pytest.mark.parametrize("lam", [0.3, 0.02, 1e-7])
def test_codes_are_certified_and_those_of_few_atoms(X, monkeypatch, lam, options, near):
    expected = sparse_self_expression(X, lam=lam, tol=TOL, **options)
    _many(monkeypatch, _NEAR=near)
    monkeypatch.setattr(row_pool, "_PART", 150)
    solution = sparse_self_expression(X, lam=lam, tol=TOL, **options)
    gap = duality_gap(X, X, solution.coef, lam=lam, zero_diagonal=True, **options)
    assert gap.max() <= 1.01 * TOL
    assert (solution.coef.diagonal() == 0).all()
    energy = (X**2).sum(axis=1)
    assert_allclose(solution.objective, expected.objective, atol=2 * TOL * energy.max())


def test_fewer_products_with_all_atoms(X, monkeypatch):
    monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    before = sparse_self_expression(X, lam=0.02)
    _many(monkeypatch)
    after = sparse_self_expression(X, lam=0.02)
    assert after.n_passes.mean() < 0.7 * before.n_passes.mean()
    assert_array_equal(after.n_looked, after.n_passes * len(X))


@pytest.mark.parametrize("constants", [{"_FEWEST": 500}, {"_ENTRIES": 8001}, {"_COSTLY": 1e9}])
def test_few_atoms_and_many_nonzeros_change_nothing(X, monkeypatch, constants):
    monkeypatch.setattr(row_blocks, "MOST_STORED", 0)
    before = sparse_self_expression(X, lam=0.02)
    _many(monkeypatch, **constants)
    assert_array_equal(sparse_self_expression(X, lam=0.02).coef.data, before.coef.data)


def test_rows_of_zeros_and_atoms_of_zeros(X, monkeypatch):
    D = X.copy()
    D[::8] = 0.0  # all of the sample
    Y = np.vstack([X[:5], np.zeros(20)])
    _many(monkeypatch)
    solution = sparse_code(Y, D, lam=0.1, tol=TOL)
    assert duality_gap(Y, D, solution.coef, lam=0.1).max() <= 1.01 * TOL
    assert solution.coef[[5]].nnz == 0
