"""Timings of `twinsolve speed filters`: image filters, smoothers, embeddings and graying."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.fft import dctn, idctn
from scipy.sparse import csr_array, eye_array
from skimage.data import camera, chelsea
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from skimage.morphology import disk
from skimage.restoration import denoise_bilateral, denoise_nl_means
from skimage.util import view_as_blocks
from sklearn.datasets import make_swiss_roll
from sklearn.manifold import LocallyLinearEmbedding as TheirEmbedding
from sklearn.manifold._locally_linear import barycenter_weights
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import scaled_dot_product_attention

from ...datasets import fetch_set12
from ...solvers import (
    LocallyLinearEmbedding,
    bilateral_filter,
    gray_tokens,
    l2_boosting,
    locally_linear_weights,
    nadaraya_watson,
    nonlocal_means,
    sos_boosting,
    twicing,
)
from ...solvers.conditioning import condition_number
from ...solvers.inputs import Array
from ...validation import check_folder
from ..timing import Progress, in_turns, seconds_of
from .contest import OURS, Rounds, chosen, installed, run_cases
from .peers import Contest, ContestCase, Method, hold, on_threads

_SIGMA = 25 / 255
_OPENCV_H = 0.9 * _SIGMA  # OpenCV has no parameter sigma
_STRENGTH: dict[str, Any] = {"h": 0.8 * _SIGMA, "sigma": _SIGMA}
_BORDER = 10
_BANDWIDTHS: dict[str, Any] = {"sigma_color": 0.25, "sigma_spatial": 2.0}

Images = list[Array]
Methods = Callable[[int], list[Method]]  # takes the number of threads


def _uniform_patches(n_jobs: int, *, patch: int, distance: int) -> list[Method]:
    ours = partial(nonlocal_means, patch_size=patch, patch_distance=distance, **_STRENGTH)
    return [*on_threads(ours, n_jobs), *_fast_nonlocal_means(n_jobs, patch, distance)]


def _fast_nonlocal_means(n_jobs: int, patch: int, distance: int) -> list[Method]:
    """Methods of OpenCV and scikit-image, and ours with the patches that scikit-image compares.

    The fast mode of scikit-image divides the sum over ``(patch - 1)^2`` pixels by ``patch^2``.
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
    """Our default filters, our boosted filters, and those of other packages."""
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


def _make_contest(
    seed: int, n_jobs: int, *, images: Callable[[], Images], methods: Methods, dtype: str
) -> Contest:
    clean, noisy = _add_noise(images(), seed, dtype)
    return Contest([(image,) for image in noisy], methods(n_jobs), partial(_measure_quality, clean))


def _load_photograph() -> Images:
    return [camera() / 255]


def _load_set12() -> Images:
    return fetch_set12().images


def _add_noise(images: Images, seed: int, dtype: str) -> tuple[Images, Images]:
    rng = np.random.default_rng(seed)
    clean = [image.astype(dtype) for image in images]
    return clean, [(u + _SIGMA * rng.standard_normal(u.shape)).astype(dtype) for u in clean]


def _measure_quality(clean: Images, results: Images, first: Images) -> dict[str, float]:
    """Mean PSNR and SSIM over the images, and the largest difference from the first results.

    The difference excludes the border, as packages pad images in different ways.
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
    f"{name}-{dtype}": ContestCase(
        f"{about}, 512 x 512",
        partial(_make_contest, images=_load_photograph, methods=methods, dtype=dtype),
        dtype,
    )
    for name, (about, methods, dtypes) in _CASES.items()
    for dtype in dtypes
} | {
    "set12": ContestCase(
        "the 12 images, noise of 25 grey levels",
        partial(_make_contest, images=_load_set12, methods=_all_denoisers, dtype="float32"),
        "float32",
        once=True,
        memory=False,
    )
}


_N_POINTS, _NEIGHBORS = 10_000, 12
_BLOCKS = (16, 32, 64, 128, 256, 512)
_N_IMAGES = 32


def _measure_difference(results: list[Any], first: list[Any]) -> dict[str, float]:
    pairs = zip(results, first, strict=True)
    return {"difference": max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)}


def make_regression(seed: int, n_jobs: int, *, n_points: int, dtype: str) -> Contest:
    """Regression with 32 features; the bandwidth is that of scaled dot-product attention."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n_points, 32)).astype(dtype) for _ in range(3))
    s = 32**0.25
    block = _choose_block(q, k, v, s)
    blocks = partial(_smooth_in_blocks, s=s, block=block)
    methods = [
        *on_threads(partial(nadaraya_watson, bandwidth=s), n_jobs),
        Method(f"NumPy, blocks of {block}", "numpy", blocks, n_jobs),
        Method("torch attention", "torch", partial(_smooth_by_attention, s=s), n_jobs),
    ]
    return Contest([(q, k, v)], methods, _measure_difference)


def _smooth_in_blocks(q: Array, k: Array, v: Array, *, s: float, block: int) -> Array:
    """Softmax of ``q.k / s^2 - |k|^2 / (2 s^2)``, a block of queries at a time."""
    kernel_bias = -(k**2).sum(axis=1) / (2 * s**2)
    smoothed = np.empty((len(q), v.shape[1]), q.dtype)
    for start in range(0, len(q), block):
        rows = slice(start, start + block)
        weights = (q[rows] / q.dtype.type(s**2)) @ k.T
        weights += kernel_bias
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        smoothed[rows] = (weights @ v) / weights.sum(axis=1, keepdims=True)
    return smoothed


def _choose_block(q: Array, k: Array, v: Array, s: float) -> int:
    """The fastest size of blocks of queries, by the median of three rounds."""
    smooth = partial(_smooth_in_blocks, q[: 8 * _BLOCKS[-1]], k, v, s=s)
    runs = [partial(seconds_of, partial(smooth, block=block)) for block in _BLOCKS]
    return _BLOCKS[np.median(in_turns(runs, 3), axis=1).argmin()]


def _smooth_by_attention(q: Array, k: Array, v: Array, *, s: float) -> Array:
    """Attention with the key's norm as a feature; the fused kernel needs values as wide as keys."""
    ones, norms = np.ones((len(q), 1), q.dtype), -(k**2).sum(axis=1, keepdims=True) / 2
    queries, keys, values = (
        torch.from_numpy(np.hstack(pair))[None, None]
        for pair in ((q, ones), (k, norms), (v, np.zeros_like(norms)))
    )
    smoothed = scaled_dot_product_attention(queries, keys, values, scale=1 / s**2)
    return smoothed[0, 0, :, :-1].numpy()


def make_weights(seed: int, n_jobs: int) -> Contest:
    """Locally linear weights of given neighbours."""
    X = _draw_swiss_roll(seed, 3)
    graph = NearestNeighbors(n_neighbors=_NEIGHBORS).fit(X).kneighbors_graph()
    neighbors = np.ascontiguousarray(graph.indices.reshape(len(X), _NEIGHBORS))

    def theirs(X: Array) -> csr_array:
        data = barycenter_weights(X, X, neighbors, reg=1e-3).ravel()
        return csr_array((data, graph.indices, graph.indptr), shape=graph.shape)

    methods = [
        *on_threads(partial(locally_linear_weights, graph=graph), n_jobs),
        Method("scikit-learn", "scikit-learn", theirs),
    ]
    return Contest([(X,)], methods, _measure_difference)


def make_embedding(seed: int, n_jobs: int, *, n_features: int) -> Contest:
    """Locally linear embedding: neighbours, weights and eigenvectors."""
    X = _draw_swiss_roll(seed, n_features)
    residual = eye_array(len(X)) - locally_linear_weights(X, n_neighbors=_NEIGHBORS)

    def cost(results: list[Array], first: list[Array]) -> dict[str, float]:
        """``|Y - C Y|_F^2`` of the orthonormal coordinates that span the same space."""
        (Y,) = results
        return {"cost": float(((residual @ np.linalg.qr(Y - Y.mean(axis=0))[0]) ** 2).sum())}

    theirs = partial(_embed, kind=TheirEmbedding, seed=seed, n_jobs=n_jobs)
    methods = [
        *on_threads(partial(_embed, kind=LocallyLinearEmbedding, seed=seed), n_jobs),
        Method("scikit-learn", "scikit-learn", theirs, n_jobs),
    ]
    return Contest([(X,)], methods, cost)


def _embed(X: Array, kind: Any, seed: int, n_jobs: int) -> Array:
    estimator = kind(n_neighbors=_NEIGHBORS, random_state=seed, n_jobs=n_jobs)
    coordinates: Array = estimator.fit_transform(X)
    return coordinates


def _draw_swiss_roll(seed: int, n_features: int) -> Array:
    """10,000 noisy points on a swiss roll, in `n_features` dimensions."""
    rng = np.random.default_rng(seed)
    X, _ = make_swiss_roll(_N_POINTS, random_state=seed)
    basis = np.linalg.qr(rng.standard_normal((n_features, 3)))[0]
    return X @ basis.T + 0.05 * rng.standard_normal((len(X), n_features))


def make_graying(
    seed: int, n_jobs: int, *, transform: str, image_size: int, patch_size: int
) -> Contest:
    """Token graying of the patches of 32 colour images, one image per call."""
    rng = np.random.default_rng(seed)
    picture = (chelsea() / 255).astype(np.float32)
    corners = rng.integers(len(picture) - image_size, size=(_N_IMAGES, 2))
    crops = (picture[y : y + image_size, x : x + image_size] for y, x in corners)

    def log_kappa(results: list[Array], first: list[Array]) -> dict[str, float]:
        kappa = condition_number(np.stack(results))
        return _measure_difference(results, first) | {"log_kappa": float(np.median(np.log(kappa)))}

    listing = {
        "svd": Method("NumPy's SVD", "numpy", _gray_by_svd),
        "dct": Method("SciPy's DCT", "scipy", _gray_by_dct),
    }
    methods = [
        Method(OURS, OURS, partial(gray_tokens, transform=transform)),
        listing[transform],
        Method("nothing (a copy)", "numpy", np.copy),
    ]
    return Contest([(_cut_patches(crop, patch_size),) for crop in crops], methods, log_kappa)


def _gray_by_svd(X: Array, eps: float = 0.95) -> Array:
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    return U * (s[0] * (s / s[0]) ** eps) @ Rt


def _gray_by_dct(X: Array, eps: float = 0.95) -> Array:
    spectrum = dctn(X, norm="ortho")
    size = np.abs(spectrum)
    return idctn(np.sign(spectrum) * size.max() * (size / size.max()) ** eps, norm="ortho")


def _cut_patches(image: Array, size: int) -> Array:
    """Patches as rows, which hold the pixels and channels of a patch."""
    blocks = view_as_blocks(np.ascontiguousarray(image), (size, size, image.shape[-1]))
    return blocks.reshape(-1, size * size * image.shape[-1])


POINT_CASES = {
    **{
        f"regression-{dtype}": ContestCase(
            "50,000 queries and keys of 32 features",
            partial(make_regression, n_points=50_000, dtype=dtype),
            dtype,
        )
        for dtype in ("float64", "float32")
    },
    "lle-weights": ContestCase("10,000 points, 12 given neighbours each", make_weights, "float64"),
    **{
        f"lle-{n}": ContestCase(
            f"10,000 points in {n} dimensions, 12 neighbours, 2 components",
            partial(make_embedding, n_features=n),
            "float64",
        )
        for n in (3, 50)
    },
    **{
        f"graying-{transform}-{width}": ContestCase(
            f"tokens of 32 colour images, {width} pixels wide, patches of {size}",
            partial(make_graying, transform=transform, image_size=width, patch_size=size),
            "float32",
            memory=False,
        )
        for width, size in ((224, 16), (64, 4))
        for transform in ("svd", "dct")
    },
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
    """Time our filters, smoothers and embeddings beside those of other packages.

    In each round all methods of a case run once, one after another, on the same input.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``nlm-7-21``, ``nlm-5-13`` and ``nlm-gaussian-7-21`` (patch and window),
        ``bilateral-square-11`` and ``regression``, each followed by ``-float64`` or ``-float32``;
        ``bilateral-disk-11-float32``, ``set12`` (every image once), ``lle-weights``, ``lle-3``,
        ``lle-50``, ``graying-svd-224``, ``graying-dct-224``, ``graying-svd-64`` and
        ``graying-dct-64`` (token graying: width of the image). None is all cases.
    peers : iterable of str, optional
        Packages among ``numpy``, ``opencv``, ``scikit-image``, ``scikit-learn``, ``scipy`` and
        ``torch``. None is all packages.
    rounds : int, default=3
    n_jobs : int, default=1
        Threads of our methods and of packages that can use several. If it is not 1, our methods
        also run on one thread.
    seed : int, default=0
        Seed of noise and generated data.
    directory : str or Path, optional
        Folder that keeps finished cases. A case is read instead of run if processor, settings,
        versions of the peers and source are the same.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and method. ``ms`` is the time of all `inputs`, ``ratio`` that to the
        first method of the case in the same round: medians over the rounds, with the lowest and
        highest. ``psnr`` (dB) and ``ssim``, by scikit-image, are means over the images.
        ``difference`` is the largest from the first method's result: away from the border of
        images, and for points relative to the largest entry. ``cost`` is ``|Y - C Y|_F^2`` of the
        embedding's orthonormal coordinates, ``log_kappa`` the median natural logarithm of the
        condition numbers, ``memory_mib`` the peak resident memory of our method beyond its input,
        in a separate process. ``note`` says why a method or case was left out.

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
