"""Estimates of the noise: white, smoothed by a camera, in a JPEG, and where there is none."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import convolve, gaussian_filter
from skimage.restoration import estimate_sigma

from twinsolve.bench.vision.denoising.noise_estimate import estimate_noise
from twinsolve.datasets import add_noise, load_photographs

SIGMA = 20 / 255
AROUND = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]]) / 4
CROSS = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0]]) / 4


@pytest.fixture(scope="module")
def photographs():
    return load_photographs(colour=True).images


def through_a_camera(image, noise):
    """Bayer samples, red top left, with noise; the other colours by linear interpolation."""
    rows, columns = np.indices(noise.shape) % 2
    colours = rows + columns  # 0 red, 1 green, 2 blue
    raw = np.take_along_axis(image, colours[..., None], axis=2)[..., 0] + noise
    kernels = (AROUND, CROSS, AROUND)
    planes = [convolve(raw * (colours == c), kernels[c], mode="mirror") for c in range(3)]
    return np.stack(planes, axis=-1)


def filed(image, quality):
    file = io.BytesIO()
    pixels = np.rint(255 * image.clip(0, 1)).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


@pytest.mark.parametrize("sigma", [5, 10, 25, 50])
def test_white_noise_is_found_to_four_percent(sigma, photographs):
    for image in photographs:
        noisy = add_noise(image, sigma=sigma / 255, random_state=0)
        assert 255 * estimate_noise(noisy) == pytest.approx(sigma, rel=0.04)


@pytest.mark.parametrize("quality", [90, 95])
def test_the_noise_of_a_phone_is_found_to_fifteen_percent(quality, photographs):
    rng = np.random.default_rng(0)
    for image in photographs:
        noise = SIGMA * rng.standard_normal(image.shape[:2])
        noisy, clean = (filed(through_a_camera(image, x), quality) for x in (noise, 0 * noise))
        left = (noisy - clean).std()
        assert left < 0.7 * SIGMA  # interpolation has smoothed it
        assert estimate_noise(noisy) == pytest.approx(left, rel=0.15)


def test_an_estimate_is_not_low_because_it_chooses_blocks():
    noise = np.random.default_rng(0).standard_normal((480, 480, 1))
    assert estimate_noise(noise) == pytest.approx(1, rel=0.02)
    smooth = gaussian_filter(noise, (1, 1, 0))
    # The planes of its blocks take a tenth of noise that reaches over five pixels.
    assert estimate_noise(smooth) == pytest.approx(0.9 * smooth.std(), rel=0.03)


def test_clipped_and_transparent_blocks_do_not_count(photographs):
    noisy = add_noise(photographs[0], sigma=SIGMA, random_state=0)
    dark = noisy - noisy.min() * np.ones(3)
    dark[:200] = np.where(np.random.default_rng(1).random((200, 640, 3)) < 0.5, 0, 0.02)
    assert estimate_noise(dark.clip(0, None)) == pytest.approx(SIGMA, rel=0.1)
    seen = np.ones(noisy.shape[:2], dtype=bool)
    seen[:200] = False
    hidden = np.where(seen[..., None], noisy, 0.5)
    assert estimate_noise(hidden, seen) == pytest.approx(SIGMA, rel=0.1)
    assert estimate_noise(hidden) < SIGMA / 10


def test_pictures_of_few_blocks_are_estimated_as_white_noise():
    noise = 0.5 + 0.1 * np.random.default_rng(0).standard_normal((30, 30, 1))
    assert estimate_noise(noise) == pytest.approx(0.1, rel=0.15)
    for side in (30, 200):
        assert estimate_noise(np.full((side, side, 1), 0.5)) < 1e-15


def test_without_holes_white_noise_is_estimated_as_by_scikit_image():
    noise = np.random.default_rng(0).normal(0, 0.1, (50, 61, 2))
    expected = np.mean([estimate_sigma(noise[..., c]) for c in range(2)])
    assert estimate_noise(noise) == pytest.approx(expected, rel=1e-12)


def test_holes_are_no_noise():
    rng = np.random.default_rng(0)
    noise = 0.5 + rng.normal(0, 0.1, (150, 160, 1))
    seen = rng.random(noise.shape[:2]) > 0.1
    for fill in (0.0, 0.5, 1.0):
        levels = np.where(seen[..., None], noise, fill)
        assert estimate_noise(levels, seen) == pytest.approx(0.1, rel=0.05)
    assert estimate_noise(np.where(seen[..., None], 0.5, 0.0), seen) < 1e-15
    assert np.isnan(estimate_noise(noise, np.indices(noise.shape[:2]).sum(axis=0) % 2 == 0))
