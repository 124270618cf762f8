"""Methods of several packages on the same input: times in turns, and what each result is worth."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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
COLUMNS = [
    "case", "about", "dtype", "inputs", "method", "package", "version", "n_jobs", "ms", "ms_lowest",
    "ms_highest", "ratio", "ratio_lowest", "ratio_highest", "psnr", "ssim", "difference", "cost",
    "log_kappa", "memory_mib", "note",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Method:
    """A way to do it: ``run(*input)`` returns the result, on `n_jobs` threads, by a `package`."""

    name: str
    package: str
    run: Callable[..., Any]
    n_jobs: int = 1


def on_threads(run: Callable[..., Any], n_jobs: int) -> list[Method]:
    """Ours, that takes `n_jobs`: on as many threads as asked for, and on one."""
    methods = [Method(OURS, OURS, partial(run, n_jobs=n_jobs), n_jobs)]
    if n_jobs > 1:
        methods.append(Method(f"{OURS}, one thread", OURS, partial(run, n_jobs=1)))
    return methods


@dataclass(frozen=True, eq=False)
class Contest:
    """Inputs, each the arguments of a call, and methods: first ours, that the others stand beside.

    ``measure(results, first)`` says what the results of all inputs are worth and how far they are
    from the first method's, under names among the columns.
    """

    inputs: Sequence[tuple[Any, ...]]
    methods: list[Method]
    measure: Callable[[list[Any], list[Any]], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A contest by name, on numbers of a dtype; ``make(seed, n_jobs)`` prepares it.

    Where it is to run `once`, its many inputs are the repetition; where its memory is of interest,
    ours is run again in a process of its own.
    """

    name: str
    about: str
    make: Callable[[int, int], Contest]
    dtype: str
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
    versions = {package: installed(MODULES[package]) for package in (OURS, *peers)}
    for package, number in versions.items():
        if number:
            import_module(MODULES[package])  # what is loaded can be told its threads
    with threads(n_jobs):
        contest = case.make(seed, n_jobs)
    methods = [m for m in contest.methods if m.package in versions]
    racers = [_Racer(m, contest.inputs) for m in methods if versions[m.package]]
    facts: dict[str, float] = {}
    steps: list[Callable[[], Any]] = [racer.warm_up for racer in racers]
    if case.memory:
        steps.append(lambda: facts.update(memory_mib=memory_alone(case, seed, n_jobs)))
    turns = in_turns(racers, 1 if case.once else rounds)
    steps += [racer.run for racer, _ in turns]
    for step in progress(steps, len(steps)) if progress else steps:
        step()
    rows = {racer.method.name: racer.row(racers[0], contest) for racer in racers}
    rows[racers[0].method.name] |= facts
    about: dict[str, Any] = {"case": case.name, "about": case.about, "dtype": case.dtype}
    about |= {"inputs": len(contest.inputs)}
    return pd.DataFrame(
        about
        | {"method": m.name, "package": m.package, "version": versions[m.package]}
        | rows.get(m.name, {"note": f"{MODULES[m.package]} is not installed"})
        for m in methods
    ).reindex(columns=COLUMNS)


class _Racer:
    """A method and its times, in milliseconds."""

    def __init__(self, method: Method, inputs: Sequence[tuple[Any, ...]]) -> None:
        self.method, self.inputs = method, inputs
        self.times: list[float] = []
        self.results: list[Any] = []

    def warm_up(self) -> None:
        """Have everything compiled."""
        with threads(self.method.n_jobs):
            self.method.run(*self.inputs[0])

    def run(self) -> None:
        with threads(self.method.n_jobs):
            start = time.perf_counter()
            self.results = [self.method.run(*arguments) for arguments in self.inputs]
            self.times.append(1000 * (time.perf_counter() - start))

    def row(self, first: "_Racer", contest: Contest) -> dict[str, Any]:
        worth = contest.measure(self.results, first.results)
        return {"n_jobs": self.method.n_jobs, "note": ""} | timing(self.times, first.times) | worth


@contextmanager
def threads(n_jobs: int) -> Iterator[None]:
    """Nobody gets more threads than asked for; costs are reported, so that warnings add nothing."""
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
    contest = make(int(seed), int(n_jobs), **json.loads(given))
    ours = _Racer(contest.methods[0], contest.inputs)
    ours.warm_up()
    before = resident("VmRSS") if reset_peak() else np.nan
    ours.run()
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    _main(*sys.argv[1:])
