"""Spread rows over workers: threads of the standard library, or a configured joblib backend.

joblib's own threads are not used: starting them takes longer than many of the solves here.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import starmap
from typing import Any

import joblib
from joblib.parallel import SequentialBackend, ThreadingBackend, get_active_backend


def count_workers(n_jobs: int | None) -> int:
    """Number of workers for `n_jobs`; None is 1, or what ``joblib.parallel_config`` says."""
    return _workers(n_jobs)[1]


def spread(
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
    *,
    in_order: bool = True,
) -> Iterator[Any]:
    """Yield ``function(*task)`` for each task, in the order of the tasks or of their completion.

    The first error of a task is raised. Tasks that have not started by then are cancelled, and
    running tasks are waited for; the same holds if the caller stops early.

    Parameters
    ----------
    function : callable
        Picklable, for backends with processes.
    tasks : iterable of tuples
    n_jobs : int or None
        Number of workers, as in `count_workers`: threads, unless ``joblib.parallel_config`` names
        another backend, for processes or a Dask cluster for instance.
    in_order : bool
        Whether to yield in the order of the tasks.

    Examples
    --------
    >>> list(spread(pow, [(2, 3), (3, 2)], n_jobs=2))
    [8, 9]
    """
    backend, n_workers = _workers(n_jobs)
    if type(backend) not in (SequentialBackend, ThreadingBackend):
        kind = "generator" if in_order else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=n_jobs, prefer="threads", return_as=kind)
        results: Iterator[Any] = parallel(joblib.delayed(function)(*task) for task in tasks)
        return results
    tasks = list(tasks)
    if min(n_workers, len(tasks)) <= 1:
        return starmap(function, tasks)
    return _spread_over_threads(function, tasks, n_workers, in_order)


def _workers(n_jobs: int | None) -> tuple[Any, int]:
    """The active joblib backend, and the number of workers."""
    backend, _ = get_active_backend(prefer="threads")
    if n_jobs is None:
        # Ask without a preference: with one for threads, joblib drops an n_jobs without a backend.
        n_jobs = get_active_backend()[1]
    return backend, backend.effective_n_jobs(backend.default_n_jobs if n_jobs is None else n_jobs)


def _spread_over_threads(
    function: Callable[..., Any], tasks: list[tuple[Any, ...]], n_workers: int, in_order: bool
) -> Iterator[Any]:
    pool = ThreadPoolExecutor(min(n_workers, len(tasks)))
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in futures if in_order else as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
