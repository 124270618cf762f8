"""Clustering problems by name: what a job says in words and a worker makes of it."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ... import datasets
from ...datasets.points import point_files
from ...solvers.solution import Array, check_integer
from ..names import close_names, split_settings

_GENERATED_TRIALS = 5
_GIVEN = {"path", "random_state", "data_home", "return_X_y"}


@dataclass(frozen=True, eq=False)
class Problem:
    """Points with the clusters that they belong to; label -1 marks outliers."""

    name: str
    trial: str
    X: Array
    labels: Array
    n_clusters: int
    images: Array | None = None

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).any())


@dataclass(frozen=True)
class DataSet:
    """A family of problems: ``make(trial, seed, data_home, **settings)`` one of them.

    ``trials(data_home)`` lists them; a `generated` data set has as many as wanted. `files` are
    patterns of the files and folders below the data root that it may read. Its settings are
    those of a `function` of `datasets`.
    """

    name: str
    about: str
    make: Callable[..., Problem]
    trials: Callable[[str | None], list[str]]
    generated: bool = False
    files: tuple[str, ...] = ()
    function: str | None = None

    @property
    def settings(self) -> set[str]:
        """Names of what may follow the colon, but for ``n_points``."""
        if self.function is None:
            return set()
        known = {"n_clusters"} if self.function == "load_points" else set()
        return known | set(inspect.signature(getattr(datasets, self.function)).parameters) - _GIVEN


def make_problem(
    data: str, trial: str = "0", *, seed: int = 0, data_home: str | None = None
) -> Problem:
    """The problem that a name says, such as ``digits`` or ``synthetic:noise=0.2,angle=0.5``.

    Parameters
    ----------
    data : str
        Name of a data set, or path of a file of points with labels; after a colon its settings:
        the keyword arguments of a generator; those of ``fetch_NAME`` and `load_points`, such as
        ``mnist:subset=test`` or ``mine.h5:data_key=X``; and ``n_points``, the size of a random
        subset of what is not generated.
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
    base, settings = split_settings(data, "data")
    source = _find(base)
    n_points = None if source.generated else settings.pop("n_points", None)
    if unknown := set(settings) - source.settings:
        words = ", ".join(map(repr, sorted(unknown)))
        raise ValueError(f"data: no problem {data}: {base} has no setting {words}")
    for name, value in settings.items():
        if not (source.generated or isinstance(value, str | int | float | None)):
            raise ValueError(f"{name}: must be a word or a number, got {value!r}")
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
    source = _find(split_settings(data, "data")[0])
    if source.generated:
        return [str(number) for number in range(n_trials or _GENERATED_TRIALS)]
    names = source.trials(data_home)
    if n_trials is None or n_trials >= len(names):
        return names
    chosen = np.random.default_rng(seed).choice(len(names), n_trials, replace=False)
    return [names[index] for index in sorted(chosen)]


def content_of(data: str, data_home: str | None = None) -> str | None:
    """Hash of the files of a data set or of a user's own points; None where there are none."""
    return _hash_of(_files(data, data_home))


def is_at_hand(data: str, data_home: str | None = None) -> bool:
    """Whether a data set needs no files, or they are there."""
    base = split_settings(data, "data")[0]
    return (base in DATA and not DATA[base].files) or bool(_files(data, data_home))


def reads_files(data: str) -> bool:
    """Whether the data root decides what the problem is."""
    base = split_settings(data, "data")[0]
    return base in DATA and bool(DATA[base].files)


def _files(data: str, data_home: str | None) -> list[Path]:
    """Files that may decide what a problem is; a folder counts for those in it."""
    base, settings = split_settings(data, "data")
    if base not in DATA:
        found = point_files(base, settings.get("target_key"))
        return [path for path in found if path.is_file()]
    root = datasets.data_root(data_home)
    places = [place for pattern in DATA[base].files for place in sorted(root.glob(pattern))]
    inside = (path for place in places for path in [place, *sorted(place.rglob("*"))])
    return [path for path in inside if path.is_file()]


def _hash_of(paths: list[Path]) -> str | None:
    stamps = ((path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _hash(tuple(zip(map(str, paths), stamps, strict=True))) if paths else None


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
        return _own(base)
    folder, name = Path(base).absolute().parent, Path(base).name
    files = [path.name for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    hint = close_names(name, [*DATA, *files])
    raise ValueError(
        f"data: there is no file {name!r} in {folder}, and no data set of that name: these are "
        f"{', '.join(DATA)}{hint}"
    )


def _subset(problem: Problem, n_points: int, seed: int) -> Problem:
    n_points = check_integer(n_points, "n_points", minimum=1, maximum=len(problem.X))
    kept = np.sort(np.random.default_rng(seed).choice(len(problem.X), n_points, replace=False))
    images = None if problem.images is None else problem.images[kept]
    known = None if problem.labelled else problem.n_clusters
    return _problem(problem.X[kept], problem.labels[kept], images, known)


def _problem(
    X: Array, labels: Array, images: Array | None = None, n_clusters: int | None = None
) -> Problem:
    """With as many clusters as there are labels, unless their number is given."""
    n_clusters = n_clusters or len(np.unique(labels[labels >= 0]))
    return Problem("", "", X, labels, n_clusters, images)


def _one_trial(data_home: str | None) -> list[str]:
    return ["0"]


def _loaded(
    name: str,
    about: str,
    load: Callable[..., Any],
    files: tuple[str, ...] = (),
    function: str | None = None,
) -> DataSet:
    """A data set of one trial: ``load(data_home, **settings)`` returns a Bunch."""

    def make(trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        bunch = _cached(load, data_home, **settings)
        return _problem(bunch.data, bunch.target, bunch.get("images"))

    return DataSet(name, about, make, _one_trial, files=files, function=function)


def _fetched(name: str, about: str, fetch: str, *files: str) -> DataSet:
    def load(data_home: str | None, **settings: Any) -> Any:
        return getattr(datasets, fetch)(data_home=data_home, **settings)

    return _loaded(name, about, load, files, fetch)


def _own(path: str) -> DataSet:
    """Points of a file, loaded again when its content is another."""

    def make(
        trial: str, seed: int, data_home: str | None, n_clusters: Any = None, **settings: Any
    ) -> Problem:
        files = point_files(path, settings.get("target_key"))
        bunch = _own_points(path, _hash_of(files), **settings)
        labels = np.full(len(bunch.data), -1) if bunch.target is None else bunch.target
        if n_clusters is not None:
            n_clusters = check_integer(n_clusters, "n_clusters", minimum=1, maximum=len(labels))
        elif bunch.target is None:
            raise ValueError(
                f"{path}: holds no labels: name them by target_key, or say how many clusters to "
                f"look for by n_clusters. {bunch.DESCR}; labels are known as y, target, targets, "
                "label, labels, gnd, gt or s"
            )
        return _problem(bunch.data, labels, bunch.get("images"), n_clusters)

    return DataSet(path, "a file of the user", make, _one_trial, function="load_points")


def _generated(name: str, about: str, generate: str) -> DataSet:
    def make(trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        random_state = np.random.RandomState([seed, int(trial)])
        return _problem(*getattr(datasets, generate)(random_state=random_state, **settings))

    return DataSet(name, about, make, _one_trial, generated=True, function=generate)


@lru_cache(maxsize=4)
def _cached(load: Callable[..., Any], data_home: str | None, **settings: Any) -> Any:
    """What a process has loaded lately: many of its jobs need the same."""
    return load(data_home, **settings)


@lru_cache(maxsize=2)
def _own_points(path: str, content: str | None, **keys: Any) -> Any:
    return datasets.load_points(path, **keys)


def _digits(data_home: str | None) -> Any:
    return datasets.load_digits()


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

    about = f"Extended Yale B of {n_subjects} persons, raw 48 x 42 pixels: the standard trials"
    files = ("ExtendedYaleB.mat",)
    return DataSet(f"yaleb-{n_subjects}", about, make, trials, files=files)


_TRIAL = "+"
_IDX = "*-ubyte*"
_OPENML = "openml/openml.org/**/data_name/"  # of scikit-learn
DATA: dict[str, DataSet] = {
    source.name: source
    for source in (
        _loaded(
            "digits",
            "digits of scikit-learn, 1,797 at 8 x 8",
            _digits,
        ),
        _generated("synthetic", "points on random subspaces", "make_union_of_subspaces"),
        _generated("manifolds", "points on curved manifolds", "make_union_of_manifolds"),
        _fetched("coil20", "COIL-20, 1,440 objects at 32 x 32", "fetch_coil20", "COIL20.mat"),
        _fetched("coil100", "COIL-100, 7,200 objects at 32 x 32", "fetch_coil100", "COIL100.mat"),
        _fetched("orl", "ORL, 400 faces", "fetch_orl", "ORL_32x32.mat"),
        _fetched("yale", "Yale, 165 faces", "fetch_yale", "Yale_32x32.mat"),
        _fetched("usps", "USPS, 9,298 digits at 16 x 16", "fetch_usps", "USPS.mat", "usps.h5"),
        _fetched(
            "mnist",
            "MNIST, 60,000 digits; subset=test or all",
            "fetch_mnist",
            "mnist",
            _IDX,
            "openml/mnist_784",
            _OPENML + "mnist_784",
        ),
        _fetched(
            "fashion-mnist",
            "Fashion-MNIST, 60,000 garments; subset=test or all",
            "fetch_fashion_mnist",
            "fashion-mnist",
            "openml/Fashion-MNIST",
            _OPENML + "fashion-mnist",
        ),
        _fetched(
            "emnist",
            "EMNIST, letters and digits; split=balanced or another, subset=test or all",
            "fetch_emnist",
            "emnist",
            _IDX,
        ),
        _fetched(
            "cifar10",
            "CIFAR-10, the 50,000 training images; subset=test or all",
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
