import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import fourier_energies, pca_features

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("shape", "center"), [((40, 12), True), ((12, 40), False)])
def test_components_are_the_leading_singular_ones(shape, center):
    X = RNG.standard_normal(shape) * np.geomspace(1, 0.1, shape[1]) + 2
    found = pca_features(X, 5, center=center)
    points = X - X.mean(axis=0) if center else X
    U, s, _ = np.linalg.svd(points, full_matrices=False)
    assert_allclose(found @ found.T, (U[:, :5] * s[:5] ** 2) @ U[:, :5].T, atol=1e-10)
    assert (np.diff(np.linalg.norm(found, axis=0)) < 0).all()


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_float32_is_kept_and_batches_do_not_matter(shape, monkeypatch):
    X = RNG.standard_normal(shape)
    single = pca_features(X.astype(np.float32), 3)
    assert single.dtype == np.float32
    assert_allclose(single, pca_features(X, 3), atol=2e-5)
    whole = pca_features(X, 3)
    monkeypatch.setattr("twinsolve.datasets.features._BATCH", 7)
    assert_allclose(pca_features(X, 3), whole, atol=1e-12)


def test_bad_points_are_refused():
    for X in [np.full((4, 3), np.nan), np.ones(4), np.ones((0, 3))]:
        with pytest.raises(ValueError, match=r"NaN|2D array|0 sample"):
            pca_features(X, 1)


def test_bad_numbers_of_components_are_named():
    for n_components in [0, 4]:
        with pytest.raises(ValueError, match="n_components: must be 1 to 3 for X of shape"):
            pca_features(np.ones((5, 3)), n_components)


@pytest.mark.parametrize("window", [5, 8])
def test_energies_follow_the_formula(window):
    images = RNG.standard_normal((2, 17, 13, 3))
    found = fourier_energies(images, window=window, step=3)
    m, rows, columns = window, (17 - window) // 3 + 1, (13 - window) // 3 + 1
    found = found.reshape(2, 3, rows, columns, m, m // 2 + 1)
    taper = np.sin(np.pi * (np.arange(m) + 0.5) / m) ** 2
    u = np.arange(m)
    patch = images[1, 6 : 6 + m, 3 : 3 + m, 2] * taper[:, None] * taper
    for k in [(0, 0), (2, 0), (3, 1), (1, m // 2)]:
        wave = np.exp(-2j * np.pi * (k[0] * u[:, None] + k[1] * u) / m)
        pair = 1 if k[1] == 0 or 2 * k[1] == m else 2
        expected = pair * abs((patch * wave).sum()) ** 2 / m**2
        assert found[1, 2, 2, 1, k[0], k[1]] == pytest.approx(expected, rel=1e-10)
    assert found[1, 2, 2, 1].sum() == pytest.approx((patch**2).sum(), rel=1e-10)


def test_energies_of_grey_images_in_float32_and_batches():
    images = RNG.standard_normal((300, 8, 8)).astype(np.float32)
    found = fourier_energies(images, window=4, step=4)
    assert found.dtype == np.float32
    assert found.shape == (300, 2 * 2 * 12)
    assert_allclose(found[299:], fourier_energies(images[299:], window=4, step=4), rtol=1e-5)


def test_bad_images_are_named():
    for images, settings, words in [
        (np.ones((4, 8)), {}, "images: must have shape"),
        (np.ones((4, 8, 8, 3, 1)), {}, "images: must have shape"),
        (np.full((4, 8, 8), np.inf), {}, "images contains infinity"),
        (np.ones((4, 8, 8)), {"window": 9}, "window, step: need 1 <= window <= 8"),
        (np.ones((4, 8, 8)), {"step": 0}, "window, step: need"),
    ]:
        with pytest.raises(ValueError, match=words):
            fourier_energies(images, **settings)
