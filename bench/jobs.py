"""Jobs that resume: each result is kept under a key of everything that decides it."""

import hashlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from io import BytesIO
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from ..datasets.files import write_whole
from ..validation import check_folder, check_integer
from .sources import code, in_package, source_hash
from .timing import Progress, threads

Job = dict[str, Any]
Part = tuple[dict[str, Any], dict[str, np.ndarray]]  # a row, and arrays that belong to it


def resume_table(
    run: Callable[[], pd.DataFrame], key: dict[str, Any], directory: Path | None
) -> pd.DataFrame:
    """Rows of a run, read or kept as in `resume_parts`."""

    def make() -> list[Part]:
        return [(row, {}) for row in run().to_dict(orient="records")]

    return pd.DataFrame([row for row, _ in resume_parts(make, key, directory)])


def resume_parts(
    make: Callable[[], list[Part]], key: dict[str, Any], directory: Path | None
) -> list[Part]:
    """Read rows with their arrays from `directory`, or make and keep them.

    The key has everything that decides the result: settings, seed and `code`. Damaged files are
    ignored.
    """
    if directory is None:
        return make()
    path = directory / f"{_digest(key)}.npz"
    if path.is_file():
        content = path.read_bytes()
        with suppress(Exception):  # damaged or foreign bytes may raise anything
            return _unpack(content, path.stem)
    content = _pack(make(), path.stem)
    write_whole(path, content)
    return _unpack(content, path.stem)


def _digest(key: dict[str, Any]) -> str:
    words = json.dumps(key, sort_keys=True, default=asdict)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _pack(parts: list[Part], name: str) -> bytes:
    content = BytesIO()
    arrays = {f"{i}/{name}": x for i, (_, own) in enumerate(parts) for name, x in own.items()}
    np.savez(content, rows=json.dumps([row for row, _ in parts]), name=name, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _unpack(content: bytes, name: str) -> list[Part]:
    with np.load(BytesIO(content), allow_pickle=False) as kept:
        if kept["name"] != name:
            raise ValueError("kept for another job")
        parts: list[Part] = [(row, {}) for row in json.loads(str(kept["rows"]))]
        for place in set(kept.files) - {"rows", "name"}:
            i, _, of_row = place.partition("/")
            parts[int(i)][1][of_row] = kept[place]
    return parts


@dataclass(frozen=True)
class Options:
    """Options of jobs: first seed, number of seeds, processes, data root, folder, progress."""

    seed: int = 0
    seeds: int = 10
    n_jobs: int = 1
    data_home: str | None = None
    directory: Path | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_integer(self.seed, "seed", minimum=0)
        check_integer(self.seeds, "seeds", minimum=1)
        if not isinstance(self.n_jobs, Integral) or self.n_jobs == 0:
            raise ValueError(f"n_jobs: must be a whole number other than 0, got {self.n_jobs!r}")
        object.__setattr__(self, "directory", check_folder(self.directory, "directory"))

    @property
    def shared(self) -> dict[str, Any]:
        """Arguments that the functions of all studies take."""
        names = ("n_jobs", "data_home", "directory", "progress")
        return {name: getattr(self, name) for name in names}

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))


@dataclass(frozen=True)
class Keep:
    """Keeps the costly part of a job, which does not depend on the seeds of k-means.

    ``keep(make, **part)`` returns the result of ``make()`` from the first run of the job, or of
    that part of the job. Without a directory, nothing is kept.
    """

    job: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None

    def __call__(self, make: Callable[[], list[Part]], **part: Any) -> list[Part]:
        return resume_parts(make, {**self.job, "part": part}, self.directory)

    @property
    def unfinished(self) -> Path | None:
        """Folder of this job alone, where an interrupted fit leaves its state."""
        return self.directory and self.directory / _digest({**self.job})


class JobFailed(Exception):
    """A job failed; its `rows` say why.

    The rows enter the table but are not kept, so that a later run tries again.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.rows = rows


def run_jobs(
    function: Callable[..., list[dict[str, Any]]],
    jobs: list[Job],
    options: Options,
    *,
    setup: Callable[[], None] | None = None,
    content: Mapping[str, str | None] | None = None,
    modules: Sequence[str] = (),
    listeners: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Run ``function(**job)`` for every job and return all rows, which are kept as each job ends.

    A job holds everything that decides its result, as dataclasses and values that JSON can hold.
    Jobs run in `options.n_jobs` processes, or as ``joblib.parallel_config`` says, with one thread
    each. If `options.directory` has the result of the same job, source and versions, it is read
    instead. The source is every file that the function's module and `modules` import; for a script,
    its folder and the whole package. If jobs have ``seeds``, the function also gets ``keep=``, a
    `Keep` for all seeds: its key leaves them out. Each process first calls `setup`. `content` are
    hashes of the data files that the jobs read. `listeners` are further arguments of the function,
    which do not change its result.
    """
    known = code(function.__module__, *modules) | ({"files": dict(content)} if content else {})
    own = partial(function, **listeners) if listeners else function
    tasks = (delayed(_run)(own, job, known, options.directory, setup) for job in jobs)
    tables: Iterable[pd.DataFrame] = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
    if options.progress:
        tables = options.progress(tables, len(jobs))
    done: list[pd.DataFrame] = []
    try:
        done.extend(tables)
    except KeyboardInterrupt as stop:
        if options.directory:
            stop.add_note(
                f"{options.directory} keeps the results of {len(done)} of {len(jobs)} jobs; the "
                "same call goes on."
            )
        raise
    if len(done) < len(jobs):
        raise ValueError(
            f"progress: must yield every table that it is given, got {len(done)} of {len(jobs)}"
        )
    return pd.concat(done, ignore_index=True)


def _run(
    function: Callable[..., list[dict[str, Any]]],
    job: Job,
    known: dict[str, Any],
    directory: Path | None,
    setup: Callable[[], None] | None,
) -> pd.DataFrame:
    if setup:
        setup()
    own: Any = function.func if isinstance(function, partial) else function
    key = {"study": f"{own.__module__}.{own.__qualname__}", **job, **known}
    if not in_package(own.__module__):  # a script; hash its folder
        key["script"] = source_hash(Path(inspect.getfile(own)).parent)
    if "seeds" in job:
        fit = {name: value for name, value in key.items() if name != "seeds"}
        function = partial(function, keep=Keep(fit, directory and directory / "fits"))
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # tables report gaps
        try:
            return resume_table(lambda: pd.DataFrame(function(**job)), key, directory)
        except JobFailed as failure:
            return pd.DataFrame(failure.rows)
