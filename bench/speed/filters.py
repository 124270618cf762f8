"""`twinsolve speed filters`."""

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from ...solvers.solution import check_folder
from ..timing import Progress, threads
from .contest import OURS, Rounds, chosen, compete, installed, run_cases
from .image_cases import IMAGE_CASES
from .methods import Calls, Case
from .point_cases import POINT_CASES

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
