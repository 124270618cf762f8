import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.manifold import LocallyLinearEmbedding
from sklearn.manifold._locally_linear import barycenter_kneighbors_graph

from twinsolve.solvers import locally_linear_residual, locally_linear_weights
from twinsolve.solvers.oracles.locally_linear import reconstruction_weights


@pytest.mark.parametrize(("n_features", "n_neighbors"), [(3, 3), (10, 4), (2, 8)])
def test_agrees_with_scikit_learn(n_features, n_neighbors):
    X = np.random.default_rng(0).standard_normal((40, n_features))
    ours = locally_linear_weights(X, n_neighbors=n_neighbors)
    theirs = barycenter_kneighbors_graph(X, n_neighbors, reg=1e-3)
    assert_allclose(ours.toarray(), theirs.toarray(), atol=1e-9)


def test_agrees_with_the_oracle():
    X = np.random.default_rng(0).standard_normal((15, 4))
    C = locally_linear_weights(X, n_neighbors=6, reg=1e-2)
    for i in range(5):
        neighbors = C.indices[C.indptr[i] : C.indptr[i + 1]]
        expected = reconstruction_weights(X[i], X[neighbors], reg=1e-2)
        # Interior points leave about 1e-8 over a Hessian of condition 1e2.
        assert_allclose(C.toarray()[i, neighbors], expected, atol=1e-5)


def test_neighbours_are_the_nearest_without_the_point_itself():
    X = np.random.default_rng(0).standard_normal((20, 3))
    C = locally_linear_weights(X, n_neighbors=5)
    distances = np.linalg.norm(X[:, None] - X, axis=-1)
    np.fill_diagonal(distances, np.inf)
    expected = np.sort(np.argsort(distances, axis=1)[:, :5], axis=1)
    assert (C.indices.reshape(20, 5) == expected).all()
    assert (C.diagonal() == 0).all()


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 100), n_features=st.integers(2, 6))
def test_invariant_to_rotation_scaling_and_translation(seed, scale, n_features):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, n_features))
    rotation = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    moved = scale * X @ rotation + rng.standard_normal(n_features)
    C, D = (locally_linear_weights(Z, n_neighbors=4) for Z in (X, moved))
    # Condition at most 4 / reg = 4e3, times rounding of the moved coordinates.
    assert_allclose(D.toarray(), C.toarray(), atol=1e-8)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), n_neighbors=st.integers(1, 11))
def test_satisfies_its_optimality_conditions(seed, n_neighbors):
    X = np.random.default_rng(seed).standard_normal((12, 3))
    C = locally_linear_weights(X, n_neighbors=n_neighbors)
    assert locally_linear_residual(X, C).max() < 1e-11


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


def test_equally_distant_points_are_taken_in_order():
    C = locally_linear_weights([[-1.0], [1.0], [3.0]], n_neighbors=1)
    assert C.indices.tolist() == [1, 0, 1]


def test_duplicates_get_equal_weights():
    C = locally_linear_weights(np.ones((4, 2)), n_neighbors=3)
    assert_allclose(C.toarray(), (1 - np.eye(4)) / 3, rtol=1e-14)


def test_blocks_change_nothing(monkeypatch):
    X = np.random.default_rng(0).standard_normal((20, 3))
    whole = locally_linear_weights(X, n_neighbors=5).toarray()
    monkeypatch.setattr("twinsolve.solvers.locally_linear.weights._BLOCK_ENTRIES", 60)
    assert_allclose(locally_linear_weights(X, n_neighbors=5).toarray(), whole, rtol=1e-14)


def test_float32_is_kept():
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    C = locally_linear_weights(X, n_neighbors=5)
    assert C.dtype == np.float32
    exact = locally_linear_weights(X.astype(np.float64), n_neighbors=5)
    assert_allclose(C.toarray(), exact.toarray(), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_neighbors": 5}, r"n_neighbors: must be a whole number in \[1, 4\], got 5"),
        ({"n_neighbors": 0}, "n_neighbors: must be"),
        ({"n_neighbors": 2, "reg": -1.0}, "reg: must be >= 0"),
        ({"n_neighbors": 2, "queries": np.ones((1, 3))}, "queries: has 3 columns"),
    ],
)
def test_bad_input_is_named(settings, words):
    with pytest.raises(ValueError, match=words):
        locally_linear_weights(np.random.default_rng(0).standard_normal((5, 2)), **settings)


def test_singular_systems_ask_for_regularisation():
    X = np.repeat(np.arange(4.0)[:, None], 2, axis=1)
    with pytest.raises(ValueError, match="reg: a local Gram matrix is singular"):
        locally_linear_weights(X, n_neighbors=3, reg=0.0)


def test_the_embedding_of_the_weights_se10_and_erratum_e3c():
    """Eigenvectors 2 to d + 1 of ``(I - C)^T (I - C)``; unit covariance takes a factor sqrt(N)."""
    rng = np.random.default_rng(0)
    X, N, d = rng.standard_normal((40, 3)), 40, 2
    C = locally_linear_weights(X, n_neighbors=8).toarray()
    M = (np.eye(N) - C).T @ (np.eye(N) - C)
    values, vectors = np.linalg.eigh(M)
    Y = vectors[:, 1 : d + 1]
    assert_allclose(Y.sum(axis=0), 0, atol=1e-9)
    assert_allclose(((Y - C @ Y) ** 2).sum(), values[1 : d + 1].sum(), rtol=1e-10)
    for _ in range(20):  # no other centred orthonormal coordinates do better
        other = rng.standard_normal((N, d))
        other = np.linalg.qr(other - other.mean(axis=0))[0]
        assert ((other - C @ other) ** 2).sum() > values[1 : d + 1].sum()
    theirs = LocallyLinearEmbedding(n_neighbors=8, n_components=d, eigen_solver="dense").fit(X)
    assert_allclose(values[1 : d + 1].sum(), theirs.reconstruction_error_, rtol=1e-9)
    assert_allclose(Y @ Y.T, theirs.embedding_ @ theirs.embedding_.T, atol=1e-4)
    # The constraint as printed, Y^T Y = I, is not the unit covariance of the words.
    assert_allclose(Y.T @ Y / N, np.eye(d) / N, atol=1e-12)
    scaled = np.sqrt(N) * Y
    assert_allclose(scaled.T @ scaled / N, np.eye(d), atol=1e-10)
    assert_allclose(((scaled - C @ scaled) ** 2).sum(), N * values[1 : d + 1].sum(), rtol=1e-10)
