import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import make_swiss_roll
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import LocallyLinearEmbedding as Peer
from sklearn.utils.estimator_checks import check_estimator

from twinsolve.solvers import (
    LocallyLinearEmbedding,
    locally_linear_embedding,
    locally_linear_weights,
)


@pytest.mark.filterwarnings("default", "ignore:the neighbour graph falls")
def test_scikit_learn_checks():
    check_estimator(LocallyLinearEmbedding(), on_skip=None)


def roll(n_samples=1000):
    return make_swiss_roll(n_samples, noise=0.02, random_state=0)


def test_fit_is_weights_and_their_embedding():
    X, _ = roll(300)
    model = LocallyLinearEmbedding(
        n_neighbors=9, n_components=3, reg=1e-2, tol=1e-8, random_state=3
    ).fit(X)
    C = locally_linear_weights(X, n_neighbors=9, reg=1e-2)
    found = locally_linear_embedding(C, 3, tol=1e-8, random_state=3)
    assert (model.weights_ != C).nnz == 0
    assert (model.embedding_ == found.coordinates).all()
    assert model.reconstruction_error_ == found.eigenvalues.sum()
    assert (model.residual_ == found.residual).all()
    assert model.n_iter_ == found.n_iter
    assert model.n_features_in_ == 3
    assert [*model.get_feature_names_out()] == [f"locallylinearembedding{i}" for i in range(3)]


def test_new_points_join_their_neighbours():
    X, t = roll(1100)
    train, new = X[:1000], X[1000:]
    model = LocallyLinearEmbedding(n_neighbors=12, random_state=0).fit(train)
    Y = model.transform(new)
    weights = locally_linear_weights(train, n_neighbors=12, queries=new)
    assert_allclose(Y, weights @ model.embedding_, rtol=1e-12, atol=1e-15)
    assert np.abs(np.corrcoef(t[1000:], Y.T)[0, 1:]).max() > 0.95
    theirs = Peer(n_neighbors=12, random_state=0).fit(train)
    theirs.embedding_ = model.embedding_
    assert_allclose(Y, theirs.transform(new), atol=1e-9)


def test_constant_data_and_as_many_neighbours_as_there_are():
    """All points look alike: coordinates are arbitrary, but their cost is the least."""
    for n_samples in [6, 300]:
        n_neighbors = min(n_samples - 1, 20)
        model = LocallyLinearEmbedding(n_neighbors=n_neighbors, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Y = model.fit_transform(np.ones((n_samples, 2)))
        assert_allclose(Y.T @ Y, np.eye(2), atol=1e-12)
        A = np.eye(n_samples) - model.weights_.toarray()
        least = np.linalg.eigvalsh(A.T @ A)[1:3].sum()
        assert_allclose(model.reconstruction_error_, least, rtol=1e-9)
        assert_allclose(((A @ Y) ** 2).sum(), least, rtol=1e-9)


def test_settings_reach_every_step():
    X, _ = roll(300)
    model = LocallyLinearEmbedding(n_neighbors=8, reg=1.0, tol=1e-12, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="after 1 steps"):
        model.fit(X)
    assert model.n_iter_ == 1
    queries = X[:20] + 0.3
    C = locally_linear_weights(X, n_neighbors=8, reg=1.0, queries=queries)
    assert_allclose(model.transform(queries), C @ model.embedding_, rtol=1e-12, atol=1e-15)
    other = locally_linear_weights(X, n_neighbors=8, queries=queries)
    assert np.abs((C - other) @ model.embedding_).max() > 1e-4
