import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import make_union_of_manifolds, manifolds


def one(shape, dimension, curvature, n_features=20, n=300, noise=0.0):
    X, _ = make_union_of_manifolds(
        n,
        n_manifolds=1,
        n_features=n_features,
        dimension=dimension,
        shape=shape,
        curvature=curvature,
        noise=noise,
        random_state=0,
    )
    return X


def centred(X):
    return X - X.mean(axis=0)


@pytest.mark.parametrize("dimension", [2, 4])
def test_without_curvature_closed_manifolds_are_linear_subspaces(dimension):
    X = one("closed", dimension, 0.0)
    assert np.linalg.matrix_rank(X, tol=1e-10) == dimension
    assert_allclose(np.linalg.norm(X, axis=1), 1)


@pytest.mark.parametrize("dimension", [1, 3])
def test_without_curvature_rolls_are_affine_subspaces(dimension):
    X = one("roll", dimension, 0.0)
    assert np.linalg.matrix_rank(X, tol=1e-10) == dimension + 1
    assert np.linalg.matrix_rank(centred(X), tol=1e-10) == dimension


@pytest.mark.parametrize(("dimension", "curvature"), [(2, 0.3), (5, 2.0)])
def test_closed_manifolds_span_the_harmonics_on_the_unit_sphere(dimension, curvature):
    X = one("closed", dimension, curvature)
    assert_allclose(np.linalg.norm(X, axis=1), 1)
    harmonics = dimension * (dimension + 1) // 2 - 1
    assert np.linalg.matrix_rank(X, tol=1e-8) == dimension + harmonics


@pytest.mark.parametrize("dimension", [2, 5])
def test_closed_manifolds_follow_the_formula(dimension):
    """<f(a), f(b)> = (t + c^2 (d t^2 - 1) / (d - 1)) / (1 + c^2) with t = a.b.

    It grows with t for small c: solved for t it must give the Gram matrix of d dimensions.
    """
    X, c, d = one("closed", dimension, 0.3), 0.3, dimension
    p, q = c**2 * d / (d - 1), -(c**2) / (d - 1) - (1 + c**2) * (X @ X.T)
    t = (-1 + np.sqrt(1 - 4 * p * q)) / (2 * p)
    assert_allclose(np.diag(t), 1)
    assert np.linalg.matrix_rank(t, tol=1e-9) == d


@pytest.mark.parametrize("curvature", [0.2, 1.0])
def test_rolls_are_never_stretched_and_turn_with_arc_length(curvature):
    """Chords between close points have the length and the direction of the arc."""
    n = 4000
    s = np.sort(np.random.RandomState(0).uniform(-2, 2, size=(n, 1)), axis=0).ravel()
    points = manifolds._roll(np.random.RandomState(0), n, 1, curvature)
    order = np.argsort(np.random.RandomState(0).uniform(-2, 2, size=(n, 1)).ravel())
    steps = np.diff(points[order], axis=0)
    # A chord that turns by t is shorter by t^2 / 24, and t <= 3 pi c gap: 4e-4 at a gap of 0.01.
    gaps = np.diff(s)
    assert gaps.max() < 0.01
    assert_allclose(np.linalg.norm(steps, axis=1), gaps, rtol=4e-4)
    middle = (s[1:] + s[:-1]) / 2
    turned = np.arctan2(steps[:, 1], steps[:, 0]) - 3 * np.pi * curvature * middle**2 / 4
    assert_allclose(np.cos(turned), 1, atol=1e-6)


@pytest.mark.parametrize("dimension", [2, 3])
def test_tori_are_tubes_around_a_sphere(dimension):
    """In their own frame points are at distance c from the sphere of radius 1."""
    c = 0.4
    points = manifolds._torus(np.random.RandomState(0), 500, dimension, c)
    radii, height = np.linalg.norm(points[:, :dimension], axis=1), points[:, dimension]
    assert_allclose((radii - 1) ** 2 + height**2, c**2)
    # All around: a uniform angle has mean 0 within 4 of its deviations, 1 / sqrt(2 n).
    for direction in (*(points[:, :dimension] / radii[:, None]).T, (radii - 1) / c, height / c):
        assert abs(direction.mean()) < 4 / np.sqrt(len(points))
        assert direction.std() > 0.5
    X = one("torus", dimension, c)
    assert np.linalg.matrix_rank(centred(X), tol=1e-10) == dimension + 1
    assert np.linalg.matrix_rank(X, tol=1e-10) == dimension + 2  # away from the origin
    flat = one("torus", dimension, 0.0)
    assert np.linalg.matrix_rank(centred(flat), tol=1e-10) == dimension


def test_noise_has_the_norm_asked_for():
    clean, noisy = (one("closed", 2, 0.5, n_features=100, noise=noise) for noise in (0.0, 0.3))
    residual = np.linalg.svd(noisy)[1][4:]
    assert np.sqrt((residual**2).sum() / len(noisy)) == pytest.approx(0.3, rel=0.05)
    assert clean.shape == noisy.shape


def test_bad_settings_are_named():
    for settings, words in [
        ({"n_manifolds": 0}, "n_manifolds: must be >= 1"),
        ({"noise": -1.0}, "noise, curvature: must be finite and >= 0"),
        ({"curvature": np.nan}, "noise, curvature: must be finite and >= 0"),
        ({"shape": "knot"}, r"shape: must be one of \['closed', 'roll', 'torus'\], got"),
        ({"dimension": 1}, "dimension: must be >= 2 for 'closed'"),
        ({"dimension": 4}, "n_features: 'closed' of dimension 4 needs at least 13, got 6"),
        ({"n_samples": (1, 2)}, "n_samples: must hold one whole number >= 1 for each of 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_union_of_manifolds(**settings)
