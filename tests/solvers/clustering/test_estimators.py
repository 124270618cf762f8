import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import ClusterMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize
from sklearn.utils.estimator_checks import check_estimator

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    KSubspaces,
    LeastSquaresSubspaceClustering,
    LocallyLinearSubspaceClustering,
    LowRankRepresentationClustering,
    LowRankSparseSubspaceClustering,
    LowRankSubspaceClustering,
    MotionSegmentation,
    NearestNeighborClustering,
    OMPSubspaceClustering,
    OutlierSubspaceClustering,
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
    clustering,
    least_squares_self_expression,
    low_rank_self_expression,
    omp_self_expression,
    sparse_code,
    sparse_self_expression,
)
from twinsolve.solvers.clustering import (
    eigengap_n_clusters,
    keep_l1_mass,
    scale_by_row_maximum,
    spectral_labels,
    symmetric_affinity,
)
from twinsolve.solvers.clustering.order import row_order
from twinsolve.solvers.sparse_coding import duality_gap, lam_max

SELF_EXPRESSIVE = [
    SparseSubspaceClustering,
    ElasticNetSubspaceClustering,
    OMPSubspaceClustering,
    LeastSquaresSubspaceClustering,
    LowRankSubspaceClustering,
    OutlierSubspaceClustering,
    LowRankRepresentationClustering,
    LowRankSparseSubspaceClustering,
    LocallyLinearSubspaceClustering,
    ThresholdingSubspaceClustering,
    NearestNeighborClustering,
]
ALL = [*SELF_EXPRESSIVE, KSubspaces]
QUICK: dict[Any, dict[str, Any]] = {LowRankSparseSubspaceClustering: {"tol": 1e-2}}
# They join what is near: a point at the origin too, and a subspace needs points close together.
LOCAL = [LocallyLinearSubspaceClustering, NearestNeighborClustering]


def expected_failures(estimator):
    if isinstance(estimator, OMPSubspaceClustering):
        return {"check_clustering": "its blobs in the plane are no subspaces: two points span all"}
    return {}


@pytest.mark.parametrize(
    "estimator",
    [
        *(kind(**QUICK.get(kind, {})) for kind in ALL),
        SparseSubspaceClustering(affine=True),
        SparseSubspaceClustering(nonnegative=True),
        NearestNeighborClustering(metric="cosine", weights="gaussian"),
        MotionSegmentation(),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator):
    check_estimator(estimator, expected_failed_checks=expected_failures(estimator), on_skip=None)


def data(seed=0, **settings):
    return make_union_of_subspaces(
        **{"n_samples": 30, "n_subspaces": 3, "n_features": 20, "dimension": 3, "noise": 0.02}
        | settings,
        random_state=seed,
    )


def make(kind, **settings):
    if kind is KSubspaces:
        return kind(3, dimension=3, random_state=0, **settings)
    return kind(3, random_state=0, **QUICK.get(kind, {}), **settings)


@pytest.mark.parametrize("kind", ALL)
def test_subspaces_are_found_and_new_points_join_them(kind):
    X, y = data(n_samples=90) if kind in LOCAL else data()
    order = np.arange(len(X)) % 3 > 0
    model = make(kind).fit(X[order])
    assert adjusted_rand_score(y[order], model.labels_) > 0.95
    assert model.n_features_in_ == 20
    found = np.r_[model.labels_, model.predict(X[~order])]
    assert adjusted_rand_score(np.r_[y[order], y[~order]], found) > 0.9
    assert (model.predict(X[order]) == model.labels_).mean() > 0.95


CLUSTERERS = [
    thing
    for name in clustering.__all__
    if isinstance(thing := getattr(clustering, name), type) and issubclass(thing, ClusterMixin)
]


@pytest.mark.parametrize("kind", CLUSTERERS)
def test_the_number_of_clusters_is_estimated_or_its_absence_explained(kind):
    """None means the eigengap of the affinity, or is refused with the reason."""
    X, y = data(noise=0.0)
    model = make(kind).set_params(n_clusters=None)
    text = " ".join(inspect.getdoc(kind).split())
    if "affinity" in model.get_params():
        model.fit(X)
        assert len(np.unique(model.labels_)) == eigengap_n_clusters(model.affinity_matrix_)
        if kind in SELF_EXPRESSIVE[:-3]:
            assert adjusted_rand_score(y, model.labels_) > 0.95
        assert "n_clusters : int or None, default=8 None takes the number at the eigengap" in text
    else:
        with pytest.raises(ValueError, match=r"n_clusters: must be a number, not None: \w+ \w+"):
            model.fit(X)
        assert "Not None: " in text


@pytest.mark.parametrize("kind", ALL)
def test_zero_rows_and_duplicates(kind):
    X, y = data(noise=0.0)
    X = np.vstack([X, X[:4], np.zeros((2, 20))])
    model = make(kind).fit(X)
    y = np.r_[y, y[:4]]
    assert adjusted_rand_score(y, model.labels_[: len(y)]) > 0.9
    assert (model.labels_[len(y) - 4 : len(y)] == model.labels_[:4]).all()
    assert np.isin(model.predict(np.zeros((1, 20))), model.labels_).all()
    if kind not in (*LOCAL, KSubspaces):
        coef = csr_array(model.coef_).toarray()[-1]
        assert np.abs(coef).max() < 1e-12


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
@pytest.mark.filterwarnings("ignore:affinity. eigenvalues 3 and 4 differ")
@pytest.mark.parametrize("kind", ALL)
def test_data_of_zeros(kind):
    model = make(kind).fit(np.zeros((6, 4)))
    assert model.labels_.shape == (6,)
    assert len(np.unique(model.predict(np.zeros((3, 4))))) == 1


def test_bad_numbers_of_clusters_are_named():
    for kind in CLUSTERERS:
        X, _ = data()
        with pytest.raises(ValueError, match="n_clusters: must be at most n_samples=2, got 3"):
            make(kind).fit(X[:2])
        with pytest.raises(ValueError, match="n_clusters: must be a whole number >= 1"):
            make(kind).set_params(n_clusters=0).fit(X)


def test_bad_settings_are_named():
    for model, words in [
        (SparseSubspaceClustering(3, gamma=0), "gamma: must be a finite number > 0"),
        (SparseSubspaceClustering(3, gamma=0.9), "gamma: must be > 1, or all"),
        (ElasticNetSubspaceClustering(3, l1_ratio=0.0), "l1_ratio: must be"),
        (SparseSubspaceClustering(3, tol=0), "tol: must be a finite number > 0"),
        (OMPSubspaceClustering(3, n_nonzero=0), "n_nonzero: must be"),
        (OMPSubspaceClustering(3, tol=-1), "tol: must be a finite number >= 0"),
        (LeastSquaresSubspaceClustering(3, lam=0), "lam: must be a finite number > 0"),
        (LowRankSubspaceClustering(3, lam=-1), "lam: must be a finite number > 0"),
        (ThresholdingSubspaceClustering(3, n_neighbors=0), "n_neighbors: must be"),
        (LocallyLinearSubspaceClustering(3, n_neighbors=0), "n_neighbors: must be"),
        (LocallyLinearSubspaceClustering(3, reg=-1), "reg: must be a finite number >= 0"),
        (NearestNeighborClustering(3, n_neighbors=0), "n_neighbors: must be"),
        (NearestNeighborClustering(3).set_params(metric="angle"), "metric: must be"),
        (NearestNeighborClustering(3).set_params(weights="distance"), "weights: must be"),
        (OutlierSubspaceClustering(3, alpha=0), "alpha: must be a finite number > 0"),
        (LowRankRepresentationClustering(3, lam=0), "lam: must be a finite number > 0"),
        (LowRankSparseSubspaceClustering(3, lam=0), "lam: must be a finite number > 0"),
        (LowRankSparseSubspaceClustering(3, beta=0), "beta: must be a finite number > 0"),
        *(
            (kind(3).set_params(assign_labels="discretize"), "assign_labels: must be 'kmeans' or")
            for kind in (SparseSubspaceClustering, MotionSegmentation)
        ),
        (KSubspaces(3, dimension=21), r"dimension: must be a whole number in \[1, 20\]"),
        (KSubspaces(3, n_init=0), "n_init: must be"),
        (KSubspaces(3, max_iter=0), "max_iter: must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.fit(data()[0])


def test_sparse_coefficients_are_those_of_the_solver_at_gamma():
    X, _ = data()
    X = X[row_order(X)]  # as the estimator sees them, so that rounding is the same
    lam = lam_max(X, X, zero_diagonal=True) / 20
    model = SparseSubspaceClustering(3, gamma=20).fit(X)
    expected = sparse_self_expression(X, lam=lam)
    assert_allclose(model.coef_.toarray(), expected.coef.toarray(), atol=1e-12)
    independent = duality_gap(X, X, model.coef_, lam=lam, zero_diagonal=True)
    assert_allclose(model.gap_, independent, rtol=1e-7, atol=1e-14)
    assert model.gap_.max() <= 1e-6
    assert_allclose(model.objective_, expected.objective)
    assert (model.affinity_matrix_ != symmetric_affinity(model.coef_)).nnz == 0
    net = ElasticNetSubspaceClustering(3, gamma=20, l1_ratio=0.5).fit(X)
    expected = sparse_self_expression(X, lam=2 * lam, l1_ratio=0.5)
    assert_allclose(net.coef_.toarray(), expected.coef.toarray(), atol=1e-12)
    assert_allclose(net.objective_, expected.objective)
    assert net.coef_.nnz > model.coef_.nnz


def test_other_coefficients_are_those_of_their_solvers():
    X, _ = data()
    lam = 0.01 * (X**2).sum(axis=1).mean()
    assert_allclose(
        LeastSquaresSubspaceClustering(3, lam=None, zero_diagonal=True).fit(X).coef_,
        least_squares_self_expression(X, lam=lam, zero_diagonal=True),
    )
    assert_allclose(
        LowRankSubspaceClustering(3, lam=None).fit(X).coef_, low_rank_self_expression(X, lam=lam)
    )
    expected = omp_self_expression(normalize(X), n_nonzero=4, tol=1e-6)
    found = OMPSubspaceClustering(3, n_nonzero=4).fit(X).coef_
    assert_allclose(found.toarray(), expected.toarray())


def test_new_points_of_affine_subspaces_are_coded_as_training_points_are():
    """A new point is as the last of the training points, for whom all others are atoms."""
    X, _ = data(n_samples=8, noise=0.3)
    model = make(SparseSubspaceClustering, affine=True, gamma=5.0, tol=1e-9).fit(X)
    for x in data(n_samples=2, seed=1)[0]:
        coef = model._represent_new(x[None]).toarray()[0]
        centre = X.mean(axis=0)
        lam = 2 * np.abs((X - centre) @ (x - centre)).max() / 5.0
        expected = sparse_self_expression(np.vstack([X, x]), lam=lam, affine=True, tol=1e-9)
        assert_allclose(coef, expected.coef.toarray()[-1, :-1], atol=1e-4)
        assert_allclose(coef.sum(), 1)


def test_affine_codes_say_when_they_stop_early():
    X, _ = data(n_samples=8, noise=0.3)
    model = make(SparseSubspaceClustering, affine=True).fit(X)
    new, _ = data(n_samples=8, noise=0.3, seed=1)
    with pytest.warns(ConvergenceWarning, match="rows did not reach the relative gap"):
        model.set_params(max_iter=1).predict(new)


def test_new_points_by_ridge_regression():
    X, _ = data()
    new = data(seed=1)[0][:5]
    coef = make(LeastSquaresSubspaceClustering, lam=0.3).fit(X)._represent_new(new)
    expected = [np.linalg.solve(X @ X.T + 0.3 * np.eye(len(X)), X @ x) for x in new]
    assert_allclose(coef, expected, atol=1e-10)


def test_new_points_by_pursuit():
    """The first atom is the most correlated by angle; the residual is orthogonal to the support."""
    X, _ = data(n_features=10, noise=0.3)
    X *= np.random.default_rng(0).uniform(0.1, 10, (len(X), 1))
    new = data(seed=1, n_features=10)[0][:5] * 3
    model = make(OMPSubspaceClustering, n_nonzero=4).fit(X)
    coef = model._represent_new(new)
    assert (np.diff(coef.indptr) == 4).all()
    coef = coef.toarray()
    for x, c in zip(new, coef, strict=True):
        assert c[np.argmax(np.abs(normalize(X) @ x))] != 0
        assert_allclose(X[c != 0] @ (x - c @ X), 0, atol=1e-9)
    assert_allclose(model._represent_new(X[:3]) @ X, X[:3], atol=1e-9)


@pytest.mark.parametrize("kind", [*SELF_EXPRESSIVE[:5], *SELF_EXPRESSIVE[6:9]])
def test_new_points_take_the_cluster_of_smallest_residual(kind):
    X, _ = data(noise=0.5)
    new = data(seed=1)[0][:20]
    model = make(kind).fit(X)
    coef = model._represent_new(new)
    coef = coef.toarray() if hasattr(coef, "toarray") else coef
    for x, c, found in zip(new, coef, model.predict(new), strict=True):
        residual = [np.linalg.norm(x - (c * (model.labels_ == k)) @ X) for k in range(3)]
        assert found == np.argmin(residual)


def test_thresholding_keeps_the_largest_cosines():
    X, _ = data(n_samples=8)
    X = np.vstack([X, np.zeros((1, 20))])
    cosines = np.abs(normalize(X) @ normalize(X).T)
    np.fill_diagonal(cosines, 0)
    kept = (cosines >= np.sort(cosines, axis=1)[:, -4:-3]) & (cosines > 0)
    expected = np.where(kept, np.exp(-2 * np.arccos(np.minimum(cosines, 1))), 0)
    model = make(ThresholdingSubspaceClustering, n_neighbors=4).fit(X)
    assert_allclose(model.coef_.toarray(), expected, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 9), (30, 30), (20, 30)])
def test_an_affinity_of_another_shape_is_refused(shape):
    model = make(SparseSubspaceClustering, affinity=lambda C: np.ones(shape))
    with pytest.raises(ValueError, match=r"affinity: must return shape \(20, 20\), got "):
        model.fit(data()[0][:20])


def test_an_affinity_that_works_in_place_leaves_the_coefficients():
    def doubled(C):
        C.data *= 2
        return symmetric_affinity(C)

    X, _ = data()
    model = make(SparseSubspaceClustering, affinity=doubled)
    expected = make(SparseSubspaceClustering)
    assert (model.fit(X).coef_ != expected.fit(X).coef_).nnz == 0


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
def test_affinity_steps_compose():
    def circulated(C):
        return symmetric_affinity(scale_by_row_maximum(keep_l1_mass(C, 0.7)))

    X = data()[0]
    X = X[row_order(X)]
    model = make(SparseSubspaceClustering, affinity=circulated).fit(X)
    expected = circulated(model.coef_)
    assert (model.affinity_matrix_ != expected).nnz == 0
    assert (model.labels_ == spectral_labels(expected, 3, random_state=0)).all()


def test_coefficients_that_are_made_to_add_up_to_one_cluster_subspaces_too():
    """A usual step of section 5.1 of the survey of self-expression, as a user's own affinity."""

    def summing_to_one(C):
        return symmetric_affinity(C.multiply(1 / C.sum(axis=1)[:, None]).tocsr())

    X, y = make_union_of_subspaces(30, n_subspaces=3, n_features=20, dimension=3, random_state=0)
    model = make(SparseSubspaceClustering, affinity=summing_to_one).fit(X)
    C = model.coef_.toarray()
    scaled = C / C.sum(axis=1, keepdims=True)
    assert_allclose(scaled.sum(axis=1), 1)
    assert_allclose(model.affinity_matrix_.toarray(), np.abs(scaled) + np.abs(scaled.T))
    assert adjusted_rand_score(y, model.labels_) == 1


def test_float32_is_kept_even_of_small_units_and_seeds_repeat():
    X, y = data()
    X = X.astype(np.float32)
    for kind in [*ALL, MotionSegmentation]:
        model = make(kind).fit(X)
        assert adjusted_rand_score(y, model.labels_) > 0.95
        fitted = model.bases_ if kind is KSubspaces else model.affinity_matrix_
        assert fitted.dtype == np.float32
        assert (clone(model).fit_predict(X) == model.labels_).all()
        assert (
            adjusted_rand_score(make(kind).fit_predict(np.float32(1e-12) * X), model.labels_) == 1
        )
        revived = pickle.loads(pickle.dumps(model))
        assert (revived.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize(
    ("kind", "l1_ratio"), [(SparseSubspaceClustering, 1.0), (ElasticNetSubspaceClustering, 0.9)]
)
def test_new_points_by_sparse_coding_at_their_own_penalty(kind, l1_ratio):
    X, _ = data()
    new = data(seed=1)[0][:5]
    found = make(kind, gamma=20).fit(X)._represent_new(new)
    lam = lam_max(new, X) / (20 * l1_ratio)
    expected = sparse_code(new, X, lam=lam, l1_ratio=l1_ratio).coef
    assert_allclose(found.toarray(), expected.toarray(), atol=1e-12)


@pytest.mark.parametrize("kind", ["datetime64[D]", "timedelta64[s]", "U", "O"])
def test_dates_durations_and_text_are_no_points(kind):
    X = np.arange(12).reshape(6, 2).astype("U" if kind == "O" else kind)
    for model in (OMPSubspaceClustering(2), KSubspaces(2)):
        with pytest.raises(ValueError, match=r"^X: must hold real numbers, got dates"):
            model.fit(X.astype(kind))
