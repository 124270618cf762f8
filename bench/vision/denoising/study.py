"""Methods x images x noise: one table."""

import importlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ....solvers.solution import Array
from ...jobs import Job, Options, file_hash, run_jobs
from ...names import close_names
from ...terminal import present_folder
from ...timing import Progress
from .images import BUILT_IN, load_images, noisy_image
from .methods import METHODS, SETTINGS, Denoise
from .networks import (
    apply,
    distance,
    flops_per_pixel,
    n_parameters,
    network_names,
    network_of,
    shipped_path,
    solve,
)

KINDS = ("solved", "peer", "start", "trained", "own")
SOLVER = ", solver"  # of a network at the start
_WARM = 32  # side of the image on which kernels are compiled
COLUMNS = [
    "method", "kind", "family", "images", "image", "sigma", "psnr", "ssim", "seconds",
    "megapixels", "parameters", "flops_per_pixel", "distance", "note",
]  # fmt: skip


def denoise(
    images: str = "photographs",
    *,
    methods: Iterable[str] | None = None,
    sigmas: Sequence[float] = (25.0,),
    seed: int = 0,
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
        it is returned; ``seconds`` is processor time, without compiling; ``distance``, of networks
        that minimise an energy, is the certified root mean square distance of the image from the
        minimiser, in grey levels of [0, 1]; ``note`` says why there are no numbers.

    Raises
    ------
    ValueError
        If images or a method are unknown, or a noise level is not positive.

    Examples
    --------
    >>> from twinsolve.bench import denoise
    >>> table = denoise(methods=["noisy", "Gaussian"])
    >>> table.groupby("method").psnr.mean().round(1).to_dict()
    {'Gaussian': 23.8, 'noisy': 20.2}
    """
    for sigma in sigmas:
        if not sigma > 0:
            raise ValueError(f"sigmas: must be > 0, got {sigma}")
    listed = check_methods(methods, sigmas)
    load_images(images, data_home)
    jobs: list[Job] = [
        {"images": images, "sigma": float(sigma), "seed": seed, "data_home": data_home} | method
        for sigma in sigmas
        for method in listed
        if method["kind"] != "trained" or _has_weights(method["method"], sigma)
    ]
    options = Options(seed, 1, n_jobs, data_home, directory, progress)
    files = [SETTINGS, *shipped_path("", 1.0).parent.glob("*.safetensors")]
    for folder in (images, *(job["method"] for job in jobs)):
        if folder not in BUILT_IN and Path(folder).is_dir():
            files += filter(Path.is_file, Path(folder).rglob("*"))
    content = {str(path): file_hash(path) for path in files}
    table = run_jobs(_run, jobs, options, content=content)
    return table.reindex(columns=COLUMNS)


def method_names() -> dict[str, list[str]]:
    """Names of methods by kind; those of networks say what is shipped with them."""
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, method in METHODS.items():
        names[method.kind].append(name)
    names["solved"] += [name + SOLVER for name in network_names()]
    names["start"] = [f"{name}, start" for name in network_names()]
    names["trained"] = [f"{name}, trained" for name in network_names()]
    return names


def check_methods(methods: Iterable[str] | None, sigmas: Sequence[float]) -> list[dict[str, str]]:
    """Method and kind of each name.

    Raises
    ------
    ValueError
        If one is unknown, or what it needs is not there.
    """
    known = {name: kind for kind, names in method_names().items() for name in names}
    if methods is None:
        return [
            {"method": name, "kind": kind}
            for name, kind in known.items()
            if not name.endswith(SOLVER) and (name not in METHODS or METHODS[name].installed)
        ]
    listed = list(dict.fromkeys(methods))
    if not listed:
        raise ValueError("methods: must be one or more")
    found = []
    for name in listed:
        if name in known:
            if name in METHODS and not METHODS[name].installed:
                raise ValueError(f"methods: {name} needs {METHODS[name].module}, not installed")
            if known[name] == "trained" and not all(_has_weights(name, s) for s in sigmas):
                raise ValueError(f"methods: no weights of {name} for all of {list(sigmas)}")
            found.append({"method": name, "kind": known[name]})
        elif Path(name).is_dir():
            network_of(name, "trained", 0.0)
            found.append({"method": name, "kind": "trained"})
        elif ":" in name:
            find_function(name)
            found.append({"method": name, "kind": "own"})
        else:
            raise ValueError(f"methods: none is named {name!r}{close_names(name, known)}")
    return found


def find_function(name: str) -> Denoise:
    """A user's function by ``package.module:function``.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    module, _, word = name.partition(":")
    with present_folder():
        try:
            found = getattr(importlib.import_module(module), word)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"methods: no function {name!r} ({error})") from error
    if not callable(found):
        raise ValueError(f"methods: {name!r} is no function")
    return found


def _name(method: str) -> str:
    """The class of a network, or the folder of its run."""
    return method if Path(method).is_dir() else method.partition(",")[0]


def _has_weights(name: str, sigma: float) -> bool:
    return Path(name).is_dir() or shipped_path(name.partition(",")[0], sigma / 255).is_file()


def denoiser(method: str, kind: str, sigma: float) -> tuple[Denoise, dict[str, Any]]:
    """The function of a method's name, and what is known of it: family, parameters, operations."""
    if method in METHODS:
        return METHODS[method], {"family": METHODS[method].family}
    if kind == "own":
        return find_function(method), {"family": "own"}
    name = _name(method)
    if kind == "solved":
        start = network_of(name, "start", sigma)
        return lambda noisy, sigma: solve(start, noisy), {"family": name}
    network = network_of(name, kind, sigma)
    about = {"family": type(network).__name__, "parameters": n_parameters(network)}
    return partial(_applied, network), about | {"flops_per_pixel": flops_per_pixel(network)}


def _applied(network: Any, noisy: Array, sigma: float) -> Array:
    return apply(network, noisy)


def _run(
    images: str, sigma: float, seed: int, data_home: str | None, method: str, kind: str
) -> list[dict[str, Any]]:
    """A row for each image; a method that fails on one leaves a note in place of numbers."""
    level = sigma / 255
    names, clean = load_images(images, data_home)
    function, about = denoiser(method, kind, level)
    head = {"method": method, "kind": kind, "images": images, "sigma": sigma} | about
    rows = []
    for place, (name, image) in enumerate(zip(names, clean, strict=True)):
        noisy = noisy_image(image, level, seed, place)
        row = head | {"image": name, "megapixels": image.size / 1e6}
        try:
            if place == 0:
                function(np.ascontiguousarray(noisy[:_WARM, :_WARM]), level)
            start = process_time()
            denoised = np.asarray(function(noisy, level), dtype=np.float64)
            row["seconds"] = process_time() - start
            row |= quality(image, denoised)
            if kind in ("start", "trained"):
                row["distance"] = distance(network_of(_name(method), kind, level), noisy, denoised)
        except Exception as error:  # of anyone's method
            row["note"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    return rows


def quality(clean: Array, denoised: Array) -> dict[str, float]:
    """PSNR in dB and SSIM, for a range of 1.

    Raises
    ------
    ValueError
        If the shapes differ, or the image is not finite.
    """
    if denoised.shape != clean.shape or not np.isfinite(denoised).all():
        raise ValueError(f"returned no finite image of shape {clean.shape}, but {denoised.shape}")
    return {
        "psnr": float(peak_signal_noise_ratio(clean, denoised, data_range=1.0)),
        "ssim": float(structural_similarity(clean, denoised, data_range=1.0)),
    }
