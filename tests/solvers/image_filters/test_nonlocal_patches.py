import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal
from skimage.metrics import peak_signal_noise_ratio
from skimage.restoration import denoise_nl_means

from twinsolve.datasets import fetch_set12
from twinsolve.solvers import nadaraya_watson, nonlocal_means
from twinsolve.solvers.image_filters import nonlocal_means_matrix

EPS = np.finfo(np.float32).eps
SIGMA = 25 / 255


def literal(image, patch_size, patch_distance, h, sigma, patch_weights="uniform"):
    """All pairs of patches, colour or grey with a channel axis last."""
    border = ((patch_size - 1) // 2, patch_size // 2)
    padded = np.pad(image, (border, border, (0, 0)), mode="reflect")
    profile = np.ones(patch_size)
    if patch_weights == "gaussian" and patch_size > 1:
        offset = np.arange(patch_size) - (patch_size - 1) / 2
        profile = np.exp(-(offset**2) / (2 * ((patch_size - 1) / 4) ** 2))
    mask = np.outer(profile, profile) / profile.sum() ** 2
    p = np.indices(image.shape[:2]).reshape(2, -1).T
    y = image.reshape(len(p), -1)
    windows = sliding_window_view(padded, (patch_size, patch_size), axis=(0, 1))
    windows = windows.reshape(len(p), -1, patch_size, patch_size)
    d2 = (((windows[:, None] - windows) ** 2).mean(axis=2) * mask).sum(axis=(-2, -1))
    weights = np.exp(-np.maximum(d2 - 2 * sigma**2, 0) / h**2)
    if patch_distance is not None:
        weights *= np.abs(p[:, None] - p).max(axis=-1) <= patch_distance
    return (weights @ y / weights.sum(axis=1, keepdims=True)).reshape(image.shape)


@pytest.mark.parametrize(
    ("patch_distance", "sigma", "patch_weights"),
    [(None, 0.0, "uniform"), (2, 0.1, "uniform"), (40, 0.1, "gaussian")],
)
@pytest.mark.parametrize("patch_size", range(1, 10))
def test_equals_all_pairs(patch_size, patch_distance, sigma, patch_weights):
    image = np.random.default_rng(0).random((7, 9, 1))
    expected = literal(image, patch_size, patch_distance, 0.3, sigma, patch_weights)[..., 0]
    arguments = {"patch_size": patch_size, "patch_distance": patch_distance, "h": 0.3}
    arguments |= {"sigma": sigma, "patch_weights": patch_weights}
    assert_allclose(nonlocal_means(image[..., 0], **arguments), expected, atol=1e-13)
    A = nonlocal_means_matrix(image[..., 0], **arguments)
    assert_allclose(A @ image.ravel(), expected.ravel(), atol=1e-13)
    single = nonlocal_means(image[..., 0].astype(np.float32), **arguments)
    # The exponents are below 1 / 0.3^2, each right to a few units in the last place.
    assert_allclose(single, expected, atol=30 * EPS)


@pytest.mark.parametrize(("patch_distance", "patch_weights"), [(None, "uniform"), (3, "gaussian")])
def test_colour_equals_all_pairs(patch_distance, patch_weights):
    image = np.random.default_rng(0).random((6, 7, 3))
    expected = literal(image, 3, patch_distance, 0.3, 0.05, patch_weights)
    arguments = {"patch_size": 3, "patch_distance": patch_distance, "h": 0.3, "sigma": 0.05}
    arguments["patch_weights"] = patch_weights
    assert_allclose(nonlocal_means(image, channel_axis=-1, **arguments), expected, atol=1e-13)
    A = nonlocal_means_matrix(image, channel_axis=-1, **arguments)
    assert_allclose(A @ image.reshape(42, 3), expected.reshape(42, 3), atol=1e-13)
    first = nonlocal_means(np.moveaxis(image, -1, 0), channel_axis=0, **arguments)
    assert_allclose(first, np.moveaxis(expected, -1, 0), atol=1e-13)
    single = nonlocal_means(image.astype(np.float32), channel_axis=2, **arguments)
    assert_allclose(single, expected, atol=30 * EPS)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1)])
@pytest.mark.parametrize("patch_distance", [None, 3])
def test_images_of_few_pixels(shape, patch_distance):
    image = np.random.default_rng(0).random((*shape, 1))
    expected = literal(image, 1, patch_distance, 0.3, 0.1)[..., 0]
    arguments = {"patch_size": 1, "patch_distance": patch_distance, "h": 0.3, "sigma": 0.1}
    assert_allclose(nonlocal_means(image[..., 0], **arguments), expected, atol=1e-14)


@pytest.mark.parametrize(("h", "real"), [(0.05, np.float32), (0.3, np.float64), (1e30, np.float32)])
@pytest.mark.parametrize("width", [15, 16, 17, 33])
def test_rows_of_any_width(width, h, real):
    """Loops take whole numbers of 16 pixels; what they take beyond the image has no weight."""
    image = np.random.default_rng(0).random((5, width)).astype(real)
    for patch_size, weights in ((1, "uniform"), (5, "uniform"), (7, "uniform"), (5, "gaussian")):
        arguments = {"patch_size": patch_size, "h": h, "sigma": 0.05, "patch_weights": weights}
        found = nonlocal_means(image, patch_distance=width, **arguments)
        A = nonlocal_means_matrix(image.astype(float), patch_distance=width, **arguments)
        # Exponents are below 1 / 0.05^2, each right to a few units in the last place.
        tolerance = 1e-12 if real is np.float64 else 400 * 3 * EPS
        assert_allclose(found.ravel(), A @ image.ravel(), atol=tolerance)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(4, 12), st.integers(4, 12)),
    patch_size=st.integers(1, 7),
    patch_distance=st.one_of(st.none(), st.integers(0, 14)),
    h=st.floats(1e-3, 1e3),
    sigma=st.floats(0, 1),
    patch_weights=st.sampled_from(["uniform", "gaussian"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_is_an_average_and_odd_patches_turn_with_the_image(
    shape, patch_size, patch_distance, h, sigma, patch_weights, seed
):
    image = np.random.default_rng(seed).random(shape)
    arguments = {"patch_size": patch_size, "patch_distance": patch_distance, "h": h}
    arguments |= {"sigma": sigma, "patch_weights": patch_weights}
    found = nonlocal_means(image, **arguments)
    assert found.min() >= image.min() - 1e-14
    assert found.max() <= image.max() + 1e-14
    if patch_size % 2 == 0:
        return
    turned = nonlocal_means(np.rot90(image).copy(), **arguments)
    # Exponents are below 1e6, but weights that matter have exponents below 40.
    assert_allclose(turned, np.rot90(found), atol=1e-12)


@pytest.mark.parametrize("sigma", [0.0, 0.3])
@pytest.mark.parametrize(
    ("real", "power"),
    [(np.float32, -100), (np.float32, 90), (np.float64, -900), (np.float64, 900)],
)
def test_grey_levels_may_have_any_unit(real, power, sigma):
    """Squares of such differences are out of range; a power of two changes no digit."""
    image = np.random.default_rng(0).random((12, 12)).astype(real)
    unit = 2.0**power
    scaled, widths = image * real(unit), {"h": 0.2 * unit, "sigma": sigma * unit}
    found = nonlocal_means(scaled, **widths)
    assert_array_equal(found, nonlocal_means(image, h=0.2, sigma=sigma) * real(unit))
    A = nonlocal_means_matrix(scaled, **widths)
    assert_array_equal(A, nonlocal_means_matrix(image, h=0.2, sigma=sigma))


def test_float32_keeps_faint_texture_beside_a_bright_block():
    """Running sums or an integral image in float32 lose the texture: it is 1e-6 of the block."""
    rng = np.random.default_rng(0)
    image = 1e-3 * rng.random((40, 40))
    image[8:20, 8:20] += 1
    image = image.astype(np.float32)
    exact = nonlocal_means(image.astype(float), patch_size=7, h=2e-4)
    # Exponents that matter are below 40 and right to about 10 eps; texture is 1e-3.
    found = nonlocal_means(image, patch_size=7, h=2e-4)
    texture = exact < 0.5
    assert_allclose(found[texture], exact[texture], atol=1e-3 * 400 * EPS)
    assert np.abs(exact - image)[texture].max() > 1e-4
    box = np.cumsum(np.cumsum((image[:-1] - image[1:]) ** 2, axis=0), axis=1)
    box = box[7:, 7:] - box[7:, :-7] - box[:-7, 7:] + box[:-7, :-7]
    squares = (image[:-1].astype(float) - image[1:]) ** 2
    true = sliding_window_view(squares[1:, 1:], (7, 7)).sum(axis=(2, 3))
    assert np.abs(box - true)[true < 1e-3].max() / 49 / 2e-4**2 > 1e-2


def test_bandwidth_of_the_patch_form_and_erratum_e0b():
    """On patches of m pixels, s^2 = m h^2 / 2; reading h^2 as 2 s^2 and back as s^2 is not it."""
    image = np.random.default_rng(0).random((6, 7))
    patches = np.lib.stride_tricks.sliding_window_view(np.pad(image, 1, mode="reflect"), (3, 3))
    patches = patches.reshape(42, 9)
    h = 0.3
    found = nonlocal_means(image, patch_size=3, patch_distance=None, h=h).ravel()
    values = image.reshape(-1, 1)
    right = nadaraya_watson(patches, patches, values, bandwidth=np.sqrt(9 * h**2 / 2))
    assert_allclose(found, right.ravel(), atol=1e-13)
    distance = ((patches[:, None] - patches) ** 2).sum(axis=-1)
    whole = np.exp(-distance / (9 * h**2))
    assert_allclose(found, whole @ image.ravel() / whole.sum(axis=1), atol=1e-13)
    dot_product_scale = nadaraya_watson(patches, patches, values, bandwidth=np.sqrt(9 * h**2))
    assert np.abs(found - dot_product_scale.ravel()).max() > 1e-2


def test_default_decay_follows_the_noise_and_is_0_1_without():
    image = np.random.default_rng(0).random((12, 12))
    assert_array_equal(
        nonlocal_means(image, sigma=0.2), nonlocal_means(image, sigma=0.2, h=0.8 * 0.2)
    )
    assert_array_equal(nonlocal_means(image), nonlocal_means(image, h=0.1))
    plain = nonlocal_means_matrix(image.astype(np.float32))
    assert plain.dtype == np.float32
    assert_array_equal(plain, nonlocal_means_matrix(
        image.astype(np.float32), patch_size=5, patch_distance=6, h=0.1
    ))  # fmt: skip


def set12():
    try:
        return fetch_set12().images
    except FileNotFoundError:
        pytest.skip("Set12 is not here")


def test_defaults_reach_28_5_db_on_set12():
    values = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        for image in set12():
            noisy = (image + SIGMA * rng.standard_normal(image.shape)).astype(np.float32)
            denoised = nonlocal_means(noisy, sigma=SIGMA)
            values.append(peak_signal_noise_ratio(image, denoised, data_range=1.0))
    assert len(values) == 36
    assert np.mean(values) >= 28.5


@pytest.mark.parametrize(("colour", "sigma", "patch_size"), [(False, 0.1, 5), (True, 0.0, 7)])
def test_gaussian_patches_are_those_of_scikit_image(colour, sigma, patch_size):
    """Its exponential is interpolated (3 % of error), and it drops weights below e^-5."""
    rng = np.random.default_rng(0)
    blocks = rng.random((4, 4)).repeat(5, axis=0).repeat(5, axis=1)
    image = np.stack([blocks] * 3, axis=-1) if colour else blocks
    image = image + 0.1 * rng.standard_normal(image.shape)
    arguments = {"patch_size": patch_size, "patch_distance": 4, "sigma": sigma, "h": 0.4}
    arguments["channel_axis"] = -1 if colour else None
    expected = denoise_nl_means(image, fast_mode=False, **arguments)
    found = nonlocal_means(image, patch_weights="gaussian", **arguments)
    # Weights wrong by 3 % move an average by 3 % of the mean deviation of grey levels, 0.2 here.
    assert_allclose(found, expected, atol=6e-3)
    assert np.abs(nonlocal_means(image, **arguments) - expected).max() > 0.1


@pytest.mark.parametrize(
    "arguments", [{}, {"patch_weights": "gaussian", "n_jobs": 2}, {"patch_distance": None}]
)
def test_memory_is_at_most_twelve_images(arguments):
    side = 100 if "patch_distance" in arguments else 300
    image = np.random.default_rng(0).random((side, side)).astype(np.float32)
    nonlocal_means(image[:20, :20], **arguments)
    tracemalloc.start()
    nonlocal_means(image, **arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * image.nbytes


def test_tiny_h_leaves_the_image_and_a_huge_sigma_its_local_mean():
    for real in [np.float32, np.float64]:
        image = np.random.default_rng(0).random((8, 8)).astype(real)
        assert_array_equal(nonlocal_means(image, patch_size=3, h=1e-200), image)
        assert_array_equal(nonlocal_means_matrix(image, patch_size=3, h=1e-200), np.eye(64))
        flat = {"patch_distance": None, "sigma": 1e200, "h": 0.1}
        tol = 4 * np.finfo(real).eps
        assert_allclose(nonlocal_means(image, **flat), image.mean(), rtol=tol)
        assert_allclose(nonlocal_means_matrix(image, **flat), 1 / 64, rtol=tol)


def test_bad_settings_are_named():
    for image, arguments, words in [
        (np.ones((8, 8, 3)), {"channel_axis": 5}, "channel_axis: must be"),
        (np.ones((8, 8)), {"patch_size": 4.0}, "patch_size: must be a whole number"),
        (np.ones((3, 3)), {"patch_size": 6}, "patch_size: must be smaller.* got 6"),
        (np.ones((8, 8)), {"patch_size": 3, "h": 0}, "h: must be a finite number > 0"),
        (np.ones((8, 8)), {"patch_size": 3, "sigma": -1}, "sigma: must be a finite number >= 0"),
        (np.ones((8, 8)), {"patch_size": 3, "patch_distance": -1}, "patch_distance: must be"),
        (np.ones((8, 8)), {"patch_weights": "round"}, "patch_weights: must be"),
        (np.ones((0, 8)), {}, "image: must have"),
    ]:
        for function in (nonlocal_means, nonlocal_means_matrix):
            with pytest.raises(ValueError, match=words):
                function(image, **arguments)


@pytest.mark.parametrize(
    ("real", "outlier"),
    [(np.float32, 1e20), (np.float32, -2e38), (np.float64, 1e170), (np.float64, -1e308)],
)
@pytest.mark.parametrize(
    ("h", "sigma", "patch_weights"),
    [
        (1e-3, 0, "uniform"),
        (0.3, 0.05, "gaussian"),
        (0.01, 0.3, "uniform"),
        (1e-30, 0.3, "uniform"),
    ],
)
def test_an_outlier_or_fill_value_changes_no_other_pixel(real, outlier, h, sigma, patch_weights):
    image = np.random.default_rng(0).random((8, 7)).astype(real)
    image[0, 1] = outlier
    with np.errstate(over="ignore"):
        expected = literal(image.astype(float)[..., None], 3, None, h, sigma, patch_weights)
    arguments = {"patch_size": 3, "patch_distance": None, "h": h, "sigma": sigma}
    arguments["patch_weights"] = patch_weights
    # Exponents that matter are below 40, of differences of (sigma / h)^2 = 900 at most, or are 0.
    tol = (100 if h > sigma else 4000) * np.finfo(real).eps
    assert_allclose(nonlocal_means(image, **arguments), expected[..., 0], rtol=tol)
    A = nonlocal_means_matrix(image, **arguments)
    assert_allclose((A @ image.ravel()).reshape(8, 7), expected[..., 0], rtol=tol)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(("h", "sigma"), [(1e-30, 0), (0.1, 0), (0.1, 1e30), (1e30, 0.1)])
def test_constant_images_of_any_level_stay(real, h, sigma):
    limits = np.finfo(real)
    for level in (limits.max, -0.7 * limits.max, limits.tiny, limits.smallest_subnormal, 0):
        image = np.full((9, 8), level, dtype=real)
        assert_allclose(nonlocal_means(image, h=h, sigma=sigma), image, rtol=8 * limits.eps)


def test_float32_totals_are_added_in_float64():
    """Thousands of like terms, added one by one in float32, would err by many units."""
    image = (1 + np.random.default_rng(0).random((3000, 1))).astype(np.float32)
    found = nonlocal_means(image, patch_size=1, patch_distance=None, h=1e4)
    assert_allclose(found, image.astype(float).mean(), rtol=2 * EPS)
