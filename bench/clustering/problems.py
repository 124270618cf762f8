"""Clustering problems by name, which a job holds and from which a worker makes the points."""

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from ... import datasets
from ...datasets.points import TARGET_NAMES, point_files
from ...solvers.clustering.selection import check_distinct
from ...solvers.inputs import Array
from ...validation import check_integer
from ..names import close_names, split_settings

_GENERATED_TRIALS = 5
_DRAWN = ("n_classes", "n_points")
_PART = ("classes", *_DRAWN)
_GIVEN = {"path", "random_state", "data_home", "return_X_y", "as_frame", "n_class"}


@dataclass(frozen=True, eq=False)
class Problem:
    """Points with the labels of their clusters; label -1 marks outliers.

    `rows` are the numbers of the points in the whole data set, from 0.
    """

    name: str
    trial: str
    X: Array
    labels: Array
    n_clusters: int
    rows: Array
    images: Array | None = None

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).any())


@dataclass(frozen=True)
class DataSet:
    """A data set by the function of `datasets` that loads a Bunch or generates points.

    Settings behind the colon of a name are keyword arguments of that function. `files` are patterns
    of the files and folders below the data root that it may read.
    """

    about: str
    function: str
    files: tuple[str, ...] = ()

    @property
    def generated(self) -> bool:
        """Whether points are generated, for any number of trials."""
        return self.function.startswith("make_")

    @property
    def settings(self) -> set[str]:
        """Names of the settings that may follow the colon, without those of `_PART`."""
        return set(inspect.signature(getattr(datasets, self.function)).parameters) - _GIVEN

    def trials(self, data_home: str | None, **settings: Any) -> list[str]:
        return [_WHOLE]

    def make(self, trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        if self.generated:
            settings["random_state"] = np.random.RandomState([seed, int(trial)])
            return _problem(*getattr(datasets, self.function)(**settings))
        bunch = _load_data(self.function, data_home, **settings)
        return _problem(bunch.data, bunch.target, bunch.get("images"))


@dataclass(frozen=True)
class _OwnFile(DataSet):
    """Points of a user's file, loaded again if the file changes."""

    path: str = ""

    @property
    def settings(self) -> set[str]:
        return super().settings | {"n_clusters"}

    def load(self, **settings: Any) -> Any:
        files = point_files(self.path, settings.get("target_key"))
        return _load_own_points(self.path, _hash_of(files), **settings)

    def make(self, trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        n_clusters = settings.pop("n_clusters", None)
        bunch = self.load(**settings)
        labels = np.full(len(bunch.data), -1) if bunch.target is None else bunch.target
        if n_clusters is not None:
            n_clusters = check_integer(n_clusters, "n_clusters", minimum=1, maximum=len(labels))
        elif bunch.target is None:
            raise ValueError(
                f"{self.path}: holds no labels: name them by target_key, or say how many clusters "
                f"to look for by n_clusters, behind a colon. {bunch.DESCR}. Labels are known as "
                f"{', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}, in capitals or not"
            )
        found = _problem(bunch.data, labels, bunch.get("images"), n_clusters)
        check_distinct(found.X, found.n_clusters, self.path)
        return found


@dataclass(frozen=True)
class _Persons(DataSet):
    """Faces in the standard trials; a trial is named by its persons, counted from 1."""

    n_subjects: int = 2

    def trials(self, data_home: str | None, **settings: Any) -> list[str]:
        chosen = datasets.yale_b_subsets(self.n_subjects)
        return [_TRIAL.join(str(1 + subject) for subject in trial) for trial in chosen]

    def make(self, trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        faces = _load_data(self.function, data_home)
        rows = np.isin(faces.target, [int(word) - 1 for word in trial.split(_TRIAL)])
        found = _problem(faces.data[rows], faces.target[rows], faces.images[rows])
        return replace(found, rows=np.flatnonzero(rows))


@dataclass(frozen=True)
class _Sequences(DataSet):
    """Sequences of all of the data set or of one `half`; each is a trial."""

    @property
    def settings(self) -> set[str]:
        return super().settings | {"half"}

    def trials(self, data_home: str | None, **settings: Any) -> list[str]:
        sequences, half = load_sequences(data_home), settings.get("half")
        if half is None:
            return list(sequences)
        motions = {name: sequence.n_motions for name, sequence in sequences.items()}
        return halves_of(motions)[check_integer(half, "half", minimum=1, maximum=2) - 1]

    def make(self, trial: str, seed: int, data_home: str | None, **settings: Any) -> Problem:
        if trial not in self.trials(data_home, **settings):
            raise KeyError(trial)
        sequence = load_sequences(data_home)[trial]
        return _problem(sequence.X, sequence.labels)


def halves_of(motions: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Split names of sequences into two halves without a common video.

    Both halves have about equal numbers of motions. Sequences such as ``cars3_g12``, motions 1 and
    2 of ``cars3``, belong to the half of ``cars3``. The halves do not depend on the seed of a run.
    """
    videos: dict[str, int] = {}
    for name, count in motions.items():
        video = _CUT_OUT.sub("", name)
        videos[video] = max(count, videos.get(video, 0))
    first: set[str] = set()
    rng = np.random.RandomState(0)
    for count in sorted(set(videos.values())):
        alike = sorted(video for video in videos if videos[video] == count)
        first.update(rng.permutation(alike)[: len(alike) // 2])
    halves: tuple[list[str], list[str]] = [], []
    for name in motions:
        halves[_CUT_OUT.sub("", name) not in first].append(name)
    return halves


def make_problem(
    data: str, trial: str = "0", *, seed: int = 0, data_home: str | None = None
) -> Problem:
    """The problem of a name, such as ``digits`` or ``synthetic:noise=0.2,angle=0.5``.

    Parameters
    ----------
    data : str
        Name of a data set, or path of a file of points with labels. Settings follow a colon: the
        keyword arguments of a generator, of ``fetch_NAME`` or of `load_points`, such as
        ``mnist:subset=test``, ``mine.h5:data_key=X`` or ``mine.csv:drop=id``. If points are not
        generated, settings also choose a part: ``classes=FIRST-LAST``, counted from 1 in the order
        of labels; ``n_classes`` random ones of these classes; and ``n_points`` random points of
        these classes. ``hopkins:half=1`` and ``half=2`` are sequences without a common video.
    trial : str, default="0"
        One of `trials_of`; for generated data and random parts, the number of a draw.
    seed : int, default=0
        Seed of generators and random parts.
    data_home : str, optional
        The data root.

    Raises
    ------
    FileNotFoundError
        If the files of the data set are missing.
    ValueError
        If the name, the trial or a setting is unknown, or a file is broken.
    """
    source, settings, part = _parse_name(data)
    try:
        problem = source.make(trial, seed, data_home, **settings)
    except (KeyError, TypeError) as error:
        raise ValueError(f"data: no problem {data} with trial {trial!r}: {error}") from error
    if part:
        draw = int(trial) if trial.isdecimal() else 0
        problem = _take_part(problem, seed, draw, **part)
    if problem.labelled and problem.n_clusters == 1 and "n_clusters" not in settings:
        raise ValueError(
            f"data: all labels of {data} are of one class, so that there is nothing to tell apart: "
            "take points of two classes at least, name other labels by target_key, or say how many "
            "clusters to look for by n_clusters"
        )
    return replace(problem, name=data, trial=trial)


def found_in(data: str) -> str:
    """What `load_points` found in a file of points, in words."""
    source, settings, _ = _parse_name(data)
    settings.pop("n_clusters", None)
    return str(source.load(**settings).found) if isinstance(source, _OwnFile) else ""


def trials_of(
    data: str, *, n_trials: int | None = None, seed: int = 0, data_home: str | None = None
) -> list[str]:
    """Names of all trials of a data set, or of `n_trials` random ones.

    Generated data have as many trials as asked for, 5 by default. So have random parts of a set
    with a single trial, 1 by default.
    """
    source, settings, part = _parse_name(data)
    if source.generated:
        return [str(number) for number in range(n_trials or _GENERATED_TRIALS)]
    names = source.trials(data_home, **settings)
    if names == [_WHOLE] and any(name in part for name in _DRAWN):
        return [str(number) for number in range(n_trials or 1)]
    if n_trials is None or n_trials >= len(names):
        return names
    chosen = np.random.default_rng(seed).choice(len(names), n_trials, replace=False)
    return [names[index] for index in sorted(chosen)]


def _parse_name(data: str) -> tuple[DataSet, dict[str, Any], dict[str, Any]]:
    """The data set of a name, the arguments of its function, and those of `_take_part`."""
    base, settings = split_settings(data, "data")
    source = _find(base)
    part = {} if source.generated else {n: settings.pop(n) for n in _PART if n in settings}
    if unknown := set(settings) - source.settings:
        words = ", ".join(map(repr, sorted(unknown)))
        raise ValueError(f"data: no problem {data}: {base} has no setting {words}")
    for name, value in settings.items():
        if name == "drop" and isinstance(value, list):
            settings[name] = tuple(value)
        elif not (source.generated or isinstance(value, str | int | float | None)):
            raise ValueError(f"{name}: must be a word or a number, got {value!r}")
    return source, settings, part


def content_of(data: str, data_home: str | None = None) -> str | None:
    """Hash of the files of a data set or of a user's points; None if there are no files."""
    return _hash_of(_files(data, data_home))


def is_at_hand(data: str, data_home: str | None = None) -> bool:
    """Whether a data set needs no files, or its files exist."""
    base = split_settings(data, "data")[0]
    return (base in DATA and not DATA[base].files) or bool(_files(data, data_home))


def reads_files(data: str) -> bool:
    """Whether the problem depends on files of the data root."""
    base = split_settings(data, "data")[0]
    return base in DATA and bool(DATA[base].files)


def _files(data: str, data_home: str | None) -> list[Path]:
    """Files on which a problem may depend, including all in folders that match."""
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
        return _OwnFile("a file of the user", "load_points", path=base)
    folder, name = Path(base).absolute().parent, Path(base).name
    files = [path.name for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    hint = close_names(name, [*DATA, *files])
    raise ValueError(
        f"data: there is no file {name!r} in {folder}, and no data set of that name: these are "
        f"{', '.join(DATA)}{hint}"
    )


def _take_part(
    problem: Problem,
    seed: int,
    draw: int,
    classes: Any = None,
    n_classes: Any = None,
    n_points: Any = None,
) -> Problem:
    rows = np.arange(len(problem.X))
    if classes is not None or n_classes is not None:
        kept = _named_classes(problem, classes)
        if n_classes is not None:
            n_classes = check_integer(n_classes, "n_classes", minimum=1, maximum=len(kept))
            kept = kept[_pick(len(kept), n_classes, seed, draw)]
        rows = np.flatnonzero(np.isin(problem.labels, kept))
    if n_points is not None:
        n_points = check_integer(n_points, "n_points", minimum=1, maximum=len(rows))
        rng = np.random.default_rng([seed, draw])
        rows = np.sort(rng.choice(rows, n_points, replace=False))
    images = None if problem.images is None else problem.images[rows]
    known = None if problem.labelled else problem.n_clusters
    found = _problem(problem.X[rows], problem.labels[rows], images, known)
    return replace(found, rows=problem.rows[rows])


def _pick(n: int, size: int, seed: int, draw: int) -> list[int]:
    """Pick number `draw` among random picks of `size` of `n`; no two picks are the same."""
    if draw >= comb(n, size):
        raise ValueError(f"n_classes: there are {comb(n, size)} picks of {size} of {n} classes")
    rng = np.random.default_rng(seed)
    picks: dict[tuple[int, ...], None] = {}
    while len(picks) <= draw:
        picks[tuple(sorted(rng.choice(n, size, replace=False).tolist()))] = None
    return list(list(picks)[draw])


def _named_classes(problem: Problem, classes: Any) -> Array:
    """The labels that are FIRST to LAST in order, or the one of a number, from 1; None is all."""
    known = np.unique(problem.labels[problem.labels >= 0])
    if not len(known):
        raise ValueError("classes, n_classes: there are no labels to tell classes by")
    if classes is None:
        return known
    said = _RANGE.fullmatch(str(classes))
    first, last = (int(said[1]), int(said[2] or said[1])) if said else (0, 0)
    if not 1 <= first <= last <= len(known):
        raise ValueError(f"classes: must be FIRST-LAST or one of 1-{len(known)}, got {classes!r}")
    return known[first - 1 : last]


def _problem(
    X: Array, labels: Array, images: Array | None = None, n_clusters: int | None = None
) -> Problem:
    """A problem with `n_clusters`, or else as many clusters as there are labels."""
    n_clusters = n_clusters or len(np.unique(labels[labels >= 0]))
    return Problem("", "", X, labels, n_clusters, np.arange(len(X)), images)


@lru_cache(maxsize=4)
def _load_data(function: str, data_home: str | None, **settings: Any) -> Any:
    """Load data; a process keeps the latest, as many of its jobs need the same."""
    load = getattr(datasets, function)
    known = inspect.signature(load).parameters
    return load(**({"data_home": data_home} if "data_home" in known else {}), **settings)


@lru_cache(maxsize=2)
def _load_own_points(path: str, content: str | None, **keys: Any) -> Any:
    return datasets.load_points(path, **keys)


@lru_cache(maxsize=1)
def load_sequences(data_home: str | None) -> dict[str, Any]:
    """The sequences of Hopkins 155 by name."""
    found = datasets.fetch_hopkins155(data_home=data_home)
    return {sequence.name: sequence for sequence in found}


_WHOLE = "0"  # the trial of a set that has a single one
_TRIAL = "+"
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_CUT_OUT = re.compile(r"_g\d\d$")
_IDX = "*-ubyte*"
_OPENML = "openml/openml.org/**/data_name/"  # where scikit-learn keeps downloads
_CIFAR = (
    "cifar-10-batches-bin", "cifar-10-binary.tar.gz", "cifar-10-images", "cifar-10-images.tar.xz",
)  # fmt: skip
DATA: dict[str, DataSet] = {
    "digits": DataSet("digits of scikit-learn, 1,797 at 8 x 8", "load_digits"),
    "synthetic": DataSet("points on random subspaces", "make_union_of_subspaces"),
    "manifolds": DataSet("points on curved manifolds", "make_union_of_manifolds"),
    "coil20": DataSet("COIL-20, 1,440 objects at 32 x 32", "fetch_coil20", ("COIL20.mat",)),
    "coil100": DataSet("COIL-100, 7,200 objects at 32 x 32", "fetch_coil100", ("COIL100.mat",)),
    "orl": DataSet("ORL, 400 faces", "fetch_orl", ("ORL_32x32.mat",)),
    "yale": DataSet("Yale, 165 faces", "fetch_yale", ("Yale_32x32.mat",)),
    "usps": DataSet("USPS, 9,298 digits at 16 x 16", "fetch_usps", ("USPS.mat", "usps.h5")),
    "mnist": DataSet(
        "MNIST, 60,000 digits; subset=test or all",
        "fetch_mnist",
        ("mnist", _IDX, "openml/mnist_784", _OPENML + "mnist_784"),
    ),
    "fashion-mnist": DataSet(
        "Fashion-MNIST, 60,000 garments; subset=test or all",
        "fetch_fashion_mnist",
        ("fashion-mnist", "openml/Fashion-MNIST", _OPENML + "fashion-mnist"),
    ),
    "emnist": DataSet(
        "EMNIST, letters and digits; split=balanced or another, subset=test or all",
        "fetch_emnist",
        ("emnist", _IDX),
    ),
    "cifar10": DataSet(
        "CIFAR-10, the 50,000 training images; subset=test or all", "fetch_cifar10", _CIFAR
    ),
    "yaleb": DataSet(
        "Extended Yale B, 2,414 faces of 38 persons, raw 48 x 42 pixels",
        "fetch_extended_yale_b",
        ("ExtendedYaleB.mat",),
    ),
    **{
        f"yaleb-{n}": _Persons(
            f"Extended Yale B of {n} persons, raw 48 x 42 pixels: the standard trials",
            "fetch_extended_yale_b",
            ("ExtendedYaleB.mat",),
            n_subjects=n,
        )
        for n in (2, 3, 5, 8, 10, 38)
    },
    "hopkins": _Sequences(
        "Hopkins 155, a sequence a trial; half=1 or 2", "fetch_hopkins155", ("hopkins155",)
    ),
}
