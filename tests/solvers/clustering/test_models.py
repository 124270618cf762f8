"""The estimators' coefficients, objectives and new points against their definitions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.preprocessing import normalize

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    LeastSquaresSubspaceClustering,
    LocallyLinearSubspaceClustering,
    LowRankRepresentationClustering,
    LowRankSparseSubspaceClustering,
    LowRankSubspaceClustering,
    NearestNeighborClustering,
    OutlierSubspaceClustering,
    SparseSubspaceClustering,
    locally_linear_weights,
    low_rank_sparse_self_expression,
    outlier_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)
from twinsolve.solvers.clustering import keep_largest
from twinsolve.solvers.clustering.order import row_order
from twinsolve.solvers.self_expression import low_rank_gap, outlier_lams_from_alpha
from twinsolve.solvers.sparse_coding import lam_max


def data(seed=0, **settings):
    return make_union_of_subspaces(
        **{"n_samples": 10, "n_subspaces": 3, "n_features": 12, "dimension": 2, "noise": 0.1}
        | settings,
        random_state=seed,
    )


def in_order(X):
    """The points as clusterers see them, so that rounding and ties are the same."""
    return X[row_order(X)]


def corrupted(seed=0):
    """Points of unit norm, of whose 60 entries one or two are off by a half."""
    X, y = data(seed, n_samples=30, noise=0.0, n_features=60, dimension=3)
    return X + 0.5 * (np.random.default_rng(seed).random(X.shape) < 0.02), y


def test_a_constructor_lists_its_parameters():
    model = SparseSubspaceClustering(3, gamma=7.0)
    assert list(model.get_params()) == [
        "affine", "affinity", "assign_labels", "directory", "gamma", "max_iter", "n_clusters",
        "n_jobs", "nonnegative", "progress", "random_state", "tol",
    ]  # fmt: skip
    assert repr(model) == "SparseSubspaceClustering(gamma=7.0, n_clusters=3)"
    assert "nonnegative" not in ElasticNetSubspaceClustering().get_params()
    with pytest.raises(TypeError, match="positional"):
        SparseSubspaceClustering(3, 7.0)


@pytest.mark.parametrize("affine", [False, True])
def test_progress_wraps_the_blocks_of_points(affine):
    seen = []
    X, _ = data(0)
    model = SparseSubspaceClustering(
        3, gamma=5.0, affine=affine, progress=lambda blocks, total: seen.append(total) or blocks
    ).fit(X)
    assert set(seen) == {1}
    assert len(seen) > 1 or not affine  # once for each Bregman iteration
    plain = SparseSubspaceClustering(3, gamma=5.0, affine=affine).fit(X)
    assert (model.coef_ != plain.coef_).nnz == 0


def test_outlier_coefficients_are_those_of_the_solver():
    X, _ = corrupted()
    lam, lam_outlier = outlier_lams_from_alpha(X, 5.0)
    model = OutlierSubspaceClustering(3, alpha=5.0).fit(X)
    expected = outlier_self_expression(X, lam=lam, lam_outlier=lam_outlier)
    assert (model.lam_, model.lam_outlier_) == (lam, lam_outlier)
    assert_allclose(model.coef_.toarray(), expected.coef.toarray(), atol=1e-12)
    assert_allclose(model.objective_, expected.objective)
    assert model.gap_.shape == (90,)
    assert model.gap_.max() <= 1e-6


def test_new_corrupted_points_are_coded_as_the_last_sample_is():
    """The last sample has all others for atoms, as a new point has."""
    X, _ = corrupted()
    model = OutlierSubspaceClustering(3, tol=1e-9).fit(X[:-1])
    found = model._represent_new(X[-1:]).toarray()[0]
    expected = outlier_self_expression(X, lam=model.lam_, lam_outlier=model.lam_outlier_, tol=1e-9)
    assert_allclose(found, expected.coef.toarray()[-1, :-1], atol=1e-5)
    # A training point is a new point as any other: nothing is left out, itself included.
    again = model._represent_new(model._fit_X).toarray()
    assert (again.diagonal() > 0).all()


def test_new_corrupted_points_take_the_cluster_of_smallest_residual_without_outliers():
    X, _ = corrupted()
    model = OutlierSubspaceClustering(3, random_state=0).fit(X[:60])
    coef = model._represent_new(X[60:]).toarray()
    for x, c, found in zip(X[60:], coef, model.predict(X[60:]), strict=True):
        r = x - c @ X[:60]
        clean = x - np.sign(r) * np.maximum(np.abs(r) - model.lam_outlier_ / 2, 0)
        residual = [np.linalg.norm(clean - (c * (model.labels_ == k)) @ X[:60]) for k in range(3)]
        assert found == np.argmin(residual)


def test_nonnegative_coefficients_are_those_of_the_solver():
    X = in_order(data()[0])
    new = data(seed=1)[0]
    lam = lam_max(X, X, zero_diagonal=True) / 20
    model = SparseSubspaceClustering(3, gamma=20, nonnegative=True).fit(X)
    expected = sparse_self_expression(X, lam=lam, nonnegative=True)
    assert_allclose(model.coef_.toarray(), expected.coef.toarray(), atol=1e-12)
    assert model.coef_.min() >= 0
    assert model._represent_new(new).min() >= 0


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_gap_of_least_squares_bounds_the_suboptimality(zero_diagonal, monkeypatch):
    X = in_order(data()[0])
    model = LeastSquaresSubspaceClustering(3, lam=0.3, zero_diagonal=zero_diagonal).fit(X)
    C = model.coef_
    expected = ((X - C @ X) ** 2).sum(axis=1) + 0.3 * (C**2).sum(axis=1)
    assert_allclose(model.objective_, expected)
    assert model.gap_.max() < 1e-20
    moved = C + 0.01 * np.random.default_rng(0).standard_normal(C.shape)
    if zero_diagonal:
        np.fill_diagonal(moved, 0)
    monkeypatch.setattr(
        "twinsolve.solvers.clustering.closed_form.least_squares_self_expression",
        lambda X, **settings: moved,
    )
    worse = clone(model).fit(X)
    above = ((X - moved @ X) ** 2).sum(axis=1) + 0.3 * (moved**2).sum(axis=1)
    above -= ((X - C @ X) ** 2).sum(axis=1) + 0.3 * (C**2).sum(axis=1)
    bound = worse.gap_ * (X**2).sum(axis=1)
    assert (above > 0).all()
    assert (bound >= above).all()
    # The dual objective of r = x - c X, with x_i left out of the constraints if it is barred.
    for i, (x, c) in enumerate(zip(X, moved, strict=True)):
        r = x - c @ X
        reach = X @ r
        reach[i] *= not zero_diagonal
        dual = 2 * r @ x - r @ r - reach @ reach / 0.3
        primal = r @ r + 0.3 * c @ c
        assert_allclose(bound[i], primal - dual, rtol=1e-9)


def test_objective_of_low_rank_models():
    X = in_order(data()[0])
    model = LowRankSubspaceClustering(3, lam=0.3).fit(X)
    C = model.coef_
    expected = ((X - C @ X) ** 2).sum() + 0.3 * np.linalg.norm(C, "nuc")
    assert_allclose(model.objective_, expected)
    assert low_rank_gap(X, C, lam=0.3) < 1e-12

    for model, expected, tol in [
        (
            LowRankRepresentationClustering(3, lam=0.5),
            robust_low_rank_self_expression(X, lam=0.5),
            1e-6,
        ),
        (
            LowRankSparseSubspaceClustering(3, lam=0.3, beta=0.5),
            low_rank_sparse_self_expression(X, lam=0.3, beta=0.5, tol=1e-4),
            1e-4,
        ),
    ]:
        assert_allclose(model.fit(X).coef_, expected.coef)
        assert model.objective_ == float(expected.objective)
        assert model.gap_ == float(expected.gap) <= tol


@pytest.mark.parametrize("kind", [LowRankRepresentationClustering, LowRankSparseSubspaceClustering])
def test_new_points_go_through_the_linear_map_to_the_coefficients(kind):
    X, _ = data(n_features=40, noise=0.02)
    new = data(seed=1, n_features=40)[0][:5]
    model = kind(3, random_state=0).fit(X)
    assert_allclose(model._represent_new(X), model.coef_, atol=1e-9)
    assert_allclose(model._represent_new(new), new @ np.linalg.pinv(X) @ model.coef_, atol=1e-9)


def test_locally_linear_coefficients_are_the_weights():
    X = in_order(data()[0])
    new = data(seed=1)[0][:5]
    model = LocallyLinearSubspaceClustering(3, n_neighbors=4, reg=0.1).fit(X)
    expected = locally_linear_weights(X, n_neighbors=4, reg=0.1)
    assert (model.coef_ != expected).nnz == 0
    expected = locally_linear_weights(X, n_neighbors=4, reg=0.1, queries=new)
    assert (model._represent_new(new) != expected).nnz == 0


@pytest.mark.parametrize(("metric", "weights"), [("euclidean", "gaussian"), ("cosine", "binary")])
def test_nearest_neighbours_as_a_loop(metric, weights):
    X, _ = data(n_features=4)
    X[3] = X[2]
    X = in_order(X)
    model = NearestNeighborClustering(3, n_neighbors=4, metric=metric, weights=weights).fit(X)
    Z = normalize(X) if metric == "cosine" else X
    distance = np.linalg.norm(Z[:, None] - Z, axis=2)
    np.fill_diagonal(distance, np.inf)
    reach = np.sort(distance, axis=1)[:, 3]
    expected = np.zeros((len(X), len(X)))
    for i in range(len(X)):
        for j in np.argsort(distance[i])[:4]:
            gaussian = np.exp(-(distance[i, j] ** 2) / (reach[i] * reach[j]))
            expected[i, j] = gaussian if weights == "gaussian" else 1
    assert_allclose(model.coef_.toarray(), expected, atol=1e-12)


def test_coincident_neighbours_have_weight_one():
    X = np.repeat([[0.0, 0.0], [1.0, 0.0]], 4, axis=0)
    model = NearestNeighborClustering(2, n_neighbors=3, weights="gaussian").fit(X)
    assert_allclose(model.coef_.toarray(), np.kron(np.eye(2), 1 - np.eye(4)))
    assert (model.labels_ == model.labels_[np.repeat([0, 4], 4)]).all()
    assert isinstance(model.coef_, csr_array)
    assert (model.predict([[0.1, 0.0]]) == model.labels_[0]).all()
    assert model._represent_new(np.array([[0.1, 0.0]])).nnz == 0


def test_labels_of_new_points_do_not_depend_on_how_codes_are_stored():
    X, _ = make_union_of_subspaces(20, n_subspaces=3, random_state=0)
    model = LeastSquaresSubspaceClustering(3, random_state=0).fit(X[:50])
    codes = model.coefficients(X[50:])
    assert (model.assign(X[50:], csr_array(codes), model.labels_) == model.predict(X[50:])).all()
    sparse = keep_largest(codes, 2)  # 2 of 50 stay sparse
    found = model.assign(X[50:], csr_array(sparse), model.labels_)
    assert (found == model.assign(X[50:], np.asarray(sparse), model.labels_)).all()
