"""Spread rows over workers: threads of the standard library, or a configured joblib backend.

joblib's own threads are not used: starting them takes longer than many of the solves here.

Every worker computes the same bits. Sums have another order where BLAS has other threads, and where
NumPy copies an array because its entries do not stand at multiples of their size: so Dask hands
over what came through the network.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from itertools import starmap
from threading import Lock
from typing import Any

import joblib
import numpy as np
from joblib.parallel import SequentialBackend, ThreadingBackend, get_active_backend
from threadpoolctl import ThreadpoolController


class _OneBlasThread:
    """Holds BLAS to one thread from when the first of its users enters until the last leaves."""

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """Found once, as that takes milliseconds; by the first use all are loaded."""
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limit.restore_original_limits()


one_blas_thread = _OneBlasThread()


def count_workers(n_jobs: int | None) -> int:
    """Number of workers for `n_jobs`; None is 1, or what ``joblib.parallel_config`` says."""
    return _workers(n_jobs)[1]


def spread(
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
    *,
    in_order: bool = True,
    shared: bool = False,
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
    shared : bool
        Whether the function writes to arrays of the caller: then threads run it, whatever is named.

    Examples
    --------
    >>> list(spread(pow, [(2, 3), (3, 2)], n_jobs=2))
    [8, 9]
    """
    backend, n_workers = _workers(n_jobs)
    if type(backend) not in (SequentialBackend, ThreadingBackend) and not shared:
        kind = "generator" if in_order else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=n_jobs, prefer="threads", return_as=kind)
        run = joblib.delayed(_run_elsewhere)
        results: Iterator[Any] = parallel(run(function, *task) for task in tasks)
        return results
    tasks = list(tasks)
    if min(n_workers, len(tasks)) <= 1:
        return starmap(function, tasks)
    return _spread_over_threads(function, tasks, n_workers, in_order)


def _run_elsewhere(function: Callable[..., Any], *task: Any) -> Any:
    """Run a task as the caller would, in another process or on another machine."""
    with one_blas_thread:
        return function(*map(_align, task))


def _align(value: Any) -> Any:
    """Return the value with arrays, and those of its fields, at addresses that NumPy aligns."""
    if isinstance(value, np.ndarray):
        return np.require(value, requirements="A")
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: _align(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **own)
    return value


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
