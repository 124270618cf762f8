"""Denoising: filters on noisy images, with PSNR and SSIM beside the time."""

from collections.abc import Callable
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
from .contest import OURS
from .methods import Case, Contest, Method, on_threads

_SIGMA = 25 / 255
_OPENCV_H = 0.9 * _SIGMA  # it knows no sigma
_STRENGTH: dict[str, Any] = {"h": 0.8 * _SIGMA, "sigma": _SIGMA}
_BORDER = 10
_BANDWIDTHS: dict[str, Any] = {"sigma_color": 0.25, "sigma_spatial": 2.0}

Images = list[Array]


def make_nonlocal_means(
    seed: int, n_jobs: int, *, patch_size: int, patch_distance: int, dtype: str
) -> Contest:
    size: dict[str, Any] = {"patch_size": patch_size, "patch_distance": patch_distance}
    ours = partial(nonlocal_means, **_STRENGTH, **size)
    methods = [
        *on_threads(ours, n_jobs),
        _patches_of_scikit_image(n_jobs, **size),
        *_nonlocal_means_of_others(n_jobs, **size),
    ]
    return _contest([camera() / 255], methods, seed, dtype)


def make_gaussian_patches(seed: int, n_jobs: int, *, dtype: str) -> Contest:
    size: dict[str, Any] = {"patch_size": 7, "patch_distance": 10}
    ours = partial(nonlocal_means, patch_weights="gaussian", **_STRENGTH, **size)
    return _contest([camera() / 255], [*on_threads(ours, n_jobs), _slow_mode(**size)], seed, dtype)


def make_bilateral_disk(seed: int, n_jobs: int) -> Contest:
    ours = partial(bilateral_filter, footprint=disk(5), **_BANDWIDTHS)
    methods = [*on_threads(ours, n_jobs), _opencv_bilateral(n_jobs)]
    return _contest([camera() / 255], methods, seed, "float32")


def make_bilateral_square(seed: int, n_jobs: int, *, dtype: str) -> Contest:
    settings = _BANDWIDTHS | {"win_size": 11}
    ours = partial(bilateral_filter, **settings)
    theirs = partial(denoise_bilateral, mode="reflect", **settings)
    methods = [*on_threads(ours, n_jobs), Method("scikit-image", "scikit-image", theirs)]
    return _contest([camera() / 255], methods, seed, dtype)


def make_set12(seed: int, n_jobs: int) -> Contest:
    """Our defaults, what others have, and our defaults boosted."""
    default = partial(nonlocal_means, sigma=_SIGMA, n_jobs=n_jobs)
    gaussian = partial(
        default, patch_size=7, patch_distance=5, h=0.95 * _SIGMA, patch_weights="gaussian"
    )
    ours: dict[str, Callable[[Array], Array]] = {
        "defaults": default,
        "Gaussian 7 / 11": gaussian,
        "twicing": partial(twicing, default),
        "L2 boosting, 5 steps": partial(l2_boosting, default, n_iter=5),
        "SOS boosting, 2 steps": partial(sos_boosting, default, n_iter=2, rho=0.5),
    }
    methods = [
        *(Method(f"{OURS}, {name}", OURS, smooth, n_jobs) for name, smooth in ours.items()),
        _patches_of_scikit_image(n_jobs, patch_size=5, patch_distance=6),
        *_nonlocal_means_of_others(n_jobs, patch_size=5, patch_distance=6),
        _patches_of_scikit_image(n_jobs, patch_size=7, patch_distance=10),
        *_nonlocal_means_of_others(n_jobs, patch_size=7, patch_distance=10),
        _slow_mode(patch_size=5, patch_distance=6),
        _opencv_bilateral(n_jobs),
    ]
    return _contest(fetch_set12().images, methods, seed, "float32")


def _contest(images: Images, methods: list[Method], seed: int, dtype: str) -> Contest:
    clean, noisy = _noisy(images, seed, dtype)
    return Contest([(image,) for image in noisy], methods, partial(_quality, clean))


def _noisy(images: Images, seed: int, dtype: str) -> tuple[Images, Images]:
    rng = np.random.default_rng(seed)
    clean = [image.astype(dtype) for image in images]
    return clean, [(u + _SIGMA * rng.standard_normal(u.shape)).astype(dtype) for u in clean]


def _quality(clean: Images, results: Images, first: Images) -> dict[str, float]:
    """Means over the images of PSNR and SSIM; the largest difference from the first results.

    Packages read other pixels beyond the border: the difference is taken away from it.
    """
    pairs = list(zip(clean, results, strict=True))
    inside = (slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
    differences = (np.abs(u[inside] - v[inside]) for u, v in zip(results, first, strict=True))
    return {
        "psnr": float(np.mean([peak_signal_noise_ratio(u, v, data_range=1.0) for u, v in pairs])),
        "ssim": float(np.mean([structural_similarity(u, v, data_range=1.0) for u, v in pairs])),
        "difference": max(difference.max() for difference in differences),
    }


def _patches_of_scikit_image(n_jobs: int, *, patch_size: int, patch_distance: int) -> Method:
    """Its fast mode divides the sum over ``(patch_size - 1)^2`` pixels by ``patch_size^2``."""
    name = f"{OURS}, scikit-image's {patch_size} / {2 * patch_distance + 1}"
    ours = partial(
        nonlocal_means,
        patch_size=patch_size - 1,
        patch_distance=patch_distance,
        h=_STRENGTH["h"] * patch_size / (patch_size - 1),
        sigma=_SIGMA,
        n_jobs=n_jobs,
    )
    return Method(name, OURS, ours, n_jobs)


def _nonlocal_means_of_others(n_jobs: int, *, patch_size: int, patch_distance: int) -> list[Method]:
    window = 2 * patch_distance + 1
    size: dict[str, Any] = {"patch_size": patch_size, "patch_distance": patch_distance}
    fast = partial(denoise_nl_means, fast_mode=True, **_STRENGTH, **size)
    in_bytes = partial(_opencv_nonlocal_means, patch_size=patch_size, window=window)
    return [
        Method(f"scikit-image fast mode, {patch_size} / {window}", "scikit-image", fast),
        Method(f"OpenCV 8-bit, {patch_size} / {window}", "opencv", in_bytes, n_jobs),
    ]


def _slow_mode(*, patch_size: int, patch_distance: int) -> Method:
    size: dict[str, Any] = {"patch_size": patch_size, "patch_distance": patch_distance}
    name = f"scikit-image slow mode, {patch_size} / {2 * patch_distance + 1}"
    slow = partial(denoise_nl_means, fast_mode=False, **_STRENGTH, **size)
    return Method(name, "scikit-image", slow)


def _opencv_nonlocal_means(image: Array, *, patch_size: int, window: int) -> Array:
    import cv2

    noisy = np.rint(255 * image).clip(0, 255).astype(np.uint8)
    denoised: Any = cv2.fastNlMeansDenoising(noisy, None, 255 * _OPENCV_H, patch_size, window)
    return denoised.astype(image.dtype) / image.dtype.type(255)


def _opencv_bilateral(n_jobs: int) -> Method:
    def smooth(image: Array) -> Any:
        import cv2

        return cv2.bilateralFilter(
            image, 11, _BANDWIDTHS["sigma_color"], _BANDWIDTHS["sigma_spatial"]
        )

    return Method("OpenCV bilateral, float32", "opencv", smooth, n_jobs)


_DTYPES = ("float64", "float32")
_SIZE = "512 x 512"
IMAGE_CASES = (
    *(
        Case(
            f"nlm-{size}-{2 * distance + 1}-{dtype}",
            f"non-local means, uniform patches, {_SIZE}",
            partial(make_nonlocal_means, patch_size=size, patch_distance=distance, dtype=dtype),
            dtype,
        )
        for size, distance in ((7, 10), (5, 6))
        for dtype in _DTYPES
    ),
    *(
        Case(
            f"nlm-gaussian-7-21-{dtype}",
            f"non-local means, Gaussian patch weights, {_SIZE}",
            partial(make_gaussian_patches, dtype=dtype),
            dtype,
        )
        for dtype in _DTYPES
    ),
    Case(
        "bilateral-disk-11-float32",
        f"bilateral filter on disks, {_SIZE}",
        make_bilateral_disk,
        "float32",
    ),
    *(
        Case(
            f"bilateral-square-11-{dtype}",
            f"bilateral filter on squares, {_SIZE}",
            partial(make_bilateral_square, dtype=dtype),
            dtype,
        )
        for dtype in _DTYPES
    ),
    Case(
        "set12",
        "the 12 images, noise of 25 grey levels",
        make_set12,
        "float32",
        once=True,
        memory=False,
    ),
)
