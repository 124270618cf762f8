"""What a preset consists of: studies, and the jobs of a study, in parallel and resumable."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from ..results import Part, code, resume_parts, resume_table
from ..speed.contest import threads

Job = dict[str, Any]
Lines = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Options:
    """How a study is run: the first of `n_seeds` seeds, processes, data root, finished jobs."""

    seed: int = 0
    n_seeds: int = 10
    n_jobs: int = 1
    data_home: str | None = None
    directory: Path | None = None
    progress: Callable[[Iterable, int], Iterable] | None = None

    @property
    def seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + self.n_seeds))


@dataclass(frozen=True)
class Study:
    """A question that a preset answers: a table, its lines in a summary, and figures by file name.

    ``run(options)`` returns the tidy table; ``lines(table)`` the headings and cells of its summary,
    and so do the functions in `more`, of further summary tables by their titles. `rule` says how
    settings are chosen, where they are.
    """

    name: str
    about: str
    run: Callable[[Options], pd.DataFrame]
    lines: Callable[[pd.DataFrame], Lines]
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]] = field(default_factory=dict)
    more: Mapping[str, Callable[[pd.DataFrame], Lines]] = field(default_factory=dict)
    rule: str = ""

    def further(self, table: pd.DataFrame) -> dict[str, Lines]:
        """The further summary tables that have anything to say, by their titles."""
        found = {title: lines(table) for title, lines in self.more.items()}
        return {title: (headings, rows) for title, (headings, rows) in found.items() if rows}


@dataclass(frozen=True)
class Keep:
    """Keeps what a job costs before any seed of k-means comes in: whatever their number, once.

    ``keep(make, **part)`` returns what ``make()`` returned when the job, or that part of it, first
    ran. Without a directory nothing is kept.
    """

    job: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None

    def __call__(self, make: Callable[[], list[Part]], **part: Any) -> list[Part]:
        return resume_parts(make, {**self.job, "part": part}, self.directory)


class JobFailed(Exception):
    """A job whose failure is a result of its own: `rows` tell it.

    They are not kept, so that a later run tries again.
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
) -> pd.DataFrame:
    """Rows of ``function(**job)`` for every job, each kept as soon as it is finished.

    Jobs are what decides a result, in words and numbers that JSON can hold. They run in
    `options.n_jobs` processes, or where ``joblib.parallel_config`` says, one thread each; a job
    that `options.directory` has from an earlier run of the same source and versions is read
    instead. The function of jobs with ``seeds`` also gets ``keep=``, a `Keep` that does not depend
    on them. What a process needs to know beyond a job, `setup` tells it first; `content` tells the
    data files that the jobs read from others under the same names.
    """
    known = code() | ({"files": dict(content)} if content else {})
    tasks = (delayed(_run)(function, job, known, options.directory, setup) for job in jobs)
    tables: Iterable = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
    if options.progress:
        tables = options.progress(tables, len(jobs))
    return pd.concat(tables, ignore_index=True)


def _run(
    function: Callable[..., list[dict[str, Any]]],
    job: Job,
    known: dict[str, Any],
    directory: Path | None,
    setup: Callable[[], None] | None,
) -> pd.DataFrame:
    if setup:
        setup()
    key = {"study": f"{function.__module__}.{function.__qualname__}", **job, **known}
    if "seeds" in job:
        fit = {name: value for name, value in key.items() if name != "seeds"}
        function = partial(function, keep=Keep(fit, directory and directory / "fits"))
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # gaps are columns
        try:
            return resume_table(lambda: pd.DataFrame(function(**job)), key, directory)
        except JobFailed as failure:
            return pd.DataFrame(failure.rows)
