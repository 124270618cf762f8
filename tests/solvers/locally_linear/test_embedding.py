import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import block_diag, csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import LocallyLinearEmbedding as Peer

from twinsolve.solvers import locally_linear_embedding, locally_linear_weights


def weights(seed, n_samples, n_features=3, n_neighbors=8, **settings):
    X = np.random.default_rng(seed).standard_normal((n_samples, n_features))
    return locally_linear_weights(X, n_neighbors=n_neighbors, **settings)


def cost(C, Y):
    return ((Y - C @ Y) ** 2).sum()


def optimum(C, n_components):
    """Sum of the smallest squared singular values of ``I - C`` on centred vectors."""
    A = np.eye(C.shape[0]) - C.toarray()
    singular = np.linalg.svd(A - A.mean(axis=1, keepdims=True), compute_uv=False)
    return (singular[::-1][1 : n_components + 1] ** 2).sum()


@pytest.mark.parametrize("n_samples", [40, 300])
def test_the_embedding_of_the_weights_se10_and_erratum_e3c(n_samples):
    """Eigenvectors 2 to d + 1 of ``(I - C)^T (I - C)``; unit covariance takes a factor sqrt(N)."""
    rng, N, d = np.random.default_rng(0), n_samples, 2
    X = rng.standard_normal((N, 3))
    C = locally_linear_weights(X, n_neighbors=8)
    M = (np.eye(N) - C).T @ (np.eye(N) - C)
    values, vectors = np.linalg.eigh(M)
    found = locally_linear_embedding(C, d, random_state=0)
    Y = found.coordinates
    assert_allclose(Y @ Y.T, vectors[:, 1 : d + 1] @ vectors[:, 1 : d + 1].T, atol=1e-9)
    assert_allclose(Y.sum(axis=0), 0, atol=1e-9)
    assert_allclose(Y.T @ Y, np.eye(d), atol=1e-12)
    # The reference diagonalises M, whose entries of about 1 leave its eigenvalues 1e-15.
    assert_allclose(found.eigenvalues, values[1 : d + 1], rtol=1e-9, atol=1e-14)
    assert_allclose(cost(C, Y), values[1 : d + 1].sum(), rtol=1e-10, atol=1e-14)
    theirs = Peer(n_neighbors=8, n_components=d, eigen_solver="dense").fit(X)
    assert_allclose(found.eigenvalues.sum(), theirs.reconstruction_error_, rtol=1e-9, atol=1e-14)
    assert_allclose(Y @ Y.T, theirs.embedding_ @ theirs.embedding_.T, atol=1e-4)
    # The constraint as printed, Y^T Y = I, is not the unit covariance of the words.
    assert_allclose(Y.T @ Y / N, np.eye(d) / N, atol=1e-12)
    scaled = np.sqrt(N) * Y
    assert_allclose(scaled.T @ scaled / N, np.eye(d), atol=1e-10)
    assert_allclose(cost(C, scaled), N * found.eigenvalues.sum(), rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_samples=st.integers(14, 400),
    n_neighbors=st.integers(6, 12),
    n_components=st.integers(1, 6),
    n_features=st.integers(1, 8),
)
def test_no_coordinates_cost_less(seed, n_samples, n_neighbors, n_components, n_features):
    """SE-10: the objective is the sum of eigenvalues 2 to d + 1, and the certificate is right."""
    C = weights(seed, n_samples, n_features, n_neighbors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # chance may leave a closed part
        warnings.simplefilter("error", ConvergenceWarning)
        found = locally_linear_embedding(C, n_components, random_state=seed)
    Y, N = found.coordinates, n_samples
    # Rounding of (I - C)^T (I - C), whose norm is below 100, moves its eigenvalues by 1e-14.
    assert_allclose(cost(C, Y), optimum(C, n_components), rtol=1e-9, atol=1e-13)
    assert_allclose(cost(C, Y), found.eigenvalues.sum(), rtol=1e-9, atol=1e-20)
    image = Y - C @ Y
    residual = np.linalg.norm(image - C.T @ image - Y * found.eigenvalues, axis=0)
    assert_allclose(found.residual, residual, rtol=1e-6, atol=1e-13)
    assert (residual <= np.maximum(1e-6 * found.eigenvalues, 1e-11)).all()
    basis = np.c_[np.full(N, N**-0.5), Y]
    assert np.abs(basis.T @ basis - np.eye(n_components + 1)).max() < 1e-13
    assert_allclose(np.abs(basis.T @ basis - np.eye(n_components + 1)).max(), found.orthogonality)
    assert found.converged
    assert (np.diff(found.eigenvalues) >= 0).all()


def test_eigenvalues_at_the_level_of_rounding_hide_no_others():
    """More neighbours than features reproduce linear functions: two eigenvalues are nearly 0."""
    for reg in [1e-12, 1e-6]:
        C = weights(0, 500, n_features=2, n_neighbors=8, reg=reg)
        found = locally_linear_embedding(C, 6, random_state=0)
        assert found.converged
        assert found.eigenvalues[1] < 1e-3 * found.eigenvalues[-1]
        assert_allclose(found.eigenvalues.sum(), optimum(C, 6), rtol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_the_objective_is_exact_even_at_the_level_of_rounding(seed):
    """Residuals of eigenvalues this small fall to rounding before the objective does."""
    for n_features, n_neighbors, reg in ((1, 3, 1e-5), (2, 4, 3e-6)):
        C = weights(seed, 500, n_features, n_neighbors, reg=reg)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # pieces of a line
            warnings.simplefilter("error", ConvergenceWarning)
            found = locally_linear_embedding(C, 3, random_state=0)
        rounding = np.finfo(float).eps * np.linalg.norm(np.eye(500) - C.toarray(), 2) ** 2
        assert_allclose(cost(C, found.coordinates), optimum(C, 3), rtol=1e-9, atol=rounding)


def test_parts_of_a_disconnected_graph_are_told_apart():
    for n_samples in [20, 150]:
        C = block_diag([weights(seed, n_samples) for seed in range(3)], format="csr")
        with pytest.warns(UserWarning, match="the neighbour graph falls into 3 parts"):
            found = locally_linear_embedding(C, 4, random_state=0)
        assert_allclose(found.eigenvalues[:2], 0, atol=1e-20)
        assert_allclose(found.eigenvalues.sum(), optimum(C, 4), rtol=1e-9)
        parts = found.coordinates[:, :2].reshape(3, n_samples, 2)
        assert_allclose(parts, np.broadcast_to(parts[:, :1], parts.shape), atol=1e-8)
        assert np.linalg.norm(np.diff(parts[:, 0], axis=0), axis=1).min() > 0.05
        assert found.orthogonality < 1e-13


def test_a_part_may_be_closed_though_others_point_into_it():
    """Connected in both directions is what counts: the last point hangs between two parts."""
    C = block_diag([weights(0, 20), weights(1, 20), csr_array((1, 1))], format="lil")
    C[40, 0], C[40, 20] = 0.5, 0.5
    with pytest.warns(UserWarning, match="falls into 2 parts"):
        found = locally_linear_embedding(C.tocsr(), 1)
    y = found.coordinates[:, 0]
    assert_allclose(y[40], (y[0] + y[20]) / 2, atol=1e-10)
    assert found.eigenvalues[0] < 1e-20


def test_starts_change_nothing_but_rounding_and_signs_are_fixed():
    C = weights(0, 300)
    first = locally_linear_embedding(C, 2, random_state=0)
    again = locally_linear_embedding(C, 2, random_state=0)
    other = locally_linear_embedding(C, 2, random_state=1)
    assert (first.coordinates == again.coordinates).all()
    assert_allclose(other.coordinates, first.coordinates, atol=1e-7)
    largest = np.abs(first.coordinates).argmax(axis=0)
    assert (first.coordinates[largest, [0, 1]] > 0).all()


def test_the_certificate_is_that_of_the_float32_coordinates_returned():
    C = csr_array(weights(0, 300), dtype=np.float32)
    found = locally_linear_embedding(C, 2, random_state=0)
    assert found.coordinates.dtype == np.float32
    Y, C = found.coordinates.astype(np.float64), C.toarray().astype(np.float64)
    A = np.eye(300) - C / C.sum(axis=1, keepdims=True)
    assert_allclose(found.eigenvalues, ((A @ Y) ** 2).sum(axis=0), rtol=1e-9)
    residual = np.linalg.norm(A.T @ (A @ Y) - Y * found.eigenvalues, axis=0)
    assert_allclose(found.residual, residual, rtol=1e-6, atol=1e-15)
    Z = np.column_stack([np.full(300, 300**-0.5), Y])
    assert_allclose(found.orthogonality, np.abs(Z.T @ Z - np.eye(3)).max(), rtol=1e-6, atol=1e-15)
    assert found.converged


def test_stopping_early_is_said():
    C = weights(0, 400)
    with pytest.warns(ConvergenceWarning, match="after 1 steps exceed tol=1e-12"):
        found = locally_linear_embedding(C, 3, tol=1e-12, max_iter=1, random_state=0)
    assert not found.converged
    assert found.n_iter == 1


def test_many_components_are_the_optimum_too():
    """Ten blocks of the iteration fill the space, or would."""
    for n_samples, n_components in [(201, 19), (201, 49), (400, 99)]:
        C = weights(0, n_samples)
        found = locally_linear_embedding(C, n_components, random_state=0)
        assert found.converged
        assert_allclose(cost(C, found.coordinates), optimum(C, n_components), rtol=1e-9)
        assert found.orthogonality < 1e-13


def test_zeros_stored_in_the_weights_link_no_parts():
    C = block_diag([weights(0, 20), weights(1, 20)], format="lil").tocoo()
    rows, columns = np.append(C.coords[0], [0, 20]), np.append(C.coords[1], [20, 0])
    linked = csr_array((np.append(C.data, [0.0, 0.0]), (rows, columns)), shape=C.shape)
    assert linked.nnz == C.nnz + 2
    with pytest.warns(UserWarning, match="falls into 2 parts"):
        locally_linear_embedding(linked, 1)
    assert linked.nnz == C.nnz + 2


def test_rows_are_divided_by_their_sums():
    C = weights(0, 50)
    factor = 1 + 5e-5 * np.random.default_rng(0).uniform(-1, 1, (50, 1))
    found = locally_linear_embedding(C.toarray() * factor, 2)
    assert_allclose(found.coordinates, locally_linear_embedding(C, 2).coordinates, atol=1e-10)
