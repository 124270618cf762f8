import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax
from skimage.metrics import peak_signal_noise_ratio

from twinsolve.datasets import load_photographs, make_noisy_crop
from twinsolve.solvers import nadaraya_watson, nonlocal_means, nonlocal_means_matrix


def literal(image, patch_size, patch_distance, h, sigma):
    """Double loop over pixels, colour or grey with a channel axis last."""
    r = patch_size // 2
    padded = np.pad(image, ((r, r), (r, r), (0, 0)), mode="reflect")
    height, width, _ = image.shape
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            own = padded[y : y + patch_size, x : x + patch_size]
            total, mass = 0.0, 0.0
            for yy in range(height):
                for xx in range(width):
                    if (
                        patch_distance is not None
                        and max(abs(y - yy), abs(x - xx)) > patch_distance
                    ):
                        continue
                    other = padded[yy : yy + patch_size, xx : xx + patch_size]
                    d2 = ((own - other) ** 2).mean()
                    w = np.exp(-max(d2 - 2 * sigma**2, 0) / h**2)
                    total, mass = total + w * image[yy, xx], mass + w
            out[y, x] = total / mass
    return out


@pytest.mark.parametrize("sigma", [0.0, 0.1])
@pytest.mark.parametrize("patch_distance", [None, 0, 2, 40])
@pytest.mark.parametrize("patch_size", [1, 3, 5])
def test_equals_the_double_loop(patch_size, patch_distance, sigma):
    image = np.random.default_rng(0).random((7, 9, 1))
    found = nonlocal_means(
        image[..., 0], patch_size=patch_size, patch_distance=patch_distance, h=0.3, sigma=sigma
    )
    assert_allclose(
        found, literal(image, patch_size, patch_distance, 0.3, sigma)[..., 0], atol=1e-12
    )


@pytest.mark.parametrize("patch_distance", [None, 3])
def test_colour_equals_the_double_loop(patch_distance):
    image = np.random.default_rng(0).random((6, 7, 3))
    expected = literal(image, 3, patch_distance, 0.3, 0.05)
    settings = {"patch_size": 3, "patch_distance": patch_distance, "h": 0.3, "sigma": 0.05}
    assert_allclose(nonlocal_means(image, channel_axis=-1, **settings), expected, atol=1e-12)
    first = nonlocal_means(np.moveaxis(image, -1, 0), channel_axis=0, **settings)
    assert_allclose(first, np.moveaxis(expected, -1, 0), atol=1e-12)


def test_pixel_form_is_softmax_of_squared_differences_se8():
    y = np.random.default_rng(0).random((4, 5))
    s = 0.2
    flat = y.ravel()
    expected = softmax(-((flat[:, None] - flat) ** 2) / (2 * s**2), axis=1) @ flat
    found = nonlocal_means(y, patch_size=1, patch_distance=None, h=np.sqrt(2) * s)
    assert_allclose(found.ravel(), expected, atol=1e-12)


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


@pytest.mark.parametrize("patch_distance", [None, 2])
def test_matrix_is_row_stochastic_and_gives_the_image(patch_distance):
    image = np.random.default_rng(0).random((6, 5))
    settings = {"patch_size": 3, "patch_distance": patch_distance, "h": 0.2, "sigma": 0.02}
    A = nonlocal_means_matrix(image, **settings)
    assert_allclose(A.sum(axis=1), 1, rtol=1e-14)
    assert (A >= 0).all()
    assert_allclose(A @ image.ravel(), nonlocal_means(image, **settings).ravel(), atol=1e-14)


def test_denoises_a_photograph():
    image = load_photographs().images[1]
    noisy, clean = make_noisy_crop(image, size=96, sigma=0.1, random_state=0)
    denoised = nonlocal_means(noisy, patch_size=7, patch_distance=10, h=0.08, sigma=0.1)
    before, after = (peak_signal_noise_ratio(clean, u, data_range=1.0) for u in (noisy, denoised))
    assert after > before + 4


def test_constant_image_and_large_h():
    assert_allclose(nonlocal_means(np.full((8, 8), 0.3), patch_size=3), 0.3, rtol=1e-14)
    image = np.random.default_rng(0).random((8, 8))
    flat = nonlocal_means(image, patch_size=3, patch_distance=None, h=1e6)
    assert_allclose(flat, image.mean(), atol=1e-10)


def test_tiny_h_leaves_the_image():
    image = np.random.default_rng(0).random((8, 8))
    assert_allclose(nonlocal_means(image, patch_size=3, h=1e-200), image, rtol=1e-14)


def test_float32_is_kept():
    image = np.random.default_rng(0).random((8, 8)).astype(np.float32)
    found = nonlocal_means(image, patch_size=3, patch_distance=2)
    assert found.dtype == np.float32
    exact = nonlocal_means(image.astype(np.float64), patch_size=3, patch_distance=2)
    assert_allclose(found, exact, atol=np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("image", "settings", "words"),
    [
        (np.ones((8, 8, 3)), {}, "image: must have 2 dimensions"),
        (np.ones((8, 8)), {"channel_axis": -1}, "image: must have 3 dimensions"),
        (np.full((8, 8), np.nan), {"patch_size": 3}, "image: must not hold NaN"),
        (np.ones((8, 8), complex), {}, "image: must hold real"),
        (np.ones((8, 8, 3)), {"channel_axis": 5}, "channel_axis: must be"),
        (np.ones((8, 8)), {"patch_size": 4}, "patch_size: must be odd"),
        (np.ones((3, 3)), {"patch_size": 7}, "patch_size: 7 is too large"),
        (np.ones((8, 8)), {"patch_size": 3, "h": 0}, "h: must be > 0"),
        (np.ones((8, 8)), {"patch_size": 3, "sigma": -1}, "sigma: must be >= 0"),
        (np.ones((8, 8)), {"patch_size": 3, "patch_distance": -1}, "patch_distance: must be"),
    ],
)
def test_bad_input_is_named(image, settings, words):
    with pytest.raises(ValueError, match=words):
        nonlocal_means(image, **settings)
