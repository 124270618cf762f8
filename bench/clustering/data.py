"""Data sets and files of points by name: read once, then one object goes on, to jobs as well."""

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ... import datasets
from ...datasets.labels import TARGET_NAMES
from ...datasets.points import is_turnable, point_files
from ...solvers.clustering.selection import check_distinct
from ...validation import check_integer
from ..names import close_names, split_settings
from .problems import Problem, problem_of, take_part

_GENERATED_TRIALS = 5
_DRAWN = ("n_classes", "n_points")
_PART = ("classes", *_DRAWN)
_GIVEN = {"path", "random_state", "data_home", "return_X_y", "as_frame", "n_class"}


@dataclass(frozen=True)
class Data:
    """A data set, a part of one or a file of points, as `find_data` reads its `name`.

    `settings` are for the source, `part` for `take_part`. `home` is the data root, of what has
    files there; `content` is a hash of all files, those in folders too, or None.
    """

    name: str
    source: "DataSet" = field(compare=False)
    settings: dict[str, Any] = field(compare=False)
    part: dict[str, Any] = field(compare=False)
    home: str | None
    content: str | None

    @property
    def own(self) -> bool:
        """Whether it is a file of the user."""
        return isinstance(self.source, _OwnFile)

    @property
    def turnable(self) -> bool:
        """Whether it is a file whose columns may be the points."""
        return isinstance(self.source, _OwnFile) and is_turnable(Path(self.source.path))

    @property
    def at_hand(self) -> bool:
        """Whether it needs no files, or its files exist."""
        return self.content is not None or not self.source.files

    @property
    def found(self) -> str:
        """What `load_points` found in a file of points, in words."""
        return str(self.source.load(self).found) if self.own else ""

    def trials(self, n_trials: int | None = None, seed: int = 0) -> list[str]:
        """Names of all trials, or of `n_trials` random ones.

        Generated data have as many trials as asked for, 5 by default. So have random parts of a set
        with a single trial, 1 by default.
        """
        if self.source.generated:
            return [str(number) for number in range(n_trials or _GENERATED_TRIALS)]
        names = self.source.trials(self)
        if names == [_WHOLE] and any(name in self.part for name in _DRAWN):
            return [str(number) for number in range(n_trials or 1)]
        if n_trials is None or n_trials >= len(names):
            return names
        chosen = np.random.default_rng(seed).choice(len(names), n_trials, replace=False)
        return [names[index] for index in sorted(chosen)]

    def problem(self, trial: str = "0", seed: int = 0) -> Problem:
        """The problem of a trial; for generated data and random parts, the number of a draw.

        Raises
        ------
        FileNotFoundError
            If the files of the data set are missing.
        ValueError
            If the trial is unknown, a setting is out of range, or a file is broken.
        """
        try:
            problem = self.source.make(self, trial, seed)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"data: cannot make trial {trial!r} of {self.name}: {error}"
            ) from error
        if self.part:
            draw = int(trial) if trial.isdecimal() else 0
            given = problem.n_clusters if "n_clusters" in self.settings else None
            problem = take_part(problem, seed, draw, given, **self.part)
        if problem.labelled and problem.n_clusters == 1 and "n_clusters" not in self.settings:
            raise ValueError(
                f"data: all labels of {self.name} are of one class. Take points of two or more "
                "classes, name other labels by target_key, or give the number of clusters by "
                "n_clusters"
            )
        return replace(problem, name=self.name, trial=trial)


def find_data(name: str, data_home: str | None = None) -> Data:
    """Read a name, such as ``digits`` or ``synthetic:noise=0.2,angle=0.5``.

    Parameters
    ----------
    name : str
        Name of a data set, or path of a file of points with labels. Settings follow a colon: the
        keyword arguments of a generator, of ``fetch_NAME`` or of `load_points`, such as
        ``mnist:subset=test``, ``mine.h5:data_key=X`` or ``mine.csv:drop=id``. If points are not
        generated, settings also choose a part: ``classes=FIRST-LAST``, counted from 1 in the order
        of labels; ``n_classes`` random ones of these classes; and ``n_points`` random points of
        these classes. ``hopkins:half=1`` and ``half=2`` are sequences without a common video.
    data_home : str, optional
        The data root.

    Raises
    ------
    ValueError
        If the name or a setting is unknown.
    """
    base, settings = split_settings(name, "data")
    source = _find(base)
    part = {} if source.generated else {n: settings.pop(n) for n in _PART if n in settings}
    if unknown := set(settings) - source.settings:
        words = ", ".join(map(repr, sorted(unknown)))
        raise ValueError(f"data: {base} has no setting {words}, got {name!r}")
    for key, value in settings.items():
        if key == "drop" and isinstance(value, list):
            settings[key] = tuple(value)
        elif not (source.generated or isinstance(value, str | int | float | None)):
            raise ValueError(f"{key}: must be a word or a number, got {value!r}")
    root = datasets.data_root(data_home)
    content = _hash_of(source.paths(root, settings))
    return Data(name, source, settings, part, str(root) if source.files else None, content)


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

    def paths(self, root: Path, settings: dict[str, Any]) -> list[Path]:
        """Files on which a problem may depend, including all in folders that match."""
        places = [place for pattern in self.files for place in sorted(root.glob(pattern))]
        inside = (path for place in places for path in [place, *sorted(place.rglob("*"))])
        return [path for path in inside if path.is_file()]

    def load(self, data: Data, **settings: Any) -> Any:
        home = {"data_home": data.home} if self.files else {}
        return _load(self.function, data.content, **home, **settings)

    def trials(self, data: Data) -> list[str]:
        return [_WHOLE]

    def make(self, data: Data, trial: str, seed: int) -> Problem:
        if self.generated:
            random = {"random_state": np.random.RandomState([seed, int(trial)])}
            return problem_of(*getattr(datasets, self.function)(**data.settings, **random))
        bunch = self.load(data, **data.settings)
        return problem_of(bunch.data, bunch.target, bunch.get("images"))


@dataclass(frozen=True)
class _OwnFile(DataSet):
    """Points of a user's file, loaded again if the file changes."""

    path: str = ""

    @property
    def settings(self) -> set[str]:
        return super().settings | {"n_clusters"}

    def paths(self, root: Path, settings: dict[str, Any]) -> list[Path]:
        found = point_files(self.path, settings.get("target_key"))
        return [path for path in found if path.is_file()]

    def load(self, data: Data, **_: Any) -> Any:
        keys = {key: value for key, value in data.settings.items() if key != "n_clusters"}
        return _load(self.function, data.content, path=self.path, **keys)

    def make(self, data: Data, trial: str, seed: int) -> Problem:
        n_clusters, bunch = data.settings.get("n_clusters"), self.load(data)
        labels = np.full(bunch.data.shape[0], -1) if bunch.target is None else bunch.target
        if n_clusters is not None:
            n_clusters = check_integer(n_clusters, "n_clusters", minimum=1, maximum=len(labels))
        elif bunch.target is None:
            raise ValueError(
                f"{self.path}: holds no labels: name them by target_key, or say how many clusters "
                f"to look for by n_clusters, as in {self.path}:n_clusters=3. {bunch.DESCR}. "
                "Labels are known as "
                f"{', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}, in capitals or not. For a "
                ".npy file they stand in another file beside it: target_key=labels.npy"
            )
        found = problem_of(bunch.data, labels, bunch.get("images"), n_clusters)
        check_distinct(found.X, found.n_clusters, self.path)
        return found


@dataclass(frozen=True)
class _Persons(DataSet):
    """Faces in the standard trials; a trial is named by its persons, counted from 1."""

    n_subjects: int = 2

    def trials(self, data: Data) -> list[str]:
        chosen = datasets.yale_b_subsets(self.n_subjects)
        return [_TRIAL.join(str(1 + subject) for subject in trial) for trial in chosen]

    def make(self, data: Data, trial: str, seed: int) -> Problem:
        faces = self.load(data)
        rows = np.isin(faces.target, [int(word) - 1 for word in trial.split(_TRIAL)])
        found = problem_of(faces.data[rows], faces.target[rows], faces.images[rows])
        return replace(found, rows=np.flatnonzero(rows))


@dataclass(frozen=True)
class _Sequences(DataSet):
    """Sequences of all of the data set or of one `half`; each is a trial."""

    @property
    def settings(self) -> set[str]:
        return super().settings | {"half"}

    def load(self, data: Data, **_: Any) -> dict[str, Any]:
        return {sequence.name: sequence for sequence in super().load(data)}

    def trials(self, data: Data) -> list[str]:
        sequences, half = self.load(data), data.settings.get("half")
        if half is None:
            return list(sequences)
        motions = {name: sequence.n_motions for name, sequence in sequences.items()}
        return halves_of(motions)[check_integer(half, "half", minimum=1, maximum=2) - 1]

    def make(self, data: Data, trial: str, seed: int) -> Problem:
        if trial not in self.trials(data):
            raise KeyError(trial)
        sequence = self.load(data)[trial]
        return problem_of(sequence.X, sequence.labels)


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


def _hash_of(paths: list[Path]) -> str | None:
    stamps = ((path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _hash(tuple(zip(map(str, paths), stamps, strict=True))) if paths else None


@lru_cache(maxsize=64)
def _hash(files: tuple[tuple[str, tuple[int, int]], ...]) -> str:
    digest = hashlib.sha256()
    for path, _ in files:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=4)
def _load(function: str, content: str | None, **given: Any) -> Any:
    """Load data; a process keeps the latest, as many of its jobs need the same."""
    return getattr(datasets, function)(**given)


_WHOLE = "0"  # the trial of a set that has a single one
_TRIAL = "+"
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
