"""Denoising: filters on noisy images, with PSNR and SSIM beside the time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from skimage.data import camera
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from skimage.morphology import disk
from skimage.restoration import denoise_bilateral, denoise_nl_means

from ...datasets import fetch_set12
from ...solvers import bilateral_filter, l2_boosting, nonlocal_means, sos_boosting, twicing
from ...solvers.solution import Array
from .contest import OURS, Contest, Method, on_threads

_SIGMA = 25 / 255
_OPENCV_H = 0.9 * _SIGMA  # it knows no sigma
_STRENGTH = {"h": 0.8 * _SIGMA, "sigma": _SIGMA}
_BORDER = 10
_BANDWIDTHS = {"sigma_color": 0.25, "sigma_spatial": 2.0}

Images = list[Array]


def make_nonlocal_means(seed: int, n_jobs: int, *, patch_size: int, patch_distance: int) -> Contest:
    size = {"patch_size": patch_size, "patch_distance": patch_distance}
    clean, noisy = _noisy([camera() / 255], seed)
    ours = partial(_each, nonlocal_means, noisy, **_STRENGTH, **size)
    return Contest(
        [*on_threads(ours, n_jobs), *_nonlocal_means_of_others(noisy, n_jobs, **size)],
        partial(_quality, clean),
    )


def make_gaussian_patches(seed: int, n_jobs: int) -> Contest:
    size = {"patch_size": 7, "patch_distance": 10}
    clean, noisy = _noisy([camera() / 255], seed)
    ours = partial(_each, nonlocal_means, noisy, patch_weights="gaussian", **_STRENGTH, **size)
    return Contest(
        [*on_threads(ours, n_jobs), _skimage_slow_mode(noisy, **size)], partial(_quality, clean)
    )


def make_bilateral_disk(seed: int, n_jobs: int) -> Contest:
    clean, noisy = _noisy([camera() / 255], seed)
    ours = partial(_each, bilateral_filter, noisy, footprint=disk(5), **_BANDWIDTHS)
    return Contest(
        [*on_threads(ours, n_jobs), _opencv_bilateral(noisy, n_jobs)], partial(_quality, clean)
    )


def make_bilateral_square(seed: int, n_jobs: int) -> Contest:
    clean, noisy = _noisy([camera() / 255], seed)
    settings: dict[str, Any] = _BANDWIDTHS | {"win_size": 11}
    ours = partial(_each, bilateral_filter, noisy, **settings)
    theirs = partial(_each, denoise_bilateral, noisy, mode="reflect", **settings)
    return Contest(
        [*on_threads(ours, n_jobs), Method("scikit-image", "scikit-image", theirs)],
        partial(_quality, clean),
    )


def make_set12(seed: int, n_jobs: int) -> Contest:
    """Our defaults, what others have, and our defaults boosted."""
    clean, noisy = _noisy(fetch_set12().images, seed)
    default = partial(nonlocal_means, sigma=_SIGMA, n_jobs=n_jobs)
    gaussian = partial(
        default, patch_size=7, patch_distance=5, h=0.95 * _SIGMA, patch_weights="gaussian"
    )
    boosted: dict[str, Callable[[Array], Array]] = {
        "twicing": partial(twicing, default),
        "L2 boosting, 5 steps": partial(l2_boosting, default, n_iter=5),
        "SOS boosting, 2 steps": partial(sos_boosting, default, n_iter=2, rho=0.5),
    }
    small, large = ({"patch_size": p, "patch_distance": d} for p, d in ((5, 6), (7, 10)))
    return Contest(
        [
            Method("nonlocal_means, defaults", OURS, partial(_each, default, noisy), n_jobs),
            Method(
                "nonlocal_means, Gaussian, 7 / 11", OURS, partial(_each, gaussian, noisy), n_jobs
            ),
            *_nonlocal_means_of_others(noisy, n_jobs, **small),
            *_nonlocal_means_of_others(noisy, n_jobs, **large),
            _skimage_slow_mode(noisy, **small),
            _opencv_bilateral(noisy, n_jobs),
            *(
                Method(f"{name} of the defaults", OURS, partial(_each, smooth, noisy), n_jobs)
                for name, smooth in boosted.items()
            ),
        ],
        partial(_quality, clean),
    )


def _noisy(images: Sequence[Array], seed: int) -> tuple[Images, Images]:
    rng = np.random.default_rng(seed)
    clean = [image.astype(np.float32) for image in images]
    return clean, [(u + _SIGMA * rng.standard_normal(u.shape)).astype(np.float32) for u in clean]


def _each(smooth: Callable[..., Array], images: Images, **settings: Any) -> Images:
    return [smooth(image, **settings) for image in images]


def _quality(clean: Images, result: Images, first: Images) -> dict[str, float]:
    """Means over the images of PSNR and SSIM; the largest difference from the first result.

    Packages read other pixels beyond the border: the difference is taken away from it.
    """
    pairs = list(zip(clean, result, strict=True))
    inside = (slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
    return {
        "psnr": np.mean([peak_signal_noise_ratio(u, v, data_range=1.0) for u, v in pairs]),
        "ssim": np.mean([structural_similarity(u, v, data_range=1.0) for u, v in pairs]),
        "difference": max(
            np.abs(u[inside] - v[inside]).max() for u, v in zip(result, first, strict=True)
        ),
    }


def _nonlocal_means_of_others(
    noisy: Images, n_jobs: int, *, patch_size: int, patch_distance: int
) -> list[Method]:
    window = 2 * patch_distance + 1
    size = {"patch_size": patch_size, "patch_distance": patch_distance}
    fast = partial(_each, denoise_nl_means, noisy, fast_mode=True, **_STRENGTH, **size)
    bytes_ = partial(_opencv_nonlocal_means, patch_size=patch_size, window=window)
    return [
        Method(f"scikit-image fast mode, {patch_size} / {window}", "scikit-image", fast),
        Method(
            f"OpenCV 8-bit, {patch_size} / {window}",
            "opencv",
            partial(_each, bytes_, noisy),
            n_jobs,
        ),
    ]


def _skimage_slow_mode(noisy: Images, *, patch_size: int, patch_distance: int) -> Method:
    size = {"patch_size": patch_size, "patch_distance": patch_distance}
    slow = partial(_each, denoise_nl_means, noisy, fast_mode=False, **_STRENGTH, **size)
    name = f"scikit-image slow mode, {patch_size} / {2 * patch_distance + 1}"
    return Method(name, "scikit-image", slow)


def _opencv_nonlocal_means(image: Array, *, patch_size: int, window: int) -> Array:
    import cv2

    noisy = np.rint(255 * image).clip(0, 255).astype(np.uint8)
    denoised: Any = cv2.fastNlMeansDenoising(noisy, None, 255 * _OPENCV_H, patch_size, window)
    return denoised.astype(np.float32) / np.float32(255)


def _opencv_bilateral(noisy: Images, n_jobs: int) -> Method:
    def smooth(image: Array) -> Any:
        import cv2

        color, spatial = _BANDWIDTHS.values()
        return cv2.bilateralFilter(image, 11, color, spatial)

    return Method("OpenCV bilateral, float32", "opencv", partial(_each, smooth, noisy), n_jobs)
