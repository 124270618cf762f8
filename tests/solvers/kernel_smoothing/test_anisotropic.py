import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.solvers import anisotropic_nonlocal_means, nadaraya_watson
from twinsolve.solvers.kernel_smoothing import elliptical_metric, oriented_metric


def draw(seed, n=9, n_features=4):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((n, n_features)),
        rng.standard_normal((n, 2)),
        rng.random((n, n_features)),
    )


def literal(X, V, M, h):
    weights = np.exp(-(M[:, None] * (X[:, None] - X) ** 2).sum(axis=-1) / h**2)
    return weights @ V / weights.sum(axis=1, keepdims=True)


def test_equals_the_formula_and_keeps_float32():
    X, V, M = draw(0)
    found = anisotropic_nonlocal_means(X, V, metric=M, h=0.7)
    assert_allclose(found, literal(X, V, M, 0.7), rtol=1e-12)
    single = [x.astype(np.float32) for x in draw(4)]
    found = anisotropic_nonlocal_means(*single[:2], metric=single[2], h=1.0)
    exact = literal(*(x.astype(float) for x in single), 1.0)
    assert found.dtype == np.float32
    assert_allclose(found, exact, atol=np.finfo(np.float32).eps * np.abs(exact).max())


def test_one_metric_for_all_is_a_diagonal_precision():
    X, V, M = draw(1)
    found = anisotropic_nonlocal_means(X, V, metric=M[0], h=1.3)
    kernel = nadaraya_watson(X, X, V, bandwidth=1.3 / np.sqrt(2), precision=M[0])
    assert_allclose(found, kernel, rtol=1e-12)
    full = nadaraya_watson(X, X, V, bandwidth=1.3 / np.sqrt(2), precision=np.diag(M[0]))
    assert_allclose(found, full, rtol=1e-12)
    one_row_each = anisotropic_nonlocal_means(X, V, metric=np.tile(M[0], (9, 1)), h=1.3)
    assert_array_equal(one_row_each, found)


def test_elliptical_metric_is_the_mean_change_over_its_maximum():
    V, U = np.random.default_rng(6).standard_normal((2, 7, 3))
    changes = np.abs(V - U).mean(axis=0)
    assert_allclose(elliptical_metric(V, U), changes / changes.max(), rtol=1e-14)
    assert_allclose(elliptical_metric(9 * V, 9 * U), elliptical_metric(V, U), rtol=1e-14)


def test_elliptical_metric_of_what_does_not_change_is_the_identity():
    V = np.random.default_rng(7).standard_normal((5, 3))
    assert_array_equal(elliptical_metric(V, V), np.ones(3))


@pytest.mark.parametrize("scale", [1e-308, 1e308])
def test_elliptical_metric_has_no_unit(scale):
    V, U = np.random.default_rng(8).uniform(-1, 1, (2, 7, 3))
    V[0], U[0] = 1, -1  # their difference is twice the scale
    # Of 1e-308 one half is subnormal.
    assert_allclose(elliptical_metric(scale * V, scale * U), elliptical_metric(V, U), rtol=1e-12)


def edge_at(angle, n=21):
    """A step smoothed over a few pixels; `angle` is that of its gradient, y downwards."""
    y, x = np.indices((n, n)) - n // 2
    return np.tanh((np.cos(angle) * x + np.sin(angle) * y) / 2)


def test_windows_lie_along_the_edge():
    size, n = 7, 21
    y, x = np.indices((size, size)).reshape(2, -1) - size // 2
    for angle in np.linspace(0, np.pi, 7):
        window = oriented_metric(edge_at(angle), patch_size=size, along=2.0, across=0.7)
        window = window[n * (n // 2) + n // 2]
        across = (window * (np.cos(angle) * x + np.sin(angle) * y) ** 2).sum()
        along = (window * (np.cos(angle) * y - np.sin(angle) * x) ** 2).sum()
        # On the pixel grid, cut off at the patch, the widths are not quite those of the Gaussian.
        assert across < 0.7
        assert along > 2.0


def test_a_straight_edge_has_the_stated_gaussian():
    """All gradients point along x: J = diag(tr J, 0)."""
    image = np.tile(np.tanh(np.arange(-10, 11) / 2), (21, 1))
    window = oriented_metric(image, patch_size=5, along=2.0, across=0.7)[220].reshape(5, 5)
    offset = np.arange(-2, 3)
    expected = np.exp(-(offset[:, None] ** 2) / 8 - offset**2 / (2 * 0.49))
    assert_allclose(window, expected / expected.sum(), rtol=1e-12)


def test_windows_ignore_the_scale_of_the_image():
    for scale in [1e-300, 1e308]:
        image = np.random.default_rng(8).uniform(-1, 1, (9, 9))
        expected = oriented_metric(image, patch_size=5)
        assert_allclose(oriented_metric(scale * image, patch_size=5), expected, rtol=1e-12)


def test_faint_edges_on_a_bright_ground_have_directions():
    edge = 1 + np.tile(np.ldexp(np.round(8 * np.tanh(np.arange(-10, 11) / 2)), -50), (21, 1))
    expected = oriented_metric(np.ldexp(edge - 1, 50), patch_size=5)
    assert_allclose(oriented_metric(edge, patch_size=5), expected, rtol=1e-12)


def test_windows_of_no_width_are_lines_along_the_edge():
    for across in [1e-8, 1e-323]:
        image = np.tile(np.tanh(np.arange(-10, 11) / 2), (21, 1))
        window = oriented_metric(image, patch_size=5, along=2.0, across=across)[220].reshape(5, 5)
        line = np.exp(-(np.arange(-2, 3) ** 2) / 8)
        assert_allclose(window, np.outer(line / line.sum(), [0, 0, 1, 0, 0]), rtol=1e-12)
        noise = np.random.default_rng(8).standard_normal((9, 9))
        points = oriented_metric(noise, patch_size=3, along=1e-200, across=across)
        assert_array_equal(points, np.tile(np.eye(9)[4], (81, 1)))
