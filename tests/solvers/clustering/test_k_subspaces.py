import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import KSubspaces


@pytest.fixture
def data():
    return make_union_of_subspaces(
        25, n_subspaces=3, n_features=12, dimension=2, noise=0.1, random_state=0
    )


def test_bases_are_principal_and_labels_nearest(data):
    X, y = data
    model = KSubspaces(3, dimension=2, random_state=0).fit(X)
    assert adjusted_rand_score(y, model.labels_) == 1
    inertia = 0.0
    for label, basis in enumerate(model.bases_):
        points = X[model.labels_ == label]
        assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)
        leading = np.linalg.svd(points)[2][:2]
        assert_allclose(basis.T @ basis, leading.T @ leading, atol=1e-10)
        inertia += (np.linalg.svd(points)[1][2:] ** 2).sum()
    assert model.inertia_ == pytest.approx(inertia)
    distances = [[np.linalg.norm(x - B.T @ (B @ x)) for B in model.bases_] for x in X]
    assert (model.labels_ == np.argmin(distances, axis=1)).all()
    assert (model.predict(X) == model.labels_).all()


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("dtype", "scales"), [(np.float32, (1e-36, 1e35)), (float, (1e-250, 1e250))]
)
def test_the_scale_of_points_does_not_matter(data, affine, dtype, scales):
    X = data[0].astype(dtype)
    expected = KSubspaces(3, dimension=2, affine=affine, random_state=0).fit(X)
    for scale in scales:
        model = KSubspaces(3, dimension=2, affine=affine, random_state=0).fit(dtype(scale) * X)
        assert (model.labels_ == expected.labels_).all()
        assert (model.predict(dtype(scale) * X) == expected.labels_).all()
        assert_allclose(model.offsets_ / dtype(scale), expected.offsets_, atol=1e-5, rtol=0)


# Restarts that find the same clusters under other names have the same objective up to rounding.
@pytest.mark.parametrize("affine", [False, True])
def test_rounding_chooses_no_restart(affine):
    settings = {"dimension": 2, "affine": affine, "random_state": 0}
    for seed in range(6):
        X, _ = make_union_of_subspaces(
            25, n_subspaces=3, n_features=12, dimension=2, noise=0.1, random_state=seed
        )
        first = KSubspaces(3, **settings).fit(X)
        for scale in (0.1, 1e-5, 3, 7):
            model = KSubspaces(3, **settings).fit(scale * X)
            assert (model.labels_ == first.labels_).all()
            assert model.n_iter_ == first.n_iter_


def test_the_objective_never_increases_and_restarts_help(data):
    X, _ = data
    one = [
        KSubspaces(3, dimension=2, n_init=1, max_iter=n, random_state=4).fit(X).inertia_
        for n in range(1, 12)
    ]
    assert (np.diff(one) <= 1e-12).all()
    assert one[-1] < one[0]
    seeds = [KSubspaces(3, dimension=2, n_init=1, random_state=s).fit(X).inertia_ for s in range(9)]
    assert KSubspaces(3, dimension=2, random_state=0).fit(X).inertia_ <= min(seeds) + 1e-12
    assert max(seeds) > min(seeds) + 1e-3


def test_clusters_with_fewer_points_than_dimensions():
    X = np.eye(5)[[0, 0, 1, 1, 2]]
    model = KSubspaces(4, dimension=3, random_state=0).fit(X)
    assert model.inertia_ == pytest.approx(0, abs=1e-12)
    for basis in model.bases_:
        assert_allclose(basis @ basis.T, np.eye(3), atol=1e-12)


# Fewer and more features than the points of a cluster.
def test_the_directions_leave_what_the_singular_values_say():
    for n_features, dtype in [(3, np.float64), (200, np.float32)]:
        rng = np.random.default_rng(0)
        X = (rng.standard_normal((40, n_features)) * np.logspace(0, -3, n_features)).astype(dtype)
        model = KSubspaces(1, dimension=2, n_init=1, random_state=0).fit(X)
        values = np.linalg.svd(X.astype(np.float64), compute_uv=False)
        rounding = 40 * np.finfo(dtype).eps * (values**2).sum()
        assert model.inertia_ == pytest.approx((values[2:] ** 2).sum(), abs=rounding)
        eye = model.bases_[0] @ model.bases_[0].T
        assert_allclose(eye, np.eye(2), atol=40 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("dimension", "n_features", "k", "n_points", "noise"),
    [
        *((dimension, n, 10, 12, 0.01) for dimension, n in ((1, 5), (1, 40), (2, 9), (3, 9))),
        (1, 5, 20, 4, 0.3),  # where clusters become empty on the way too
    ],
)
def test_no_cluster_is_empty_while_a_point_lies_off_its_subspace(
    dimension, n_features, k, n_points, noise
):
    for seed in range(8):
        X, _ = make_union_of_subspaces(
            n_points,
            n_subspaces=k,
            n_features=n_features,
            dimension=dimension,
            noise=noise,
            random_state=seed,
        )
        for dtype, max_iter in [(np.float64, 100), (np.float32, 1), (np.float64, 2)]:
            model = KSubspaces(
                k, dimension=dimension, n_init=1, max_iter=max_iter, random_state=seed + 9
            ).fit(X.astype(dtype))
            assert len(np.unique(model.labels_)) == k
            assert (model.predict(X.astype(dtype)) == model.labels_).all()


def test_points_on_fewer_lines_than_clusters_leave_clusters_empty():
    X = np.repeat(np.eye(6)[:3], 4, axis=0) * np.arange(1, 13)[:, None]
    model = KSubspaces(5, random_state=0).fit(X)
    assert model.inertia_ <= 1e-25
    assert (model.predict(X) == model.labels_).all()


def test_flats_are_principal_about_the_means_of_their_clusters():
    rng = np.random.default_rng(0)
    labels = np.repeat(range(3), 30)
    bases, offsets = rng.standard_normal((3, 2, 8)), 3 * rng.standard_normal((3, 8))
    X = np.stack([rng.standard_normal(2) @ bases[i] + offsets[i] for i in labels])
    X += 0.01 * rng.standard_normal(X.shape)
    for shift in (0, 100):
        model = KSubspaces(3, dimension=2, affine=True, random_state=0).fit(X + shift)
        assert adjusted_rand_score(labels, model.labels_) == 1
        inertia = 0.0
        for label, (basis, offset) in enumerate(zip(model.bases_, model.offsets_, strict=True)):
            points = (X + shift)[model.labels_ == label]
            assert_allclose(offset, points.mean(axis=0), atol=1e-12)
            _, sizes, directions = np.linalg.svd(points - points.mean(axis=0))
            assert_allclose(basis.T @ basis, directions[:2].T @ directions[:2], atol=1e-9)
            inertia += (sizes[2:] ** 2).sum()
        assert model.inertia_ == pytest.approx(inertia, rel=1e-9)
        assert (model.predict(X + shift) == model.labels_).all()
    linear = KSubspaces(3, dimension=2, random_state=0).fit(X)
    assert not linear.offsets_.any()
    assert linear.inertia_ > 10 * inertia


def test_no_flat_is_empty_while_a_point_lies_off_its_own():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 5.0], [1.0, 5.0], [7.0, 9.0]])
    for seed in range(5):
        model = KSubspaces(3, affine=True, n_init=1, random_state=seed).fit(X)
        assert len(np.unique(model.labels_)) == 3
    assert KSubspaces(3, affine=True, random_state=0).fit(X).inertia_ == pytest.approx(0, abs=1e-20)
    one = [
        KSubspaces(2, affine=True, n_init=1, max_iter=n, random_state=1).fit(X).inertia_
        for n in range(1, 6)
    ]
    assert (np.diff(one) <= 1e-12).all()
