"""Features of a problem's points by name; costly features are kept for other jobs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from ... import datasets
from ...solvers.inputs import Array
from ..jobs import Job, Options, Part, resume_parts, run_jobs
from ..sources import code
from .data import Data
from .problems import Problem


def features_of(name: str, problem: Problem) -> Array:
    """Features of the points of a problem by name.

    ``raw`` are the points as they are. ``pca-D`` are their coordinates along the D leading right
    singular vectors, without centring. ``scattering-D`` are such coordinates of the images'
    `scattering_features`, ``relative-scattering-D`` of scattering maps that are divided by their
    largest entry, and ``fourier-D`` of the square roots of `fourier_energies`. For scattering,
    border pixels are repeated up to the next multiple of 8 pixels. ``unit-NAME`` are the features
    NAME with rows of unit norm; ``unit`` is short for ``unit-raw``. ``2F`` is another name of
    ``raw`` for trajectories, and ``4n`` is ``pca-D`` with D four times the number of clusters.
    ``NAME+1`` are the features NAME with a constant 1.

    Raises
    ------
    ValueError
        If the name is unknown, or the problem lacks images that the features need.
    """
    return _parse(name)(problem)


def is_costly(name: str) -> bool:
    """Whether features need a decomposition, so that they are worth keeping."""
    inner = name.removeprefix("unit-")
    return inner == "4n" or inner.rpartition("-")[0] in _SIZED


def check_features(name: str) -> str:
    """Return `name` if it is known.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists what is allowed.
    """
    _parse(name)
    return name


def _parse(name: str) -> Callable[[Problem], Array]:
    if name == "unit":
        return _parse("unit-raw")
    if name.startswith("unit-"):
        inner = _parse(name.removeprefix("unit-"))
        return lambda problem: normalize(inner(problem))
    if name.endswith("+1"):
        inner = _parse(name.removesuffix("+1"))
        return lambda problem: datasets.homogeneous_coordinates(inner(problem))
    if name in _FEATURES:
        return _FEATURES[name]
    kind, _, size = name.rpartition("-")
    if kind in _SIZED and size.isdecimal() and int(size) > 0:
        return lambda problem: _principal(_SIZED[kind](problem), int(size))
    raise ValueError(f"features: must be among {', '.join(ABOUT)}; got {name!r}")


def _images(problem: Problem) -> Array:
    if problem.images is None:
        raise ValueError(f"features: need images, and {problem.name} has none")
    return problem.images


def _scattering(problem: Problem) -> Array:
    images = _images(problem).astype(np.float32)
    missing = [-side % _BLOCK for side in images.shape[1:3]]
    around = [(n // 2, n - n // 2) for n in missing]
    edges = [(0, 0), *around, *[(0, 0)] * (images.ndim - 3)]
    return datasets.scattering_features(np.pad(images, edges, mode="edge"))


def _relative_scattering(problem: Problem) -> Array:
    features = _scattering(problem)
    n_blocks = math.prod(-(-side // _BLOCK) for side in _images(problem).shape[1:3])
    maps = features.reshape(len(features), -1, n_blocks)
    largest = np.maximum(maps.max(axis=2), -maps.min(axis=2))
    maps /= np.where(largest > 0, largest, 1)[..., None]
    return features


def _principal(X: Array, dimension: int) -> Array:
    """Principal coordinates in float64: codes of float32 points need a second certificate."""
    if issparse(X):
        dimension = min(dimension, min(X.shape) - 1)
        reduce = TruncatedSVD(dimension, algorithm="arpack", random_state=0)
        return np.asarray(reduce.fit_transform(X.astype(np.float64)))
    return datasets.pca_features(X, min(dimension, *X.shape)).astype(np.float64)


_BLOCK = 8  # pixels a side that a scattering coefficient averages over
ABOUT = {
    "raw": "points as they are",
    "2F": "raw, of trajectories",
    "4n": "pca-D with D four times the number of clusters",
    "pca-D": "D leading principal coordinates, without centring",
    "fourier-D": "those of the square roots of an image's Fourier energies",
    "scattering-D": "those of an image's scattering coefficients",
    "relative-scattering-D": "the same, each scattering map divided by its largest entry",
    "NAME+1": "features NAME, and a constant 1, as 2F+1",
    "unit-NAME": "features NAME with rows of unit norm; unit is unit-raw",
}
_FEATURES: dict[str, Callable[[Problem], Array]] = {
    "raw": lambda problem: problem.X,
    "2F": lambda problem: problem.X,
    "4n": lambda problem: datasets.project_trajectories(problem.X, 4 * problem.n_clusters),
}
_SIZED: dict[str, Callable[[Problem], Array]] = {
    "pca": lambda problem: problem.X,
    "fourier": lambda problem: np.sqrt(datasets.fourier_energies(_images(problem))),
    "scattering": _scattering,
    "relative-scattering": _relative_scattering,
}

_folder: Path | None = None


def keep_features_in(folder: Path | None) -> None:
    """Set the folder where this process keeps costly features; None keeps none."""
    global _folder
    _folder = folder


@dataclass(frozen=True)
class Points:
    """The features of a trial's points, as a job names them."""

    data: Data
    trial: str
    features: str
    seed: int

    @property
    def problem(self) -> Problem:
        return self.data.problem(self.trial, self.seed)


@lru_cache(maxsize=2)
def load_features(points: Points) -> tuple[Problem, Array]:
    """The problem of a job and its features, which are read if the folder of the run has them."""
    problem = points.problem

    def make() -> list[Part]:
        return [({}, {"X": features_of(points.features, problem)})]

    folder = _folder if is_costly(points.features) else None
    ((_, kept),) = resume_parts(make, {"points": points} | code(__name__), folder)
    return problem, kept["X"]


def keep_costly_features(jobs: list[Job], options: Options, setup: Callable[[], None]) -> None:
    """Compute and keep each of the jobs' costly features once, before the jobs run."""
    costly = dict.fromkeys(job["points"] for job in jobs if is_costly(job["points"].features))
    if costly and options.directory is not None:
        run_jobs(keep_features, [{"points": points} for points in costly], options, setup=setup)


def keep_features(points: Points) -> list[dict[str, Any]]:
    """Compute and keep the features of one problem; return a row with their shape."""
    _, X = load_features(points)
    return [{"n_points": X.shape[0], "n_features": X.shape[1]}]
