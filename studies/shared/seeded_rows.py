"""Rows of image classifiers with paired seeds that all take one learning rate."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from twinsolve.bench.jobs import Job, Options, run_jobs
from twinsolve.bench.paired_training import contents
from twinsolve.bench.task import PLAIN
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import settings_of


def measure_rows(
    measure: Callable[..., list[dict[str, Any]]], rows: Sequence[str], data: str, *,
    seeds: int, steps: int | None, recipe: Mapping[str, Any], n_jobs: int, data_home: str | None,
    directory: Path, progress: Any,
) -> pd.DataFrame:  # fmt: skip
    """Call ``measure(data, data_home, directory, settings, row, seed)`` for all rows and seeds.

    The plain row comes first. All rows take the first candidate of the data set, which is then the
    only one of the settings.
    """
    settings = settings_of(data, recipe)
    given = {} if steps is None else {"n_steps": steps}
    settings["candidates"] = [settings["candidates"][0] | given]
    jobs: list[Job] = [
        {
            "data": data, "data_home": data_home, "directory": str(directory),
            "settings": settings, "row": row, "seed": seed,
        }
        for row in dict.fromkeys((PLAIN, *rows))
        for seed in range(seeds)
    ]  # fmt: skip
    options = Options(0, seeds, n_jobs, data_home, directory, progress)
    return run_jobs(measure, jobs, options, content=contents(load_splits(data, data_home)))
