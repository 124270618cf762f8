"""Run every twin on clustering and vision data, and test the laws that it declares."""

import copy
import multiprocessing
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from ...twins import HeadCall, Measurement, Twin, catalogue, trials_of
from ...twins.laws import Trial
from ...twins.report import verdict_of
from ...unrolled.generators import seeded
from ..names import close_names
from .samples import Sample, check_samples

DRAWN = "drawn"  # the data of laws: random inputs
_AS_BUILT, _FOR_TASK = "as built", "for its task"
_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_TASK_TOLERANCE = 0.01
_COMPILES_MOST = "self-expression-solved"
_AHEAD = 3  # the laws of a twin start this many twins before its data
_COLUMNS = [
    "twin", "family", "relation", "evidence", "equation", "data", "task", "case", "dtype",
    "deviation", "tolerance", "tightness", "task_number_solver", "task_number_layer",
    "task_number_nothing", "verdict", "why",
]  # fmt: skip


@dataclass(frozen=True)
class _Job:
    """A twin to run on a data set, as built or for its task; without a sample, its laws."""

    twin: Twin
    sample: Sample | None
    dtypes: tuple[str, ...]
    seed: int
    case: str = _AS_BUILT

    @property
    def data(self) -> str:
        return DRAWN if self.sample is None else self.sample.name

    def rows(self) -> list[dict[str, Any]]:
        """Run the job; its random numbers do not depend on what ran before."""
        with seeded(self.seed):
            return list(self._test_laws() if self.sample is None else self._run_on(self.sample))

    def _run_on(self, sample: Sample) -> Iterator[dict[str, Any]]:
        """Both dtypes get inputs rounded to float32, so that one solution serves both."""
        run = _Run(_cache_calls(self.twin), sample)
        for dtype in self.dtypes:
            measure = partial(run.measure, dtype)
            yield self._row(measure, task=sample.task, case=self.case, dtype=dtype)

    def _test_laws(self) -> Iterator[dict[str, Any]]:
        for trial in trials_of(self.twin, self.seed):
            yield self._row(partial(_measure_trial, trial), case=trial.name, dtype=trial.dtype)

    def _row(self, measure: Callable[[], dict[str, Any]], **labels: Any) -> dict[str, Any]:
        twin = self.twin
        row = dict.fromkeys(_COLUMNS) | {
            "twin": twin.name,
            "family": twin.family,
            "relation": twin.relation.name,
            "evidence": twin.evidence,
            "equation": twin.equation,
            "data": self.data,
            **labels,
        }
        try:
            return row | measure()
        except Exception as error:  # a broken twin must not hide the verdict on the others
            return row | {"verdict": "broken", "why": f"{type(error).__name__}: {error}"}


def check_twins(
    *,
    seed: int = 0,
    twins: Collection[str] = (),
    families: Collection[str] = (),
    data: Collection[str] = (),
    quick: bool = False,
    n_jobs: int | None = None,
    progress: Callable[[pd.DataFrame], None] | None = None,
) -> pd.DataFrame:
    """Check every registered twin on data of both tasks, and test the laws that it declares.

    Parameters
    ----------
    seed : int, default=0
        Seed of the choice of data, the noise and the random projections.
    twins, families, data : collection of str, optional
        Names of the twins, families and data sets to check; "drawn" are the small random inputs
        of the laws. All by default.
    quick : bool, default=False
        Test the laws, and use only the first data set of each task, in float64.
    n_jobs : int, optional
        Number of processes, as in joblib; None is 1 unless a `joblib.parallel_config` says
        otherwise. The rows do not depend on it. Without fork it is 1.
    progress : callable, optional
        ``progress(rows)`` is called with all rows of a twin as soon as the twin is done.

    Returns
    -------
    DataFrame
        A row for each twin, data set, case and dtype: ``twin, family, relation, evidence, equation,
        data, task, case, dtype, deviation, tolerance, tightness, task_number_solver,
        task_number_layer, task_number_nothing, verdict, why``. The tightness is the largest
        ``lhs / rhs`` of a `Bound`. On data, the case is "as built" or "for its task". The task
        number is the adjusted Rand index for clustering and the PSNR in dB for vision;
        ``task_number_nothing`` is that of k-means or of the noisy image. Twins that serve no task
        have none. Other cases are a law and its detail; see `twinsolve.twins.laws`. The verdict is
        "holds" if the deviation is within the tolerance and, in float64, the task numbers agree to
        0.01 or are both missing: a graph with more parts than classes has no clusters to compare.
        Else it is "broken". If a layer or solver raises, ``why`` has the exception.

    Raises
    ------
    ValueError
        If `seed` is negative, a name is unknown, or no twin fits all the names.

    Examples
    --------
    >>> from twinsolve.bench import check_twins
    >>> table = check_twins(families=["conditioning"], data=["digits"])
    >>> set(table.verdict)
    {'holds'}
    """
    if seed < 0:
        raise ValueError(f"seed: must be >= 0, got {seed}")
    samples = check_samples(seed)
    known = catalogue()
    catalogued = "twinsolve.twins.catalogue() lists all"
    _check_names("twins", twins, [twin.name for twin in known], catalogued)
    for name, given, allowed in (
        ("families", families, sorted({twin.family for twin in known})),
        ("data", data, [*(sample.name for sample in samples), DRAWN]),
    ):
        _check_names(name, given, allowed, f"there are {', '.join(allowed)}")
    chosen = [
        twin
        for twin in known
        if (not twins or twin.name in twins) and (not families or twin.family in families)
    ]
    jobs = [job for job in _jobs(chosen, samples, seed, quick) if not data or job.data in data]
    if not jobs:
        limits = {"twins": twins, "families": families, "data": data, "quick": quick}
        held = ", ".join(f"{name} {value}" for name, value in limits.items() if value)
        raise ValueError(f"there is nothing to check with {held}: no twin fits all of these")
    waiting = {twin.name: sum(job.twin.name == twin.name for job in jobs) for twin in chosen}
    rows: dict[int, list[dict[str, Any]]] = {}
    for index, of_job in _run_jobs(jobs, joblib.effective_n_jobs(n_jobs)):
        rows[index] = of_job
        name = jobs[index].twin.name
        waiting[name] -= 1
        if progress is not None and waiting[name] == 0:
            own = [row for i, job in enumerate(jobs) if job.twin.name == name for row in rows[i]]
            if own:  # a bound has no laws
                progress(_table(own))
    return _table([row for index in range(len(jobs)) for row in rows[index]])


def _check_names(name: str, given: Collection[str], known: Collection[str], listed: str) -> None:
    for unknown in sorted(set(given) - set(known)):
        raise ValueError(f"{name}: there is no {unknown!r}{close_names(unknown, known)}; {listed}")


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=_COLUMNS)


def _jobs(twins: list[Twin], samples: list[Sample], seed: int, quick: bool) -> Iterator[_Job]:
    """Jobs of the twins: the first data set of each task in both dtypes, others in float64."""
    first = {sample.task: sample.name for sample in reversed(samples)}
    for twin in twins:
        yield _Job(twin, None, (), seed)
        for sample in samples:
            leads = sample.name == first[sample.task]
            if sample.inputs(twin) is not None and (leads or not quick):
                dtypes = tuple(_DTYPES) if leads and not quick else ("float64",)
                yield _Job(twin, sample, dtypes, seed)
            if twin.task and sample.inputs(twin.for_task()) is not None and (leads or not quick):
                yield _Job(twin.for_task(), sample, ("float64",), seed, _FOR_TASK)


def _order(jobs: list[_Job]) -> list[int]:
    """Spread jobs that compile the same kernels, so that few kernels are compiled twice."""
    names = list(dict.fromkeys([_COMPILES_MOST, *(job.twin.name for job in jobs)]))
    place = {name: index for index, name in enumerate(names)}

    def turn(index: int) -> int:
        job = jobs[index]
        return place[job.twin.name] - (_AHEAD if job.sample is None else 0)

    return sorted(range(len(jobs)), key=turn)


def _run_jobs(jobs: list[_Job], n_jobs: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the index and the rows of each job when it is done."""
    with _hold_to_one_thread():
        if n_jobs == 1 or "fork" not in multiprocessing.get_all_start_methods():
            yield from ((index, job.rows()) for index, job in enumerate(jobs))
        else:
            yield from _run_forked(jobs, n_jobs)


def _run_forked(jobs: list[_Job], n_jobs: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    global _shared
    _shared = jobs  # forks inherit it: twins hold functions that cannot be pickled
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(n_jobs, mp_context=context) as pool:
        futures: dict[Future[Any], int] = {pool.submit(_run_shared, i): i for i in _order(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_shared: list[_Job] = []


def _run_shared(index: int) -> list[dict[str, Any]]:
    return _shared[index].rows()


@contextmanager
def _hold_to_one_thread() -> Iterator[None]:
    """Use one thread: more of them slow down problems of a few hundred tokens."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(n_threads)


def _numbers(measured: Measurement) -> dict[str, Any]:
    return {
        "deviation": measured.deviation,
        "tolerance": measured.tolerance,
        "tightness": measured.tightness,
        "verdict": verdict_of(measured.holds),
    }


def _measure_trial(trial: Trial) -> dict[str, Any]:
    return _numbers(trial.measure())


class _Run:
    """A twin on a data set, with one layer and one solution for all dtypes."""

    def __init__(self, twin: Twin, sample: Sample) -> None:
        self.twin, self.sample = twin, sample

    @cached_property
    def built(self) -> tuple[tuple[Tensor, ...], nn.Module]:
        """Inputs in float64, rounded to float32, and the layer built for them."""
        given = self.sample.inputs(self.twin)
        assert given is not None
        inputs = tuple(x.float().double() for x in given)
        return inputs, self.twin.build(*(x.numpy() for x in inputs)).eval()

    def measure(self, dtype: str) -> dict[str, Any]:
        twin, (exact, built) = self.twin, self.built
        layer = copy.deepcopy(built).to(_DTYPES[dtype])
        inputs = tuple(x.to(_DTYPES[dtype]) for x in exact)
        measured = twin.relation.measure(twin, layer, inputs)
        row = _numbers(measured)
        if dtype != "float64" or twin.task:
            return row
        outputs = twin.relation.task_outputs(twin, layer, inputs)
        solver, learned = (
            self.sample.task_number(twin, output, outputs.tokens)
            for output in (outputs.solver, outputs.layer)
        )
        agree = np.isclose(solver, learned, rtol=0, atol=_TASK_TOLERANCE, equal_nan=True)
        return row | {
            "task_number_solver": solver,
            "task_number_layer": learned,
            "task_number_nothing": self.sample.number_of_nothing(twin, outputs.tokens),
            "verdict": verdict_of(measured.holds and bool(agree)),
        }


def _cache_calls(twin: Twin) -> Twin:
    """Copy of the twin whose layer and solver compute nothing twice on the same inputs."""
    relation, inputs = twin.relation, twin.inputs
    if relation.problem is not None:
        relation = replace(relation, problem=_cache_results(relation.problem))
    inputs = replace(inputs, apply=_cache_results(inputs.apply))
    return replace(twin, inputs=inputs, solve=_cache_results(twin.solve), relation=relation)


def _cache_results(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep results by inputs and number of iterations: nothing else changes within a job.

    The solution for the float64 layer also serves the float32 layer, whose parameters are rounded.
    """
    known: dict[tuple[Any, ...], Any] = {}

    def remembered(layer: Any, *inputs: Any, **options: Any) -> Any:
        head, arrays = None, inputs
        if isinstance(inputs[0], HeadCall):
            if inputs[0].chosen is not None:  # how this layer broke ties
                return function(layer, *inputs)
            head, arrays = inputs[0].head, inputs[0].tokens
        contents = (np.asarray(x).tobytes() for x in arrays)
        key = (getattr(layer, "n_iter", None), head, *contents)
        if key not in known:
            known[key] = function(layer, *inputs, **options)
        return known[key]

    return remembered
