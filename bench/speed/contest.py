"""Methods of several packages on the same input: times in turns, and what each result is worth."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from os import environ
from subprocess import PIPE
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from .memory import reset_peak, resident
from .peers import installed
from .race import Progress
from .rounds import in_turns, timing

OURS = "twinsolve"
# Have the C library give freed arrays back at once, else a second run takes none anew.
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MODULES = {
    OURS: "twinsolve",
    "numpy": "numpy",
    "opencv": "cv2",
    "scikit-image": "skimage",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "torch": "torch",
}
_COLUMNS = [
    "case", "about", "method", "package", "version", "n_jobs", "ms", "ms_lowest", "ms_highest",
    "ratio", "ratio_lowest", "ratio_highest", "psnr", "ssim", "difference", "cost", "log_kappa",
    "memory_mib", "note",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Method:
    """A way to do it: ``run()`` returns the result, with `n_jobs` threads, by a `package`."""

    name: str
    package: str
    run: Callable[[], Any]
    n_jobs: int = 1


def on_threads(run: Callable[..., Any], n_jobs: int) -> list[Method]:
    """Ours, that takes `n_jobs`: on as many threads as asked for, and on one."""
    methods = [Method(OURS, OURS, partial(run, n_jobs=n_jobs), n_jobs)]
    if n_jobs > 1:
        methods.append(Method(f"{OURS}, one thread", OURS, partial(run, n_jobs=1)))
    return methods


@dataclass(frozen=True, eq=False)
class Contest:
    """Methods, the first of them ours and the one to compare with.

    ``measure(result, first)`` says what a result is worth and how far it is from the first one's,
    under names among the columns.
    """

    methods: list[Method]
    measure: Callable[[Any, Any], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A contest by name; ``make(seed, n_jobs)`` prepares it.

    Where it is to run `once`, its many images are the repetition; where its memory is of interest,
    ours is run again in a process of its own.
    """

    name: str
    about: str
    make: Callable[[int, int], Contest]
    once: bool = False
    memory: bool = True


def hold(
    case: Case,
    peers: list[str],
    *,
    rounds: int,
    n_jobs: int,
    seed: int,
    progress: Progress | None,
) -> pd.DataFrame:
    """A row for each method, in the order of the contest."""
    contest = case.make(seed, n_jobs)
    methods = [m for m in contest.methods if m.package in (OURS, *peers)]
    versions = {m.package: installed(MODULES[m.package]) for m in methods}
    present = [m for m in methods if versions[m.package]]
    turns = list(in_turns(present, 1 if case.once else rounds))
    seconds: dict[str, list[float]] = {m.name: [] for m in present}
    results: dict[str, Any] = {}
    facts: dict[str, float] = {}

    def run(method: Method, last: bool) -> None:
        start = time.perf_counter()
        result = method.run()
        seconds[method.name].append(1000 * (time.perf_counter() - start))
        if last:
            results[method.name] = result

    def measure_memory() -> None:
        facts["memory_mib"] = memory_alone(case, seed, n_jobs)

    steps: list[Callable[[], Any]] = [measure_memory] if case.memory else []
    if not case.once:
        steps += [method.run for method in present]  # compile
    steps += [partial(run, *turn) for turn in turns]
    with _quiet(n_jobs):
        for step in progress(steps, len(steps)) if progress else steps:
            step()
        first = results[present[0].name]
        measures = {name: contest.measure(result, first) for name, result in results.items()}

    rows = []
    for method in methods:
        row: dict[str, Any] = {"case": case.name, "about": case.about, "method": method.name}
        row |= {"package": method.package, "version": versions[method.package], "note": ""}
        if method in present:
            row |= {"n_jobs": method.n_jobs} | measures[method.name]
            row |= timing(seconds[method.name], seconds[present[0].name])
        else:
            row["note"] = f"{MODULES[method.package]} is not installed"
        rows.append(row)
    rows[0] |= facts
    return pd.DataFrame(rows).reindex(columns=_COLUMNS)


@contextmanager
def _quiet(n_jobs: int) -> Iterator[None]:
    """Costs are reported, so that warnings add nothing; nobody gets more threads than asked for."""
    with threadpool_limits(n_jobs), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if "cv2" in sys.modules:
            import_module("cv2").setNumThreads(n_jobs)
        if "torch" in sys.modules:
            import_module("torch").set_num_threads(n_jobs)
        yield


def memory_alone(case: Case, seed: int, n_jobs: int) -> float:
    """Peak resident memory of ours beyond its input, in MiB, in a fresh process."""
    make = case.make
    maker, given = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
    arguments = [maker.__module__, maker.__name__, json.dumps(given), str(seed), str(n_jobs)]
    # -P: the present folder must not shadow what the child imports.
    command = [sys.executable, "-P", "-m", __name__, *arguments]
    run = subprocess.run(command, env=environ | _RETURNED, stdout=PIPE, text=True, check=True)
    return float(run.stdout)


def _main(module: str, maker: str, given: str, seed: str, n_jobs: str) -> None:
    make = getattr(import_module(module), maker)
    ours = make(int(seed), int(n_jobs), **json.loads(given)).methods[0]
    with _quiet(int(n_jobs)):
        ours.run()
        before = resident("VmRSS") if reset_peak() else np.nan
        result = ours.run()
        memory = resident("VmHWM") - before
    del result
    print(memory)


if __name__ == "__main__":
    _main(*sys.argv[1:])
