import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import make_union_of_subspaces


def bases(X, y, dimension):
    return [np.linalg.svd(X[y == label])[2][:dimension] for label in np.unique(y[y >= 0])]


def test_points_lie_in_subspaces_of_the_dimension_asked_for():
    X, y = make_union_of_subspaces(20, n_subspaces=3, dimension=(1, 3, 5), random_state=0)
    ranks = [np.linalg.matrix_rank(X[y == label], tol=1e-10) for label in range(3)]
    assert ranks == [1, 3, 5]
    assert_allclose(np.linalg.norm(X, axis=1), 1)


def test_unequal_sizes_and_density():
    _, y = make_union_of_subspaces((5, 9), n_subspaces=2, random_state=0)
    assert np.bincount(y).tolist() == [5, 9]
    _, y = make_union_of_subspaces(n_subspaces=2, dimension=(2, 4), density=3.5, random_state=0)
    assert np.bincount(y).tolist() == [7, 14]


@pytest.mark.parametrize("angle", [0.7, np.pi / 2])
def test_every_principal_angle_is_as_asked(angle):
    X, y = make_union_of_subspaces(
        20, n_subspaces=3, n_features=20, dimension=3, angle=angle, random_state=0
    )
    first, *others = bases(X, y, 3)
    for other in others:
        cosines = np.linalg.svd(first @ other.T)[1]
        assert_allclose(cosines, np.cos(angle), atol=1e-10)


def test_affine_subspaces_miss_the_origin():
    X, y = make_union_of_subspaces(20, n_subspaces=2, dimension=3, affine=True, random_state=0)
    for label in range(2):
        points = X[y == label]
        assert np.linalg.matrix_rank(points, tol=1e-10) == 4
        assert np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-10) == 3


def test_noise_is_relative_to_the_signal_and_outliers_are_labelled():
    settings = {"n_subspaces": 2, "n_features": 200, "random_state": 0}
    clean, _ = make_union_of_subspaces(200, **settings)
    noisy, y = make_union_of_subspaces(200, noise=0.3, **settings)
    assert y.min() == 0
    residual = np.linalg.svd(noisy)[1][8:]
    assert np.sqrt((residual**2).sum() / len(noisy)) == pytest.approx(0.3, rel=0.05)
    assert clean.shape == noisy.shape
    X, y = make_union_of_subspaces(20, n_subspaces=2, outliers=0.25, random_state=0)
    assert (y == -1).sum() == 10
    assert_allclose(np.linalg.norm(X[y == -1], axis=1), 1)


def test_seed_decides():
    first, second, other = (make_union_of_subspaces(5, random_state=s)[0] for s in (0, 0, 1))
    assert (first == second).all()
    assert (first != other).any()


def test_bad_settings_are_named():
    for settings, words in [
        ({"dimension": 31}, "dimension: must be at most n_features=30"),
        ({"dimension": (1, 2)}, "dimension: must hold one whole number >= 1 for each of 4"),
        ({"n_samples": 0}, "n_samples: must hold one whole number >= 1"),
        ({"n_samples": 2.5}, "n_samples: must hold one whole number"),
        ({"noise": -1.0}, "noise, outliers: must be finite"),
        ({"noise": np.nan}, "noise, outliers: must be finite"),
        ({"density": -1.0}, "density: must be finite and > 0"),
        ({"angle": 0.0}, r"angle: must be in \(0, pi / 2\]"),
        ({"angle": 1.0, "dimension": 8}, "angle: needs n_features >= 40"),
        ({"n_subspaces": 0}, "n_subspaces, n_features: must be >= 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_union_of_subspaces(**settings)
