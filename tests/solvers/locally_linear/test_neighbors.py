import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from twinsolve.solvers import locally_linear_weights


def chosen(X, n_neighbors, queries=None, **settings):
    C = locally_linear_weights(X, n_neighbors=n_neighbors, queries=queries, **settings)
    return C.indices.reshape(C.shape[0], n_neighbors)


def by_a_loop(X, n_neighbors, queries=None):
    """Sort by distance, then by index."""
    rows = []
    for i, distances in enumerate(cdist(X if queries is None else queries, X)):
        others = [j for j in range(len(X)) if queries is not None or j != i]
        rows.append(sorted(sorted(others, key=lambda j: (distances[j], j))[:n_neighbors]))
    return np.array(rows)


def lattice(seed, n_features):
    return np.random.default_rng(seed).integers(0, 3, (60, n_features)).astype(float)


def offset(seed, n_features):
    return 1e6 + np.random.default_rng(seed).standard_normal((60, n_features))


def outliers(seed, n_features):
    X = np.random.default_rng(seed).standard_normal((60, n_features))
    X[::10] *= 1e8
    return X


def tight_clusters(seed, n_features):
    rng = np.random.default_rng(seed)
    return 1e7 * rng.integers(0, 3, (60, 1)) + 1e-3 * rng.standard_normal((60, n_features))


def collinear(seed, n_features):
    return np.outer(np.random.default_rng(seed).integers(0, 40, 60), np.ones(n_features))


@pytest.mark.parametrize("make", [lattice, offset, outliers, tight_clusters, collinear])
@pytest.mark.parametrize("n_features", [1, 3, 20])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), n_neighbors=st.integers(1, 59))
def test_neighbours_are_those_of_a_loop(make, n_features, seed, n_neighbors):
    X = make(seed, n_features)
    # 20 features are searched exhaustively, with rounding of squares and products; 1 and 3 by tree.
    assert (chosen(X, n_neighbors) == by_a_loop(X, n_neighbors)).all()
    queries = np.vstack([X[:5], X[:5] + 1])
    found = chosen(X, n_neighbors, queries, reg=1.0)
    assert (found == by_a_loop(X, n_neighbors, queries)).all()


@pytest.mark.parametrize("n_features", [1, 20])
def test_distances_whose_squares_vanish_are_told_apart(n_features):
    near = np.array([0, 3e-170, 1e-170, 1])
    X = np.zeros((4, n_features))
    X[:, -1] = near
    assert chosen(X, 1)[:, 0].tolist() == [2, 2, 0, 0]
    # Here the search has enough candidates, and no centre is large: 1.0001 of a subnormal square.
    X = np.zeros((6, n_features))
    X[:, 0] = [-1, 0, 1.0001e-160, 1e-160, 1, 0]
    assert chosen(X, 2)[1].tolist() == [3, 5]
    assert chosen(X, 3)[1].tolist() == [2, 3, 5]


def test_rounding_of_subnormal_squares_misleads_no_search():
    """In units of the least square, (a, 0 ..) has 2.49, computed as 2; (b, b, b, b) 2.04 and 4."""
    unit = 2.0**-537
    a, b, c = np.sqrt([2.49, 0.51, 2.6])
    near = np.array([[0, 0, 0, 0], [a, 0, 0, 0], [c, 0, 0, 0], [b, b, b, b]])
    balance = -near.sum(axis=0)  # the query is the mean, where the search is most exact
    far = np.zeros((8, 4))
    far[:, 0] = [0.75, -0.75, 0.625, -0.625, 0.5, -0.5, 0.25, -0.25]
    X = np.vstack([unit * near, [unit * balance], far])
    assert chosen(X, 1)[0].tolist() == [3]
    assert chosen(X, 2)[0].tolist() == [1, 3]
