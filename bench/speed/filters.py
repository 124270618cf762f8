"""`twinsolve speed filters`."""

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from skimage.data import camera
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from skimage.morphology import disk
from skimage.restoration import denoise_bilateral, denoise_nl_means

from ...datasets import fetch_set12
from ...solvers import bilateral_filter, l2_boosting, nonlocal_means, sos_boosting, twicing
from ...solvers.solution import Array, check_folder
from ..timing import Progress, threads
from .contest import OURS, Rounds, chosen, compete, installed, run_cases
from .peers import Calls, Case, Contest, Method, on_threads
from .point_cases import POINT_CASES

_SIGMA = 25 / 255
_OPENCV_H = 0.9 * _SIGMA  # it knows no sigma
_STRENGTH: dict[str, Any] = {"h": 0.8 * _SIGMA, "sigma": _SIGMA}
_BORDER = 10
_BANDWIDTHS: dict[str, Any] = {"sigma_color": 0.25, "sigma_spatial": 2.0}

Images = list[Array]
Methods = Callable[[int], list[Method]]  # of a number of threads


def _uniform_patches(n_jobs: int, *, patch: int, distance: int) -> list[Method]:
    ours = partial(nonlocal_means, patch_size=patch, patch_distance=distance, **_STRENGTH)
    return [*on_threads(ours, n_jobs), *_fast_nonlocal_means(n_jobs, patch, distance)]


def _fast_nonlocal_means(n_jobs: int, patch: int, distance: int) -> list[Method]:
    """OpenCV, scikit-image, and ours on what scikit-image compares.

    Its fast mode divides the sum over ``(patch - 1)^2`` pixels by ``patch^2``.
    """
    size = f"{patch} / {2 * distance + 1}"
    ours = partial(
        nonlocal_means,
        patch_size=patch - 1,
        patch_distance=distance,
        h=_STRENGTH["h"] * patch / (patch - 1),
        sigma=_SIGMA,
        n_jobs=n_jobs,
    )
    fast = partial(denoise_nl_means, patch_size=patch, patch_distance=distance, **_STRENGTH)
    in_bytes = partial(_opencv_nonlocal_means, patch=patch, window=2 * distance + 1)
    return [
        Method(f"{OURS}, scikit-image's {size}", OURS, ours, n_jobs),
        Method(f"scikit-image fast mode, {size}", "scikit-image", fast),
        Method(f"OpenCV 8-bit, {size}", "opencv", in_bytes, n_jobs),
    ]


def _slow_nonlocal_means(patch: int, distance: int) -> Method:
    name = f"scikit-image slow mode, {patch} / {2 * distance + 1}"
    slow = partial(denoise_nl_means, fast_mode=False, **_STRENGTH)
    return Method(name, "scikit-image", partial(slow, patch_size=patch, patch_distance=distance))


def _gaussian_patches(n_jobs: int) -> list[Method]:
    size = {"patch_size": 7, "patch_distance": 10}
    ours = partial(nonlocal_means, patch_weights="gaussian", **size, **_STRENGTH)
    return [*on_threads(ours, n_jobs), _slow_nonlocal_means(7, 10)]


def _bilateral_disk(n_jobs: int) -> list[Method]:
    ours = partial(bilateral_filter, footprint=disk(5), **_BANDWIDTHS)
    return [*on_threads(ours, n_jobs), _opencv_bilateral(n_jobs)]


def _bilateral_square(n_jobs: int) -> list[Method]:
    ours = partial(bilateral_filter, win_size=11, **_BANDWIDTHS)
    theirs = partial(denoise_bilateral, mode="reflect", win_size=11, **_BANDWIDTHS)
    return [*on_threads(ours, n_jobs), Method("scikit-image", "scikit-image", theirs)]


def _all_denoisers(n_jobs: int) -> list[Method]:
    """Our defaults, our defaults boosted, and what others have."""
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
    return [
        *(Method(f"{OURS}, {name}", OURS, smooth, n_jobs) for name, smooth in ours.items()),
        *_fast_nonlocal_means(n_jobs, 5, 6),
        *_fast_nonlocal_means(n_jobs, 7, 10),
        _slow_nonlocal_means(5, 6),
        _opencv_bilateral(n_jobs),
    ]


def _opencv_nonlocal_means(image: Array, *, patch: int, window: int) -> Array:
    import cv2

    noisy = np.rint(255 * image).clip(0, 255).astype(np.uint8)
    denoised: Any = cv2.fastNlMeansDenoising(noisy, None, 255 * _OPENCV_H, patch, window)
    return denoised.astype(image.dtype) / image.dtype.type(255)


def _opencv_bilateral(n_jobs: int) -> Method:
    def smooth(image: Array) -> Any:
        import cv2

        return cv2.bilateralFilter(image, 11, *_BANDWIDTHS.values())

    return Method("OpenCV bilateral, float32", "opencv", smooth, n_jobs)


def _contest(
    seed: int, n_jobs: int, *, images: Callable[[], Images], methods: Methods, dtype: str
) -> Contest:
    clean, noisy = _noisy(images(), seed, dtype)
    return Contest([(image,) for image in noisy], methods(n_jobs), partial(_quality, clean))


def _photograph() -> Images:
    return [camera() / 255]


def _set12() -> Images:
    return fetch_set12().images


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


_CASES: dict[str, tuple[str, Methods, Iterable[str]]] = {
    "nlm-7-21": (
        "non-local means, uniform patches",
        partial(_uniform_patches, patch=7, distance=10),
        ("float64", "float32"),
    ),
    "nlm-5-13": (
        "non-local means, uniform patches",
        partial(_uniform_patches, patch=5, distance=6),
        ("float64", "float32"),
    ),
    "nlm-gaussian-7-21": (
        "non-local means, Gaussian patch weights",
        _gaussian_patches,
        ("float64", "float32"),
    ),
    "bilateral-disk-11": ("bilateral filter on disks", _bilateral_disk, ("float32",)),
    "bilateral-square-11": (
        "bilateral filter on squares",
        _bilateral_square,
        ("float64", "float32"),
    ),
}
IMAGE_CASES = {
    f"{name}-{dtype}": Case(
        f"{about}, 512 x 512",
        partial(_contest, images=_photograph, methods=methods, dtype=dtype),
        dtype,
    )
    for name, (about, methods, dtypes) in _CASES.items()
    for dtype in dtypes
} | {
    "set12": Case(
        "the 12 images, noise of 25 grey levels",
        partial(_contest, images=_set12, methods=_all_denoisers, dtype="float32"),
        "float32",
        once=True,
        memory=False,
    )
}


MODULES = {
    "numpy": "numpy",
    "opencv": "cv2",
    "scikit-image": "skimage",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "torch": "torch",
}
COLUMNS = [
    "case", "about", "dtype", "inputs", "method", "package", "version", "n_jobs", "ms", "ms_lowest",
    "ms_highest", "ratio", "ratio_lowest", "ratio_highest", "psnr", "ssim", "difference", "cost",
    "log_kappa", "memory_mib", "note",
]  # fmt: skip
CASES = IMAGE_CASES | POINT_CASES


def time_filters(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time filters, smoothers and embeddings beside those that a user would pick instead.

    In each round all methods of a case run once, one after another, on the same input.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``nlm-7-21``, ``nlm-5-13`` and ``nlm-gaussian-7-21`` (patch and window),
        ``bilateral-square-11`` and ``regression``, each followed by ``-float64`` or ``-float32``;
        ``bilateral-disk-11-float32``, ``set12`` (every image once), ``lle-weights``, ``lle-3``,
        ``lle-50``, ``graying-svd-224``, ``graying-dct-224``, ``graying-svd-64`` and
        ``graying-dct-64`` (token graying: width of the image). None is all of them.
    peers : iterable of str, optional
        Packages, among ``numpy``, ``opencv``, ``scikit-image``, ``scikit-learn``, ``scipy``
        and ``torch``.
        None is all of them.
    rounds : int, default=3
    n_jobs : int, default=1
        Threads of ours and of the packages that offer them. If it is not 1, ours on one thread
        joins.
    seed : int, default=0
        Of noise and generated data.
    directory : str or Path, optional
        Folder that keeps the finished cases: one that ran before on this processor, with the same
        settings, versions of the peers and source, is read instead of run.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and method. ``ms``, of all `inputs`, and ``ratio``, to the first method
        of the case in the same round, are medians over the rounds with the lowest and highest.
        ``psnr`` (dB) and ``ssim`` are those of scikit-image, means over the images; ``difference``
        is the largest from the first method's result, away from the border of images, for points
        relative to its largest entry; ``cost`` is ``|Y - C Y|_F^2`` of the embedding's orthonormal
        coordinates; ``log_kappa`` the median natural logarithm of the condition numbers;
        ``memory_mib`` the peak resident memory of ours beyond its input, in a process of its own.
        ``note`` says why a method or case was left out.

    Raises
    ------
    ValueError
        If a case or peer is unknown, ``rounds < 1``, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_filters
    >>> table = time_filters(cases=["lle-weights"], peers=["scikit-learn"])  # doctest: +SKIP
    >>> table[["method", "ms", "ratio", "difference"]]  # doctest: +SKIP
    """
    options = Rounds(rounds, n_jobs, seed, check_folder(directory, "directory"), progress)
    packages = chosen(peers, MODULES, "peers")
    versions = {package: installed(module) for package, module in packages.items()}
    run = partial(hold, peers=packages, options=options)
    listed = chosen(cases, CASES, "cases")
    return run_cases("filters", listed, run, options, peers=versions, columns=COLUMNS)


def hold(case: Case, peers: dict[str, str], options: Rounds) -> list[dict[str, Any]]:
    """A row for each method, in the order of the contest; peers are packages and their modules."""
    versions = {OURS: installed(OURS)}
    absent = {}
    for package, module in peers.items():
        versions[package] = installed(module)
        if versions[package]:
            import_module(module)  # what is loaded can be told its threads
        else:
            absent[package] = f"{module} is not installed"
    with threads(options.n_jobs):
        contest = case.make(options.seed, options.n_jobs)
    entrants = [
        Calls(method, contest.inputs, versions[method.package], absent.get(method.package, ""))
        for method in contest.methods
        if method.package in versions
    ]
    rounds = 1 if case.once else options.rounds
    rows = compete(entrants, rounds, options.progress, memory=case.memory)
    about = {"about": case.about, "dtype": case.dtype, "inputs": len(contest.inputs)}
    first = entrants[0]
    worth = ({} if e.note else contest.measure(e.results, first.results) for e in entrants)
    return [about | row | own for row, own in zip(rows, worth, strict=True)]
