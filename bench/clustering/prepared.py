"""Problems with their features, which many jobs share: made once a process, or once a run."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...solvers.solution import Array
from ..results import code, resume_parts
from .features import features_of, is_costly
from .problems import Problem, make_problem
from .study import Job, Options, run_jobs

_folder: Path | None = None


def keep_features_in(folder: Path | None) -> None:
    """Tell a process where costly features are kept; None is nowhere."""
    global _folder
    _folder = folder


@lru_cache(maxsize=2)
def prepared(
    data: str, trial: str, *, seed: int, data_home: str | None, content: str | None, features: str
) -> tuple[Problem, Array]:
    """The problem, and its features by name: from the run's folder if they are there.

    `content` tells one file of the user from another under the same name.
    """
    problem = make_problem(data, trial, seed=seed, data_home=data_home)
    if _folder is None or not is_costly(features):
        return problem, features_of(features, problem)
    key = {
        "data": data, "trial": trial, "seed": seed, "data_home": data_home, "content": content,
        "features": features, **code(),
    }  # fmt: skip
    ((_, kept),) = resume_parts(lambda: [({}, {"X": features_of(features, problem)})], key, _folder)
    return problem, kept["X"]


def prepare(jobs: list[Job], options: Options, setup: Callable[[], None]) -> None:
    """Keep the costly features of the jobs, each once, before several of these need them."""
    names = ("data", "trial", "seed", "data_home", "content", "features")
    costly = {tuple(job[name] for name in names): job for job in jobs if is_costly(job["features"])}
    if costly and options.directory is not None:
        shared = [{name: job[name] for name in names} for job in costly.values()]
        run_jobs(keep_features, shared, options, setup=setup)


def keep_features(**key: Any) -> list[dict[str, Any]]:
    """Make the features of one problem and keep them; a row says what they are."""
    _, X = prepared(**key)
    return [{"n_points": len(X), "n_features": X.shape[1]}]
