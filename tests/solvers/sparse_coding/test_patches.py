import numpy as np
import pytest
from scipy.fft import dct

from twinsolve.solvers import ista, sparse_code
from twinsolve.solvers.sparse_coding import (
    dct_dictionary,
    denoise_ista,
    denoise_lasso,
    denoise_low_rank,
    denoise_matching,
    denoise_patches,
    denoise_pursuit,
    image_patches,
    lasso_objective,
)
from twinsolve.solvers.sparse_coding.image_patches import patch_rows
from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows
from twinsolve.solvers.sparse_coding.patch_codes import (
    CodingParameters,
    ExpertParameters,
    coded_by,
    left_by,
)
from twinsolve.solvers.sparse_coding.patch_groups import _shrink_groups

D = dct_dictionary(4, 5)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).random(shape)


def stairs(side=24):
    return np.add.outer(np.arange(side) // 8, np.arange(side) // 12) / 4


def averaged(image, size, code):
    """Patch by patch, pixel by pixel."""
    total, covers = np.zeros_like(image), np.zeros_like(image)
    for i in range(image.shape[0] - size + 1):
        for j in range(image.shape[1] - size + 1):
            patch = image[i : i + size, j : j + size]
            found = code((patch - patch.mean()).reshape(1, -1)).reshape(size, size)
            total[i : i + size, j : j + size] += found + patch.mean()
            covers[i : i + size, j : j + size] += 1
    return total / covers


@pytest.mark.parametrize("band", [1, 10, 2**14])
def test_averages_are_those_of_single_patches(band, monkeypatch):
    monkeypatch.setattr(image_patches, "_BAND_PATCHES", band)
    image = draw(9, 7)

    def code(rows):
        return ista(rows, D, lam=0.2, n_iter=3).coef @ D

    found = denoise_patches(image, code, patch_size=4)
    np.testing.assert_allclose(found, averaged(image, 4, code), rtol=1e-12)


def test_channels_lose_their_own_means_and_have_their_own_atoms():
    image = draw(3, 9, 8)
    found = denoise_ista(image, dct_dictionary(4, 5, 3), lam=0.3, n_iter=4, channel_axis=0)
    expected = [denoise_ista(plane, D, lam=0.3, n_iter=4) for plane in image]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_as_many_frequencies_as_pixels_are_the_orthonormal_dct():
    atoms = dct_dictionary(4, 4)
    waves = dct(np.eye(4), norm="ortho", axis=0)
    np.testing.assert_allclose(atoms, np.kron(waves, waves)[1:], atol=1e-14)


def test_lasso_is_certified_and_iterations_tend_to_it():
    image = draw(8, 8)
    solved, gap = denoise_lasso(image, D, lam=0.3, tol=1e-10)
    assert gap < 1e-8
    far, near = (denoise_ista(image, D, lam=0.3, n_iter=n) for n in (5, 2000))
    assert np.abs(near - solved).max() < 1e-4 < np.abs(far - solved).max()
    rows = patch_rows(image[None], 4)
    rows = rows - rows.mean(axis=1, keepdims=True)
    codes = sparse_code(rows, D, lam=0.3, tol=1e-3)
    best = sparse_code(rows, D, lam=0.3, tol=1e-12).coef
    loose = denoise_lasso(image, D, lam=0.3, tol=1e-3)[1]
    excess = lasso_objective(rows, D, codes.coef, lam=0.3) - lasso_objective(rows, D, best, lam=0.3)
    assert loose >= np.max(excess)


def test_pursuit_stops_at_the_noise():
    image = draw(8, 8)
    sigma = 0.1
    residuals = []

    def code(rows):
        found = pursue_rows(rows, D, 16, 1.15 * sigma * 4) @ D
        residuals.append(np.linalg.norm(rows - found, axis=1))
        return found

    expected = denoise_patches(image, code, patch_size=4)
    np.testing.assert_allclose(denoise_pursuit(image, D, sigma=sigma), expected)
    assert np.concatenate(residuals).max() <= 1.15 * sigma * 4


def test_noise_is_removed():
    clean = stairs()
    noisy = clean + np.random.default_rng(0).normal(0, 0.1, clean.shape)
    for found in (
        denoise_matching(noisy, D, threshold=0.15, n_iter=4),
        denoise_low_rank(noisy, sigma=0.1, patch_size=5, n_similar=20, window=8),
    ):
        assert np.square(found - clean).mean() < 0.5 * np.square(noisy - clean).mean()


def test_low_rank_groups_without_noise_are_kept():
    clean = stairs()
    np.testing.assert_allclose(denoise_low_rank(clean, sigma=1e-9), clean, atol=1e-8)


def test_low_rank_shrinkage_is_the_fixed_point_of_reweighting():

    group = draw(1, 12, 9)
    sigma, gain = 0.1, 0.5
    found, weights = _shrink_groups(group, sigma, gain)
    mean = group.mean(axis=1, keepdims=True)
    s, x = (np.linalg.svd((g - mean)[0])[1] for g in (group, found))
    c = 2 * gain * 12**0.5 * sigma**2
    kept = x > 1e-10
    assert 0 < kept.sum() < len(s)
    np.testing.assert_allclose(x[kept], s[kept] - c / x[kept], rtol=1e-10)
    assert (s[~kept] ** 2 <= 4 * c).all()
    assert weights[0] == 1 / (1 + kept.sum())


def test_bad_arguments_are_named():
    for call, words in [
        (lambda: denoise_ista(draw(3, 8), D, lam=0.1, n_iter=1), "patch_size"),
        (lambda: denoise_ista(draw(8, 8), draw(5, 15), lam=0.1, n_iter=1), "dictionary"),
        (lambda: denoise_pursuit(draw(8, 8), D, sigma=0.0), "sigma"),
        (lambda: denoise_low_rank(draw(8, 8), sigma=0.1, stride=8), "stride"),
        (lambda: denoise_low_rank(1e155 * draw(8, 8), sigma=0.1), "image.*loses precision"),
        (lambda: dct_dictionary(4, 3), "n_frequencies"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_a_threshold_of_zero_keeps_all_and_makes_no_nan():
    Y, eye = np.array([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0]]), np.eye(3)
    layer = CodingParameters(eye, eye, 1.0, np.zeros(3), sharing=0.5)
    np.testing.assert_array_equal(coded_by(Y, [layer], np.array([[0, 1], [0, 1]])), Y)
    residual = left_by(
        np.array([[0.0, 0.0, 0.0], [0.0, 3.0, 1.0]]), [ExpertParameters(eye, eye, eye, 0.0)]
    )
    np.testing.assert_array_equal(residual, [[0, 0, 0], [0, 0, 1]])
