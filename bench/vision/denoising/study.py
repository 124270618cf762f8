"""Methods x images x noise: one table."""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import isfinite
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ....solvers.solution import Array
from ...jobs import Job, JobFailed, Options, run_jobs
from ...timing import Progress
from .entries import Entry, find_entry, list_entries
from .images import NoisyImages
from .methods import BUILT_IN, METHODS, Denoise, know
from .networks import distance

_WARM = 32  # side of the image on which kernels are compiled
_SSIM = 7  # side of its window
COLUMNS = [
    "method", "kind", "family", "images", "image", "sigma", "psnr", "ssim", "seconds",
    "megapixels", "parameters", "flops_per_pixel", "distance", "warning", "note",
]  # fmt: skip


def denoise(
    images: str = "photographs",
    *,
    methods: Iterable[str] | None = None,
    sigmas: Sequence[float] = (25.0,),
    seed: int = 0,
    colour: bool = False,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Denoise images by solved methods, peers and networks, and compare.

    Parameters
    ----------
    images : str, default="photographs"
        "photographs", "set12", or a folder of pictures; see `load_images`.
    methods : iterable of str, optional
        Names of `method_names`; ``package.module:function``, a function of the noisy image and its
        noise level, both in grey levels of [0, 1]; or the folder of a training run. None is all
        that are installed and have weights, but for the solvers of networks at the start.
    sigmas : sequence of float, default=(25,)
        Standard deviations of the noise, in grey levels of 255.
    seed : int, default=0
        Of the noise.
    colour : bool, default=False
        Denoise images of shape (height, width, 3), not grey ones. Methods for grey images get
        their channels one at a time, networks of one channel as a batch.
    n_jobs : int, default=1
        Processes.
    data_home : str, optional
        Folder of the data sets, as in `twinsolve.datasets.fetch_set12`.
    directory : Path, optional
        Folder that keeps what is finished.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the jobs.

    Returns
    -------
    DataFrame
        A row for each method, image and noise level. ``kind`` is solved, peer, start, trained or
        own; ``psnr`` in dB and ``ssim`` are those of scikit-image for a range of 1, of the image as
        it is returned, and ssim is missing if a side is under 7 pixels; ``seconds`` is processor
        time, without compiling; ``distance``, of networks that minimise an energy, is the
        certified root mean square distance of the image from the minimiser, in grey levels of
        [0, 1]; ``warning`` is the first that the method gave; ``note`` says why there are no
        numbers.

    Raises
    ------
    ValueError
        If images or a method are unknown, a noise level is not positive and finite, or weights
        are for another one.

    Warns
    -----
    UserWarning
        If a picture of a folder is left out: it cannot be read, or a side is under 16 pixels.

    Examples
    --------
    >>> from twinsolve.bench import denoise
    >>> table = denoise(methods=["noisy", "Gaussian"])
    >>> table.groupby("method").psnr.mean().round(1).to_dict()
    {'Gaussian': 23.8, 'noisy': 20.2}
    """
    levels = list(dict.fromkeys(map(float, sigmas)))
    if not levels or not all(isfinite(sigma) and sigma > 0 for sigma in levels):
        raise ValueError(f"sigmas: must be one or more, > 0 and finite; got {list(sigmas)}")
    entries = list_entries(methods, levels)
    given = NoisyImages(images, seed, data_home, colour)
    for reason in given.left_out:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    about = {"images": images, "seed": seed, "data_home": data_home, "colour": colour}
    places = [
        {"image": name, "place": place, "pixels": hashlib.sha256(image.tobytes()).hexdigest()[:16]}
        for place, (name, image) in enumerate(zip(given.names, given.clean, strict=True))
    ]
    ways = [
        {"sigma": sigma, "method": entry.method, "content": entry.content(sigma / 255)}
        for sigma in levels
        for entry in entries
        if entry.serves(sigma)
    ]
    jobs: list[Job] = [about | way | place for way in ways for place in places]
    options = Options(seed, 1, n_jobs, data_home, directory, progress)
    own = [method for name, method in METHODS.items() if name not in BUILT_IN]
    return run_jobs(_run, jobs, options, setup=partial(know, own)).reindex(columns=COLUMNS)


def _run(
    images: str,
    seed: int,
    data_home: str | None,
    colour: bool,
    image: str,
    place: int,
    pixels: str,
    sigma: float,
    method: str,
    content: str,
) -> list[dict[str, Any]]:
    """One row; a method that fails leaves a note in place of numbers, and is tried again."""
    level = sigma / 255
    given = NoisyImages(images, seed, data_home, colour)
    clean, entry = given.clean[place], find_entry(method)
    row = {"method": method, "kind": entry.kind, "images": images, "image": image, "sigma": sigma}
    row["megapixels"] = clean.shape[0] * clean.shape[1] / 1e6
    try:
        function, known = entry.denoiser(level)
        row |= known
        return [row | _measured(entry, function, clean, given.noisy(place, level), level)]
    except Exception as error:  # of anyone's method
        raise JobFailed([row | {"note": f"{type(error).__name__}: {error}"}]) from error


def _measured(
    entry: Entry, function: Denoise, clean: Array, noisy: Array, level: float
) -> dict[str, Any]:
    _warm(entry, level, noisy.ndim)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = process_time()
        denoised = np.asarray(function(noisy, level), dtype=np.float64)
        seconds = process_time() - start
    row: dict[str, Any] = {"seconds": seconds} | quality(clean, denoised)
    if caught:
        row["warning"] = f"{caught[0].category.__name__}: {caught[0].message}"
    if entry.network and not entry.is_solver:
        row["distance"] = distance(entry.network_at(level), noisy, denoised)
    return row


@cache
def _warm(entry: Entry, level: float, n_axes: int) -> None:
    """Compile what a method compiles, once a process; what fails here may not on larger images."""
    crop = np.random.default_rng(0).random((_WARM, _WARM, 3)[:n_axes])
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry.denoiser(level)[0](crop, level)


def quality(clean: Array, denoised: Array) -> dict[str, float]:
    """PSNR in dB and SSIM, for a range of 1; SSIM is missing where its window does not fit.

    Raises
    ------
    ValueError
        If the shapes differ, or the image is not finite.
    """
    if denoised.shape != clean.shape:
        raise ValueError(f"returned an image of shape {denoised.shape}, not {clean.shape}")
    if not np.isfinite(denoised).all():
        raise ValueError(f"returned {np.count_nonzero(~np.isfinite(denoised))} pixels of no number")
    found = {"psnr": float(peak_signal_noise_ratio(clean, denoised, data_range=1.0))}
    if min(clean.shape[:2]) >= _SSIM:
        axis = -1 if clean.ndim == 3 else None
        similarity = structural_similarity(clean, denoised, data_range=1.0, channel_axis=axis)
        found["ssim"] = float(similarity)
    return found
