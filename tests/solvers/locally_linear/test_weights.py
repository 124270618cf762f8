import warnings

import numpy as np
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose
from scipy.sparse import coo_array, csr_array
from sklearn.neighbors import NearestNeighbors, kneighbors_graph

from twinsolve.solvers import locally_linear_weights
from twinsolve.solvers.locally_linear import locally_linear_residual
from twinsolve.solvers.oracles.locally_linear import reconstruction_weights


def adversarial(kind, rng):
    X = rng.standard_normal((16, 3))
    if kind == "duplicates":
        X[8:] = X[:8]
    elif kind == "collinear":
        X = np.outer(rng.standard_normal(16), rng.standard_normal(3))
    elif kind == "outlier":
        X[0] = 1e6
    elif kind == "offset":
        X += 1e6
    elif kind == "tiny":
        X *= 1e-150
    elif kind == "huge":
        X *= 1e150
    return X


KINDS = ["random", "duplicates", "collinear", "outlier", "offset", "tiny", "huge"]


def test_agrees_with_the_oracle_on_hard_points():
    for kind in KINDS:
        n_neighbors = 7
        X = adversarial(kind, np.random.default_rng(n_neighbors))
        C = locally_linear_weights(X, n_neighbors=n_neighbors)
        assert locally_linear_residual(X, C).max() < 1e-11
        for i in range(0, 16, 3):
            neighbors = C.indices[C.indptr[i] : C.indptr[i + 1]]
            local = X[neighbors] - X[i]
            # The oracle squares: give it the scale of one, and no offset.
            local /= np.abs(local).max()
            expected = reconstruction_weights(np.zeros(3), local)
            # Interior points leave about 1e-8 over a Hessian of condition 1e3 to 1e4.
            assert_allclose(C.toarray()[i, neighbors], expected, atol=1e-4)


def test_weights_have_signs_and_depend_on_all_neighbours_se_9():
    """With the closed form of footnote 1."""
    X = np.random.default_rng(0).standard_normal((20, 4))
    C = locally_linear_weights(X, n_neighbors=3, reg=0.0)
    for i, neighbors in enumerate(C.indices.reshape(20, 3)):
        local = X[neighbors] - X[i]
        expected = np.linalg.solve(local @ local.T, np.ones(3))
        assert_allclose(C.toarray()[i, neighbors], expected / expected.sum(), rtol=1e-8)
    assert_allclose(C.sum(axis=1), 1)
    assert C.data.min() < -0.1
    first, _, third = C.indices[:3]
    moved = X.copy()
    moved[third] += 0.05 * (moved[third] - X[0])
    D = locally_linear_weights(moved, graph=C != 0, reg=0.0)
    assert abs(C.toarray()[0, first] - D.toarray()[0, first]) > 1e-3


def test_a_graph_replaces_the_search():
    X = np.random.default_rng(0).standard_normal((30, 3))
    expected = locally_linear_weights(X, n_neighbors=5)
    search = NearestNeighbors(n_neighbors=5).fit(X)
    for graph in (
        kneighbors_graph(X, 5),
        kneighbors_graph(X, 5, mode="distance").tocoo(),
        kneighbors_graph(X, 6, include_self=True),
        search.kneighbors_graph(X, 6, mode="distance"),
    ):
        C = locally_linear_weights(X, graph=graph)
        assert (C.indices == expected.indices).all()
        assert (C.data == expected.data).all()
    queries = X[:4] + 0.1
    expected = locally_linear_weights(X, n_neighbors=5, queries=queries)
    C = locally_linear_weights(X, graph=search.kneighbors_graph(queries), queries=queries)
    assert (C.indices == expected.indices).all()
    assert (C.data == expected.data).all()


def test_a_graph_with_rows_of_different_length():
    X = np.random.default_rng(0).standard_normal((12, 3))
    graph = csr_array(np.triu(np.ones((12, 12)), 1) + np.eye(12)[:, ::-1])
    before = graph.copy()
    C = locally_linear_weights(X, graph=graph)
    pattern = graph.toarray() != 0
    np.fill_diagonal(pattern, False)
    assert ((C.toarray() != 0) == pattern).all()
    assert_allclose(C.sum(axis=1), 1)
    assert locally_linear_residual(X, C).max() < 1e-11
    assert (graph.indices == before.indices).all()


def test_zeros_stored_in_a_graph_are_neighbours_and_repeated_entries_are_one():
    X = np.array([[0.0], [1.0], [3.0]])
    rows, columns = [0, 0, 1, 1, 2, 2, 2], [2, 1, 0, 2, 1, 0, 1]
    stored = csr_array((np.ones(8), [2, 1, 2, 2, 0, 1, 0, 1], [0, 3, 5, 8]), shape=(3, 3))
    expected = locally_linear_weights(X, n_neighbors=2)
    for graph in (coo_array((np.zeros(7), (rows, columns)), shape=(3, 3)), stored):
        C = locally_linear_weights(X, graph=graph)
        assert (C.indices == expected.indices).all()
        assert (C.data == expected.data).all()
    assert stored.nnz == 8


def test_residual_sees_other_weights():
    X = np.random.default_rng(0).standard_normal((12, 3))
    C = locally_linear_weights(X, n_neighbors=4)
    assert locally_linear_residual(X, C.tocoo()).max() < 1e-11
    C.data = np.full_like(C.data, 0.25)
    assert locally_linear_residual(X, C).min() > 1e-3
    with pytest.raises(ValueError, match="weights: every row must have"):
        locally_linear_residual(X, C - C)
    with pytest.raises(ValueError, match="weights: must be a sparse array"):
        locally_linear_residual(X, C.toarray())


def test_out_of_sample_rows_reconstruct_the_queries():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    queries = 0.5 * X[:4] + 0.5 * X[4:8]
    C = locally_linear_weights(X, n_neighbors=4, reg=1e-12, queries=queries)
    assert C.shape == (4, 30)
    assert_allclose(C @ X, queries, atol=1e-6)
    assert locally_linear_residual(X, C, reg=1e-12, queries=queries).max() < 1e-9


@pytest.mark.slow
def test_processes_change_nothing():
    X = np.random.default_rng(0).standard_normal((5000, 3))
    whole = locally_linear_weights(X, n_neighbors=5)
    with parallel_config("loky", n_jobs=2):
        configured = locally_linear_weights(X, n_neighbors=5)
    assert (configured != whole).nnz == 0


def test_more_neighbours_than_features_need_regularisation():
    """No pivot is exactly zero here, but what is left of it is rounding."""
    X = np.random.default_rng(0).standard_normal((10, 2))
    with pytest.raises(ValueError, match="reg: a local Gram matrix is singular"):
        locally_linear_weights(X, n_neighbors=5, reg=0.0)
    assert_allclose(locally_linear_weights(X, n_neighbors=2, reg=0.0).sum(axis=1), 1)


def test_a_reg_beyond_all_bounds_leaves_equal_weights():
    X = np.random.default_rng(0).standard_normal((10, 2))
    C = locally_linear_weights(X, n_neighbors=5, reg=1.7e308)
    assert_allclose(C.data, 1 / 5, rtol=1e-14)
    assert locally_linear_residual(X, C, reg=1.7e308).max() < 1e-14


def test_singular_systems_name_a_query_that_equals_its_neighbour():
    X = np.random.default_rng(0).standard_normal((10, 2))
    with pytest.raises(ValueError, match="or a query equals a neighbour"):
        locally_linear_weights(X, n_neighbors=2, reg=0.0, queries=X[:1])


def test_residual_of_weights_of_another_sum_or_size():
    X = np.random.default_rng(0).standard_normal((12, 3))
    C = locally_linear_weights(X, n_neighbors=4)
    assert_allclose(locally_linear_residual(X, 2 * C), 1, rtol=1e-11)
    zero = C.copy()
    zero.data[:4] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert locally_linear_residual(X, zero)[0] == 1
        assert (locally_linear_residual(X, 1e300 * C) > 1e299).all()
    for bad in (np.nan, np.inf):
        zero.data[0] = bad
        with pytest.raises(ValueError, match="weights: "):
            locally_linear_residual(X, zero)
