"""Clustering problems by name: what a job says in words and a worker makes of it."""

import ast
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ... import datasets
from ...solvers.solution import Array

_GENERATED_TRIALS = 5


@dataclass(frozen=True, eq=False)
class Problem:
    """Points with the clusters that they belong to; label -1 marks outliers."""

    name: str
    trial: str
    X: Array
    labels: Array
    n_clusters: int
    images: Array | None = None


@dataclass(frozen=True)
class DataSet:
    """A family of problems: ``make(trial, seed, data_home, **settings)`` one of them.

    ``trials(data_home)`` lists them; a `generated` data set has as many as wanted. `files` names
    the files or folders below the data root of which it reads the first that is there.
    """

    name: str
    about: str
    make: Callable[..., Problem]
    trials: Callable[[str | None], list[str]]
    generated: bool = False
    files: tuple[str, ...] = ()


def make_problem(
    data: str, trial: str = "0", *, seed: int = 0, data_home: str | None = None
) -> Problem:
    """The problem that a name says, such as ``digits`` or ``synthetic:noise=0.2,angle=0.5``.

    Parameters
    ----------
    data : str
        Name of a data set, or path of a file of points with labels; after a colon its settings:
        the keyword arguments of a generator, or ``n_points``, the size of a random subset.
    trial : str, default="0"
        One of `trials_of`.
    seed : int, default=0
        Seeds generators and subsets.
    data_home : str, optional
        The data root.

    Raises
    ------
    FileNotFoundError
        If the files of the data set are missing.
    ValueError
        If the name, the trial or a setting is unknown, or a file is broken.
    """
    base, settings = _split(data)
    source = _find(base)
    n_points = None if source.generated else settings.pop("n_points", None)
    try:
        problem = source.make(trial, seed, data_home, **settings)
    except (KeyError, TypeError) as error:
        raise ValueError(f"data: no problem {data} with trial {trial!r}: {error}") from error
    if n_points is not None:
        problem = _subset(problem, n_points, seed)
    return Problem(data, trial, problem.X, problem.labels, problem.n_clusters, problem.images)


def trials_of(
    data: str, *, n_trials: int | None = None, seed: int = 0, data_home: str | None = None
) -> list[str]:
    """Names of the trials of a data set, or of a random `n_trials` of them."""
    source = _find(_split(data)[0])
    if source.generated:
        return [str(number) for number in range(n_trials or _GENERATED_TRIALS)]
    names = source.trials(data_home)
    if n_trials is None or n_trials >= len(names):
        return names
    chosen = np.random.default_rng(seed).choice(len(names), n_trials, replace=False)
    return [names[index] for index in sorted(chosen)]


def content_of(data: str, data_home: str | None = None) -> str | None:
    """Hash of the files of a data set or of a user's own points; None where there are none."""
    found = _place(data, data_home)
    if found is None:
        return None
    paths = sorted(path for path in found.rglob("*") if path.is_file()) or [found]
    stamps = ((path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _hash(tuple(zip(map(str, paths), stamps, strict=True)))


def is_at_hand(data: str, data_home: str | None = None) -> bool:
    """Whether a data set needs no files, or they are there."""
    base = _split(data)[0]
    return (base in DATA and not DATA[base].files) or _place(data, data_home) is not None


def reads_files(data: str) -> bool:
    """Whether the data root decides what the problem is."""
    base = _split(data)[0]
    return base in DATA and bool(DATA[base].files)


def _place(data: str, data_home: str | None) -> Path | None:
    base = _split(data)[0]
    root = datasets.data_root(data_home)
    places = [root / name for name in DATA[base].files] if base in DATA else [Path(base)]
    return next((place for place in places if place.exists()), None)


@lru_cache(maxsize=64)
def _hash(files: tuple[tuple[str, tuple[int, int]], ...]) -> str:
    digest = hashlib.sha256()
    for path, _ in files:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def _find(base: str) -> DataSet:
    if base in DATA:
        return DATA[base]
    if Path(base).is_file():
        return _loaded(base, "a file of the user", lambda home: _own_points(base, content_of(base)))
    raise ValueError(f"data: must be a file or among {', '.join(DATA)}; got {base!r}")


def _split(data: str) -> tuple[str, dict[str, Any]]:
    base, _, words = data.partition(":")
    settings = {}
    for word in filter(None, words.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"data: settings are NAME=VALUE, separated by commas; got {data!r}")
        try:
            settings[key.strip()] = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"data: cannot read {value!r} in {data!r}") from error
    return base, settings


def _subset(problem: Problem, n_points: int, seed: int) -> Problem:
    if not 1 <= n_points <= len(problem.X):
        raise ValueError(f"n_points: must be in [1, {len(problem.X)}], got {n_points}")
    kept = np.sort(np.random.default_rng(seed).choice(len(problem.X), n_points, replace=False))
    images = None if problem.images is None else problem.images[kept]
    return _problem(problem.X[kept], problem.labels[kept], images)


def _problem(X: Array, labels: Array, images: Array | None = None) -> Problem:
    n_clusters = len(np.unique(labels[labels >= 0]))
    return Problem("", "", X, labels, n_clusters, images)


def _one_trial(data_home: str | None) -> list[str]:
    return ["0"]


def _loaded(
    name: str, about: str, load: Callable[[str | None], Any], files: tuple[str, ...] = ()
) -> DataSet:
    def make(trial: str, seed: int, data_home: str | None) -> Problem:
        bunch = _cached(load, data_home)
        return _problem(bunch.data, bunch.target, bunch.get("images"))

    return DataSet(name, about, make, _one_trial, files=files)


def _fetched(name: str, about: str, fetch: str, *files: str) -> DataSet:
    return _loaded(name, about, lambda home: getattr(datasets, fetch)(data_home=home), files)


def _generated(name: str, about: str, generate: str) -> DataSet:
    def make(trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        random_state = np.random.RandomState([seed, int(trial)])
        return _problem(*getattr(datasets, generate)(random_state=random_state, **settings))

    return DataSet(name, about, make, _one_trial, generated=True)


@lru_cache(maxsize=4)
def _cached(load: Callable[[str | None], Any], data_home: str | None) -> Any:
    """What a process has loaded lately: many of its jobs need the same."""
    return load(data_home)


@lru_cache(maxsize=2)
def _own_points(path: str, content: str | None) -> Any:
    """Points of a file, loaded again when its content is another."""
    bunch = datasets.load_points(path)
    if bunch.target is None:
        raise ValueError(f"{path}: holds no labels, by which clusters are judged")
    return bunch


def _sequences(data_home: str | None) -> dict[str, Any]:
    found = datasets.fetch_hopkins155(data_home=data_home)
    return {sequence.name: sequence for sequence in found}


def _motion(trial: str, seed: int, data_home: str | None) -> Problem:
    sequence = _cached(_sequences, data_home)[trial]
    return _problem(sequence.X, sequence.labels)


def _faces(data_home: str | None) -> Any:
    return datasets.fetch_extended_yale_b(data_home=data_home)


def _persons(n_subjects: int) -> DataSet:
    """The standard trials; a trial is named by its subjects, from 1 as in the literature."""

    def trials(data_home: str | None) -> list[str]:
        return [_TRIAL.join(str(1 + s) for s in t) for t in datasets.yale_b_subsets(n_subjects)]

    def make(trial: str, seed: int, data_home: str | None) -> Problem:
        faces = _cached(_faces, data_home)
        rows = np.isin(faces.target, [int(word) - 1 for word in trial.split(_TRIAL)])
        return _problem(faces.data[rows], faces.target[rows], faces.images[rows])

    about = f"Extended Yale B, raw 48 x 42 pixels: the standard trials of {n_subjects} persons"
    files = ("ExtendedYaleB.mat",)
    return DataSet(f"yaleb-{n_subjects}", about, make, trials, files=files)


_TRIAL = "+"
_IDX = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")
DATA: dict[str, DataSet] = {
    source.name: source
    for source in (
        _loaded(
            "digits",
            "digits of scikit-learn, 1,797 at 8 x 8",
            lambda home: datasets.load_digits(),
        ),
        _generated("synthetic", "points on random subspaces", "make_union_of_subspaces"),
        _generated("manifolds", "points on curved manifolds", "make_union_of_manifolds"),
        _fetched("coil20", "COIL-20, 1,440 objects at 32 x 32", "fetch_coil20", "COIL20.mat"),
        _fetched("coil100", "COIL-100, 7,200 objects at 32 x 32", "fetch_coil100", "COIL100.mat"),
        _fetched("orl", "ORL, 400 faces", "fetch_orl", "ORL_32x32.mat"),
        _fetched("yale", "Yale, 165 faces", "fetch_yale", "Yale_32x32.mat"),
        _fetched("usps", "USPS, 9,298 digits at 16 x 16", "fetch_usps", "USPS.mat", "usps.h5"),
        _fetched("mnist", "MNIST, 70,000 digits", "fetch_mnist", "mnist", *_IDX, "openml"),
        _fetched(
            "fashion-mnist",
            "Fashion-MNIST, 70,000 garments",
            "fetch_fashion_mnist",
            "fashion-mnist",
            "openml",
        ),
        _fetched("emnist", "EMNIST, letters", "fetch_emnist", "emnist", "gzip"),
        _fetched(
            "cifar10",
            "CIFAR-10, the 50,000 training images",
            "fetch_cifar10",
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            "cifar-10-images",
            "cifar-10-images.tar.xz",
        ),
        *(_persons(n_subjects) for n_subjects in (2, 3, 5, 8, 10, 38)),
        DataSet(
            "hopkins",
            "Hopkins 155, a sequence a trial",
            _motion,
            lambda home: list(_cached(_sequences, home)),
            files=("hopkins155",),
        ),
    )
}
