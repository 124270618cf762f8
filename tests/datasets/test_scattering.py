import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import load_photographs, scattering, scattering_features


@pytest.fixture(scope="module")
def crops():
    """Forty pieces of a photograph, 32 x 32."""
    image = load_photographs().images[0]
    return np.stack(
        [image[i : i + 32, j : j + 32] for i in range(0, 350, 80) for j in range(0, 600, 80)]
    )


def maps(features, angles, scales=3):
    """S_0, S_1 by (j, theta) and S_2 by pair, theta, theta', each with rows and columns."""
    side = 32 // 2**scales
    found = features.reshape(len(features), -1, side, side)
    zero, first, second = np.split(found, [1, 1 + scales * angles], axis=1)
    return (
        zero,
        first.reshape(len(found), scales, angles, side, side),
        second.reshape(len(found), -1, angles, angles, side, side),
    )


def test_features_follow_the_formula(crops):
    """Cyclic convolutions written out, on the wavelets and the low-pass of the map itself."""
    x = crops[0]
    bank = scattering._filters((32, 32), 2, 4)
    zero, first, second = maps(scattering_features(x[None], scales=2, angles=4), 4, scales=2)

    def convolved(u, j, angle):
        kernel = np.fft.ifft2(bank.wavelets[j, angle])
        shifts = [(a, b) for a in range(32) for b in range(32)]
        return sum(kernel[a, b] * np.roll(u, (a, b), axis=(0, 1)) for a, b in shifts)

    distance = (np.arange(32) - (4 * 2 + 1.5) + 16) % 32 - 16  # around the border
    gaussian = np.exp(-((distance / (0.8 * 4)) ** 2) / 2)
    gaussian /= gaussian.sum()

    def at_block_two(u):
        return 4 * gaussian @ u @ gaussian

    assert zero[0, 0, 2, 2] == pytest.approx(at_block_two(x), rel=1e-4)
    modulus = np.abs(convolved(x, 0, 1))
    assert first[0, 0, 1, 2, 2] == pytest.approx(at_block_two(modulus), rel=1e-4)
    modulus = np.abs(convolved(modulus, 1, 3))
    assert second[0, 0, 1, 3, 2, 2] == pytest.approx(at_block_two(modulus), rel=1e-4)


@pytest.mark.parametrize("angles", [4, 8])
def test_wavelets_are_those_of_morlet(angles):
    """In space: a Gaussian times a wave less its mean, up to one common factor."""
    bank = scattering._filters((64, 64), 2, angles)
    y, x = np.meshgrid(*[np.fft.fftfreq(64, 1 / 64)] * 2, indexing="ij")
    ratios = []
    for j in range(2):
        for number, theta in enumerate(np.pi * np.arange(angles) / angles):
            along = x * np.cos(theta) + y * np.sin(theta)
            across = y * np.cos(theta) - x * np.sin(theta)
            width = 0.8 * 2**j
            squares = along**2 + (across / (angles / 4)) ** 2
            gaussian = np.exp(-squares / (2 * width**2)) / width**2
            wave = gaussian * np.exp(3j * np.pi / 4 / 2**j * along)
            expected = wave - wave.sum() / gaussian.sum() * gaussian
            kernel = np.fft.ifft2(bank.wavelets[j, number])
            factor = np.vdot(expected, kernel) / np.vdot(expected, expected)
            assert_allclose(kernel, factor * expected, atol=1e-6 * np.abs(kernel).max())
            ratios.append(factor)
    assert_allclose(ratios, ratios[0], rtol=1e-6)
    assert abs(bank.wavelets[:, :, 0, 0]).max() < 1e-15


@pytest.mark.parametrize("angles", [6])
def test_a_quarter_turn_turns_the_maps_and_shifts_the_angles(crops, angles):
    zero, first, second = maps(scattering_features(crops, angles=angles), angles)
    turned = scattering_features(np.rot90(crops, axes=(1, 2)), angles=angles)
    expected = [
        np.rot90(zero, axes=(-2, -1)),
        np.rot90(np.roll(first, angles // 2, axis=2), axes=(-2, -1)),
        np.rot90(np.roll(second, (angles // 2, angles // 2), axis=(2, 3)), axes=(-2, -1)),
    ]
    for part, other in zip(maps(turned, angles), expected, strict=True):
        assert_allclose(part, other, atol=1e-12)


@pytest.mark.parametrize("scales", [3])
def test_distances_do_not_grow(crops, scales):
    noise = np.random.default_rng(0).standard_normal(crops.shape)
    for images in (crops, noise, crops + noise):
        found = scattering_features(images, scales=scales)
        far = np.linalg.norm((images[1:] - images[:-1]).reshape(len(images) - 1, -1), axis=1)
        assert (np.linalg.norm(found[1:] - found[:-1], axis=1) <= 1.01 * far).all()
        assert (np.linalg.norm(found, axis=1) > 0.3 * np.linalg.norm(images, axis=(1, 2))).all()


@pytest.mark.parametrize(("scales", "angles", "side"), [(1, 4, 8), (3, 8, 16)])
def test_each_layer_grows_no_energy_beyond_the_aliasing(scales, angles, side):
    """The largest eigenvalue of (sampled low-pass, wavelets)^T (both), on real images."""
    bank = scattering._filters((side, side), scales, angles)
    low = np.kron(bank.rows, bank.columns)
    waves = (bank.wavelets**2).sum(axis=(0, 1)).ravel()
    fourier = np.kron(np.fft.fft(np.eye(side)), np.fft.fft(np.eye(side))) / side
    frame = low.T @ low + (fourier.conj().T * waves @ fourier).real
    largest = np.linalg.eigvalsh((frame + frame.T) / 2)[-1]
    assert largest <= 1.01 ** (2 / 3)  # three layers at most, each twice in a squared norm


def test_colours_float32_and_batches(crops):
    images = np.stack([crops, crops[::-1]], axis=-1).astype(np.float32)
    found = scattering_features(images)
    assert found.dtype == np.float32
    assert found.shape == (len(crops), 2 * 217 * 16)
    grey = scattering_features(crops)
    assert_allclose(found[:, :3472], grey, atol=1e-5 * np.abs(grey).max())
    assert_allclose(found[:, 3472:], grey[::-1], atol=1e-5 * np.abs(grey).max())


def test_images_need_not_be_square():
    assert scattering_features(np.ones((2, 8, 16)), scales=2, angles=4).shape == (2, 25 * 8)


def test_bad_images_are_named():
    for images, settings, words in [
        (np.ones((2, 12, 16)), {}, "scales, angles: must be >= 1, and 2.scales must divide"),
        (np.ones((2, 16, 16)), {"scales": 0}, "scales, angles: must be >= 1"),
        (np.ones((2, 16, 16)), {"angles": 0}, "scales, angles: must be >= 1"),
        (np.ones((16, 16)), {}, "images: must have shape"),
        (np.full((2, 16, 16), np.nan), {}, "images contains NaN"),
    ]:
        with pytest.raises(ValueError, match=words):
            scattering_features(images, **settings)
