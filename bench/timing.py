"""Measure time and memory: runs in turns, limits of threads, and peak memory on Linux."""

import ctypes
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

Array = np.ndarray
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


def seconds_of(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turns(
    runs: Sequence[Callable[[], float]],
    rounds: int,
    *,
    before: Sequence[Callable[[], Any]] = (),
    progress: Progress | None = None,
) -> Array:
    """Call the runs in turns; return their results, such as seconds, as (n_runs, rounds).

    In a round, each run is called once; rounds begin with different runs. `before` is called first.
    """
    found: list[list[float]] = [[] for _ in runs]
    steps: list[Callable[[], Any]] = list(before)
    for i in range(rounds):
        order = np.roll(np.arange(len(runs)), -i)
        steps += [partial(lambda j: found[j].append(runs[j]()), j) for j in order]
    for step in progress(steps, len(steps)) if progress else steps:
        step()
    return np.array(found)


def timing(times: ArrayLike, reference: ArrayLike) -> dict[str, Any]:
    """Median, lowest and highest of times over rounds, and of ratios to reference times."""
    of = {"ms": np.asarray(times), "ratio": np.asarray(times) / np.asarray(reference)}
    return {
        name + end: fold(values)
        for name, values in of.items()
        for end, fold in (("", np.median), ("_lowest", np.min), ("_highest", np.max))
    }


# Libraries with pools of their own, and the functions that read and set their threads.
_OWN_THREADS = (
    ("cv2", "getNumThreads", "setNumThreads"),
    ("torch", "get_num_threads", "set_num_threads"),
)


@contextmanager
def threads(n_jobs: int) -> Iterator[None]:
    """Limit all libraries to `n_jobs` threads for a while, and ignore convergence warnings."""
    counts = []
    with threadpool_limits(n_jobs), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, get, set_ in _OWN_THREADS:
            if name in sys.modules:
                module = import_module(name)
                counts.append((getattr(module, set_), getattr(module, get)()))
                getattr(module, set_)(n_jobs)
        try:
            yield
        finally:
            for set_count, n_threads in counts:
                set_count(n_threads)


def resident(field: str) -> float:
    """A field of the process status in MiB, such as VmRSS or VmHWM (peak); NaN without Linux."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return np.nan
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else np.nan


def reset_peak() -> bool:
    """Reset VmHWM to the present size; return whether that is possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def measured(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a run, and its peak resident memory in MiB beyond that before the run.

    The C library first returns freed memory, so that memory that the run reuses counts too.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    before = resident("VmRSS") if reset_peak() else np.nan
    result = run()
    return result, resident("VmHWM") - before
