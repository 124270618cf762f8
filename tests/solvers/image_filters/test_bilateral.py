import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.solvers import bilateral_filter, nonlocal_means
from twinsolve.solvers.image_filters import bilateral_matrix, nonlocal_means_matrix

EPS = np.finfo(np.float32).eps
CROSS = np.array([[0, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 1, 0]], dtype=bool)


def disk(radius):
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return y**2 + x**2 <= radius**2


def literal(image, inside, sigma_color, sigma_spatial):
    """All pairs of pixels, channels last; `inside` says which shifts are in the window."""
    p = np.indices(image.shape[:2]).reshape(2, -1).T
    y = image.reshape(len(p), -1)
    shifts = p - p[:, None]
    place = (shifts**2).sum(axis=-1) / (2 * sigma_spatial**2)
    colour = ((y - y[:, None]) ** 2).sum(axis=-1) / (2 * sigma_color**2)
    weights = np.exp(-place - colour) * inside(shifts)
    return (weights @ y / weights.sum(axis=1, keepdims=True)).reshape(image.shape)


def in_square(reach):
    return lambda shifts: np.abs(shifts).max(axis=-1) <= reach


def in_footprint(footprint):
    def inside(shifts):
        at = shifts + np.array(footprint.shape) // 2
        held = ((at >= 0) & (at < footprint.shape)).all(axis=-1)
        at = np.where(held[..., None], at, 0)
        return held & footprint[at[..., 0], at[..., 1]]

    return inside


@pytest.mark.parametrize(
    ("sigma_color", "sigma_spatial", "channels"),
    [(0.1, 2.0, 3), (0.4, np.inf, 1), (np.inf, 0.7, 3), (np.inf, np.inf, 1)],
)
@pytest.mark.parametrize(
    ("window", "inside"),
    [
        ({}, None),
        ({"win_size": 5}, in_square(2)),
        ({"win_size": 41}, in_square(20)),
        ({"footprint": CROSS}, in_footprint(CROSS)),
        ({"footprint": disk(20).astype(float)}, in_footprint(disk(20))),
    ],
)
def test_equals_all_pairs_if13(window, inside, sigma_color, sigma_spatial, channels):
    image = np.random.default_rng(0).random((7, 6, channels))
    if inside is None:
        inside = in_square({0.7: 3, 2.0: 6, np.inf: 7}[sigma_spatial])
    expected = literal(image, inside, sigma_color, sigma_spatial)
    arguments = window | {"sigma_color": sigma_color, "sigma_spatial": sigma_spatial}
    found = bilateral_filter(image, channel_axis=-1, **arguments)
    assert_allclose(found, expected, atol=1e-14)
    A = bilateral_matrix(image, channel_axis=-1, **arguments)
    assert_allclose(A @ image.reshape(42, -1), expected.reshape(42, -1), atol=1e-14)
    single = bilateral_filter(
        np.moveaxis(image, -1, 0).astype(np.float32), channel_axis=0, **arguments
    )
    assert single.dtype == np.float32
    # The exponents that matter are below 20, right to a few units in the last place.
    assert_allclose(np.moveaxis(single, 0, -1), expected, atol=30 * EPS)


def test_other_readings_of_if13_are_other_filters_erratum_e0b():
    """IF-13 divides by h^2 = 2 sigma^2, not sigma^2, and vectors take the norm, not its sum."""
    image = np.random.default_rng(0).random((6, 7, 3))
    found = bilateral_filter(image, win_size=21, sigma_color=0.3, sigma_spatial=2.0, channel_axis=2)
    narrow = literal(image, in_square(10), 0.3 / np.sqrt(2), np.sqrt(2))
    apart = [literal(image[..., [c]], in_square(10), 0.3, 2.0) for c in range(3)]
    for wrong in (narrow, np.concatenate(apart, axis=-1)):
        assert np.abs(found - wrong).max() > 1e-2
    p, y = np.indices((6, 7)).reshape(2, 42).T, image.reshape(42, 3)
    places, colours = (((z[:, None] - z) ** 2).sum(axis=-1) for z in (p, y))
    for levels, same in [(colours, True), (np.abs(y[:, None] - y).sum(axis=-1) ** 2, False)]:
        weights = np.exp(-places / 8 - levels / (2 * 0.3**2))
        other = weights @ y / weights.sum(axis=1, keepdims=True)
        assert np.allclose(found.reshape(42, 3), other, rtol=0, atol=1e-2) == same


def test_without_position_it_is_pixelwise_nonlocal_means_if14():
    """IF-14 is IF-13 with h_p = inf: nearly so at 1e8, exactly so at infinity."""
    image = np.random.default_rng(0).random((9, 8))
    expected = nonlocal_means(image, patch_size=1, patch_distance=None, h=0.2 * np.sqrt(2))
    for sigma_spatial in (1e8, np.inf):
        found = bilateral_filter(image, sigma_color=0.2, sigma_spatial=sigma_spatial)
        assert_allclose(found, expected, atol=1e-13)
    near = bilateral_filter(image, sigma_color=0.2, sigma_spatial=3.0)
    assert np.abs(near - expected).max() > 1e-2


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    win_size=st.one_of(st.none(), st.integers(0, 10).map(lambda k: 2 * k + 1)),
    sigma_color=st.one_of(st.floats(1e-3, 1e3), st.just(np.inf)),
    sigma_spatial=st.one_of(st.floats(1e-3, 1e3), st.just(np.inf)),
    seed=st.integers(0, 2**32 - 1),
)
def test_matrix_is_row_stochastic_and_gives_the_image(
    shape, win_size, sigma_color, sigma_spatial, seed
):
    image = np.random.default_rng(seed).random(shape)
    arguments = {
        "win_size": win_size, "sigma_color": sigma_color, "sigma_spatial": sigma_spatial,
    }  # fmt: skip
    A = bilateral_matrix(image, **arguments)
    assert (A >= 0).all()
    assert_allclose(A.sum(axis=1), 1, rtol=1e-13)
    assert (A.T[A > 1e-300] > 0).all()  # row sums lie in [1, 144]: below, division may give 0
    found = bilateral_filter(image, **arguments)
    assert_allclose(A @ image.ravel(), found.ravel(), atol=1e-13)


def test_bands_of_rows_join_and_threads_change_nothing():
    for sigma_spatial, sigma_color, real in [
        (2.0, 0.2, np.float32),
        (80.0, 0.2, np.float64),
        (np.inf, 0.2, np.float32),
        (2.0, np.inf, float),
    ]:
        image = np.random.default_rng(0).random((150, 8)).astype(real)
        arguments = {"sigma_color": sigma_color, "sigma_spatial": sigma_spatial}
        found = bilateral_filter(image, **arguments)
        expected = bilateral_matrix(image.astype(float), **arguments) @ image.ravel()
        assert_allclose(found.ravel(), expected, atol=1e-13 if real is np.float64 else 20 * EPS)
        for n_jobs in (1, 2, 3):
            assert_array_equal(bilateral_filter(image, n_jobs=n_jobs, **arguments), found)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"sigma_color": np.inf}, {"sigma_spatial": np.inf}, {"sigma_spatial": 30.0}],
)
def test_memory_is_at_most_twelve_images(arguments):
    image = np.random.default_rng(0).random((150, 150)).astype(np.float32)
    bilateral_filter(image[:20, :20], **arguments)
    tracemalloc.start()
    bilateral_filter(image, n_jobs=2, **arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * image.nbytes


def test_an_axis_of_channels_must_be_named():
    for function in (bilateral_filter, nonlocal_means):
        with pytest.raises(ValueError, match=r"a volume must have 5 .* name channel_axis"):
            function(np.ones((8, 8, 3)))
    for function in (bilateral_matrix, nonlocal_means_matrix):
        with pytest.raises(ValueError, match="image: must have 2 dimensions"):
            function(np.ones((8, 8, 3)))


def test_bad_images_are_named():
    for image, options, words in [
        (np.ones((8, 8, 8, 3)), {}, "must have 2"),
        (np.ones((8, 8)), {"channel_axis": -1}, "must have 3 dimensions"),
        (np.full((8, 8), np.nan), {}, "must not hold NaN"),
        (np.ones((8, 8), complex), {}, "must hold real"),
        ([[1.0, 2.0], [3.0]], {}, ""),
    ]:
        for function in (bilateral_filter, bilateral_matrix, nonlocal_means, nonlocal_means_matrix):
            with pytest.raises(ValueError, match=f"image: {words}"):
                function(image, **options)


def test_bad_settings_are_named():
    for options, words in [
        ({"footprint": [[1, 1, 1], [1]]}, "footprint: "),
        ({"footprint": np.full((3, 3), 0.5)}, "footprint: must hold zeros and ones"),
        ({"footprint": np.full((3, 3), 2)}, "footprint: must hold zeros and ones"),
        ({"footprint": np.ones((3, 2), bool)}, "footprint: must be a matrix with odd"),
        ({"footprint": [[True, True, False]]}, "footprint: must hold"),
        ({"footprint": [[True, False, True]]}, "footprint: must hold"),
        ({"footprint": disk(1), "win_size": 3}, "win_size: must be None"),
        ({"win_size": 4}, "win_size: must be odd"),
        ({"sigma_color": np.array([np.inf, np.inf])}, "sigma_color: must be a"),
        ({"sigma_color": 0}, "sigma_color: must be a finite number > 0"),
        ({"sigma_spatial": -np.inf}, "sigma_spatial: must be a finite"),
    ]:
        for function in (bilateral_filter, bilateral_matrix):
            with pytest.raises(ValueError, match=words):
                function(np.ones((8, 8)), **options)


OUTLIERS = [(np.float32, 1e20), (np.float32, -2e38), (np.float64, 1e170), (np.float64, -1e308)]


@pytest.mark.parametrize(("real", "outlier"), OUTLIERS)
@pytest.mark.parametrize(
    ("sigma_color", "sigma_spatial"), [(1e-3, 1.0), (10.0, np.inf), (1e15, 1.0)]
)
def test_an_outlier_or_fill_value_changes_no_other_pixel(real, outlier, sigma_color, sigma_spatial):
    image = np.random.default_rng(0).random((6, 6)).astype(real)
    image[0, 0] = outlier
    arguments = {"sigma_color": sigma_color, "sigma_spatial": sigma_spatial}
    with np.errstate(over="ignore"):
        expected = literal(
            image.astype(float)[..., None], in_square(3 if sigma_spatial == 1 else 6), **arguments
        )[..., 0]
    # The exponents that matter are below 40, and grey levels but the outlier are positive.
    tol = 100 * np.finfo(real).eps
    by_shifts = {"footprint": np.ones((7, 7), bool)} if sigma_spatial == 1 else {}
    for found in (bilateral_filter(image, **arguments), bilateral_filter(
        image, **arguments, **by_shifts
    )):  # fmt: skip
        assert_allclose(found, expected, rtol=tol)
    A = bilateral_matrix(image, **arguments)
    assert_allclose(A.sum(axis=1), 1, rtol=tol)
    assert_allclose((A @ image.ravel()).reshape(6, 6), expected, rtol=tol)


@pytest.mark.parametrize("factor", [0.1, 1.5])
@pytest.mark.parametrize(("real", "outlier"), OUTLIERS)
def test_widths_as_large_as_an_outlier_count_it_in(real, outlier, factor):
    """All pairs in units of the outlier."""
    image = np.random.default_rng(0).random((6, 6)).astype(real)
    image[2, 2] = outlier
    found = bilateral_filter(image, sigma_color=factor * abs(outlier))
    expected = literal(image.astype(float)[..., None] / abs(outlier), in_square(3), factor, 1.0)[
        ..., 0
    ]
    assert_allclose(
        found.astype(float) / abs(outlier), expected, rtol=100 * np.finfo(real).eps, atol=1e-300
    )


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("sigma_color", "sigma_spatial"), [(1e-30, 0.7), (0.1, np.inf), (1e30, 1.0), (np.inf, 0.7)]
)
def test_constant_images_of_any_level_stay(sigma_spatial, sigma_color, real):
    limits = np.finfo(real)
    for level in (limits.max, -0.7 * limits.max, limits.tiny, limits.smallest_subnormal, 0):
        image = np.full((9, 8), level, dtype=real)
        found = bilateral_filter(image, sigma_color=sigma_color, sigma_spatial=sigma_spatial)
        assert_allclose(found, image, rtol=8 * limits.eps)


@pytest.mark.parametrize("sigma_spatial", [1e5, np.inf])
def test_float32_totals_are_added_in_float64(monkeypatch, sigma_spatial):
    """Thousands of like terms, added one by one in float32, would err by many units."""
    monkeypatch.setattr("twinsolve.solvers.image_filters.level_average._KEYS", 1)
    image = (1 + np.random.default_rng(0).random((3000, 1))).astype(np.float32)
    found = bilateral_filter(image, sigma_color=10.0, sigma_spatial=sigma_spatial)
    y = image.astype(float)
    places = np.arange(3000) / sigma_spatial
    weights = np.exp(-((y - y.T) ** 2) / 200 - (places[:, None] - places) ** 2 / 2)
    expected = weights @ y / weights.sum(axis=1, keepdims=True)
    assert_allclose(found, expected, rtol=2 * EPS)
