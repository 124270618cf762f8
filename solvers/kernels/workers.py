"""Rows spread over workers: threads of the standard library, or a configured joblib backend.

Starting joblib's own threads costs more than many of the solves here take.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import starmap
from typing import Any

import joblib
from joblib.parallel import SequentialBackend, ThreadingBackend, get_active_backend


def count_workers(n_jobs: int | None) -> int:
    """Workers that `n_jobs` asks for; None is 1, or what ``joblib.parallel_config`` says."""
    return _workers(n_jobs)[1]


def spread(
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
    *,
    in_order: bool = True,
) -> Iterator[Any]:
    """Yield ``function(*task)`` for each of the tasks, in their order or as they are finished.

    The first error of a task is raised; tasks that were not begun by then never are, and those that
    were are waited for, also where the caller stops early.

    Parameters
    ----------
    function : callable
        Picklable, for backends with processes.
    tasks : iterable of tuples
    n_jobs : int or None
        Workers, as in `count_workers`: threads, unless ``joblib.parallel_config`` names another
        backend, as for processes or a Dask cluster.
    in_order : bool

    Examples
    --------
    >>> list(spread(pow, [(2, 3), (3, 2)], n_jobs=2))
    [8, 9]
    """
    backend, n_workers = _workers(n_jobs)
    if type(backend) not in (SequentialBackend, ThreadingBackend):
        kind = "generator" if in_order else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=n_jobs, prefer="threads", return_as=kind)
        found: Iterator[Any] = parallel(joblib.delayed(function)(*task) for task in tasks)
        return found
    tasks = list(tasks)
    if min(n_workers, len(tasks)) <= 1:
        return starmap(function, tasks)
    return _in_threads(function, tasks, n_workers, in_order)


def _workers(n_jobs: int | None) -> tuple[Any, int]:
    backend, _ = get_active_backend(prefer="threads")
    if n_jobs is None:
        # Asked for without a preference: for threads joblib drops a number that names no backend.
        n_jobs = get_active_backend()[1]
    return backend, backend.effective_n_jobs(backend.default_n_jobs if n_jobs is None else n_jobs)


def _in_threads(
    function: Callable[..., Any], tasks: list[tuple[Any, ...]], n_workers: int, in_order: bool
) -> Iterator[Any]:
    pool = ThreadPoolExecutor(min(n_workers, len(tasks)))
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in futures if in_order else as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
