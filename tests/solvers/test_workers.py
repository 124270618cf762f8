import threading
import time
from dataclasses import dataclass
from operator import mul

import joblib
import numpy as np
import pytest
from joblib.parallel import BACKENDS, ThreadingBackend
from numpy.testing import assert_array_equal
from threadpoolctl import threadpool_limits

from twinsolve.solvers.kernels.workers import _run_elsewhere, count_workers, one_blas_thread, spread


def _sleep(index, seconds):
    time.sleep(seconds)
    return index


def _thread(_):
    time.sleep(0.05)
    return threading.get_ident()


@pytest.fixture
def own_backend(monkeypatch):
    """A backend registered under the name `own`, and the numbers of workers it was asked for."""
    asked = []

    class Own(ThreadingBackend):
        def configure(self, n_jobs=1, parallel=None, **options):
            asked.append(n_jobs)
            return super().configure(n_jobs, parallel, **options)

    monkeypatch.setitem(BACKENDS, "own", Own)
    return asked


@pytest.mark.parametrize("n_jobs", [None, 2, -1])
def test_answers_come_in_the_order_of_the_tasks(n_jobs):
    tasks = [(index, 0.02 * (index % 2 == 0)) for index in range(7)]
    assert list(spread(_sleep, tasks, n_jobs)) == list(range(7))
    assert list(spread(_sleep, [], n_jobs)) == []


def test_without_order_the_first_to_finish_comes_first():
    tasks = [(0, 0.5), (1, 0.0)]
    assert list(spread(_sleep, tasks, 2, in_order=False)) == [1, 0]
    assert list(spread(_sleep, tasks, 2)) == [0, 1]


@pytest.mark.parametrize(
    ("n_jobs", "context", "expected"),
    [
        (None, {}, 1),
        (3, {}, 3),
        (None, {"n_jobs": 2}, 2),
        (3, {"n_jobs": 2}, 3),
        (None, {"backend": "threading", "n_jobs": 2}, 2),
        (None, {"backend": "sequential"}, 1),
        (3, {"backend": "sequential"}, 1),
        (None, {"backend": "loky", "n_jobs": 2}, 2),
    ],
)
def test_number_of_workers_is_given_or_configured(n_jobs, context, expected):
    with joblib.parallel_config(**context):
        assert count_workers(n_jobs) == expected
        if context.get("backend") != "loky":
            threads = set(spread(_thread, [(index,) for index in range(6)], n_jobs))
            assert len(threads) == expected
            assert (threading.get_ident() in threads) == (expected == 1)


def test_zero_workers_are_refused():
    with pytest.raises(ValueError, match="n_jobs"):
        list(spread(mul, [(1, 2)], 0))


def test_a_configured_backend_does_the_work(own_backend):
    tasks = [(index, 2) for index in range(5)]
    with joblib.parallel_config("own", n_jobs=2):
        assert list(spread(mul, tasks, None)) == [0, 2, 4, 6, 8]
        assert sorted(spread(mul, tasks, 3, in_order=False)) == [0, 2, 4, 6, 8]
    assert own_backend == [2, 3]
    list(spread(mul, tasks, 2))
    assert own_backend == [2, 3]


def test_joblibs_threads_are_not_started_for_the_default(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a pool of joblib")

    monkeypatch.setattr(ThreadingBackend, "configure", fail)
    assert list(spread(mul, [(1, 2), (3, 4)], 2)) == [2, 12]


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_passes_through_and_stops_the_rest(n_jobs, in_order):
    begun = []

    def work(index):
        begun.append(index)
        if index == 1:
            raise ZeroDivisionError(f"task {index}")
        time.sleep(0.02)

    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="task 1"):
        list(spread(work, [(index,) for index in range(50)], n_jobs, in_order=in_order))
    assert len(begun) < 20
    assert threading.active_count() == threads


@pytest.mark.parametrize("in_order", [True, False])
def test_a_caller_who_stops_early_leaves_nothing_running(in_order):
    ended, threads = [], threading.active_count()

    def work(index):
        time.sleep(0.02)
        ended.append(index)
        return index

    answers = spread(work, [(index,) for index in range(50)], 2, in_order=in_order)
    next(answers)
    answers.close()
    count = len(ended)
    assert threading.active_count() == threads
    time.sleep(0.06)
    assert len(ended) == count < 10


@dataclass
class Box:
    content: np.ndarray
    inner: "Box | None" = None


def blas_threads():
    """Of the library with most: some cannot have two. Others may have been loaded since."""
    libraries = one_blas_thread._libraries.select(user_api="blas")
    return max(library["num_threads"] for library in libraries.info())


def _look(array, box):
    arrays = array, box.content, box.inner.content
    return [x.flags.aligned for x in arrays], [x.sum() for x in arrays], blas_threads()


def test_elsewhere_arrays_are_aligned_and_blas_has_one_thread(network):
    x = np.arange(5.0)
    tasks = [(x, Box(x, Box(x)))] * 3
    with joblib.parallel_config(network, n_jobs=2):
        assert [found[:2] for found in spread(_look, tasks, None)] == [([True] * 3, [10.0] * 3)] * 3
    with threadpool_limits(2, user_api="blas"):
        assert _run_elsewhere(_look, *tasks[0])[2] == 1


def test_what_writes_to_the_callers_arrays_runs_in_threads(network):
    x = np.zeros(4)
    with joblib.parallel_config(network, n_jobs=2):
        list(spread(x.__setitem__, [(i, i) for i in range(4)], None, shared=True))
    assert_array_equal(x, range(4))


def test_blas_gets_its_threads_back_when_the_last_user_leaves():
    with threadpool_limits(2, user_api="blas"):
        one_blas_thread.__enter__()
        with one_blas_thread:
            assert blas_threads() == 1
        assert blas_threads() == 1
        one_blas_thread.__exit__()
        assert blas_threads() == 2


def test_one_task_runs_in_the_thread_of_the_caller():
    assert_array_equal(list(spread(_thread, [(0,)], 4)), threading.get_ident())
