"""`twinsolve speed filters`."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pandas as pd

from . import image_cases, point_cases
from .cases import chosen, run_cases
from .contest import COLUMNS, MODULES, OURS, Case, hold
from .peers import installed
from .race import Progress

_DTYPES = ("float64", "float32")

CASES = {
    case.name: case
    for case in (
        *(
            Case(
                f"nlm-{patch_size}-{2 * patch_distance + 1}-{dtype}",
                "non-local means, uniform patches, 512 x 512",
                partial(
                    image_cases.make_nonlocal_means,
                    patch_size=patch_size,
                    patch_distance=patch_distance,
                    dtype=dtype,
                ),
                dtype,
            )
            for patch_size, patch_distance in ((7, 10), (5, 6))
            for dtype in _DTYPES
        ),
        *(
            Case(
                f"nlm-gaussian-7-21-{dtype}",
                "non-local means, Gaussian patch weights, 512 x 512",
                partial(image_cases.make_gaussian_patches, dtype=dtype),
                dtype,
            )
            for dtype in _DTYPES
        ),
        Case(
            "bilateral-disk-11-float32",
            "bilateral filter on disks, 512 x 512",
            image_cases.make_bilateral_disk,
            "float32",
        ),
        *(
            Case(
                f"bilateral-square-11-{dtype}",
                "bilateral filter on squares, 512 x 512",
                partial(image_cases.make_bilateral_square, dtype=dtype),
                dtype,
            )
            for dtype in _DTYPES
        ),
        Case(
            "set12",
            "the 12 images, noise of 25 grey levels",
            image_cases.make_set12,
            "float32",
            once=True,
            memory=False,
        ),
        *(
            Case(
                f"regression-{dtype}",
                "50,000 queries and keys of 32 features",
                partial(point_cases.make_regression, n_points=50_000, dtype=dtype),
                dtype,
            )
            for dtype in _DTYPES
        ),
        Case(
            "lle-weights",
            "10,000 points, 12 given neighbours each",
            point_cases.make_weights,
            "float64",
        ),
        *(
            Case(
                f"lle-{n_features}",
                f"10,000 points in {n_features} dimensions, 12 neighbours, 2 components",
                partial(point_cases.make_embedding, n_features=n_features),
                "float64",
            )
            for n_features in (3, 50)
        ),
        *(
            Case(
                f"graying-{transform}-{image_size}",
                f"tokens of 32 colour images, {image_size} pixels wide, patches of {patch_size}",
                partial(
                    point_cases.make_graying,
                    transform=transform,
                    image_size=image_size,
                    patch_size=patch_size,
                ),
                "float32",
                memory=False,
            )
            for image_size, patch_size in ((224, 16), (64, 4))
            for transform in ("svd", "dct")
        ),
    )
}


def time_filters(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: Path | None = None,
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
    directory : Path, optional
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
    names = {package: package for package in MODULES if package != OURS}
    packages = chosen(peers, names, "peers")

    def run(case: Case) -> pd.DataFrame:
        return hold(case, packages, rounds=rounds, n_jobs=n_jobs, seed=seed, progress=progress)

    return run_cases(
        "filters",
        chosen(cases, CASES, "cases"),
        run,
        peers={package: installed(MODULES[package]) for package in packages},
        rounds=rounds,
        n_jobs=n_jobs,
        seed=seed,
        directory=directory,
        columns=COLUMNS,
    )
