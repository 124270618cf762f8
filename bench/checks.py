"""`twinsolve check`: every twin on clustering and on vision data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from ..unrolled.twins import Twin, catalogue
from .samples import Sample, check_samples

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_TASK_TOLERANCE = 0.01
_COLUMNS = [
    "twin", "family", "relation", "equation", "data", "task", "dtype", "deviation", "tolerance",
    "task_number_solver", "task_number_layer", "passed",
]  # fmt: skip


def check_twins(
    *, seed: int = 0, progress: Callable[[Iterable, int], Iterable] | None = None
) -> pd.DataFrame:
    """Check every registered twin on every data set of both tasks, in float64 and float32.

    Parameters
    ----------
    seed : int, default=0
        Seeds the choice of data, the noise and the random projections.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration, as a progress bar does.

    Returns
    -------
    DataFrame
        A row for each twin, data set and dtype: ``twin, family, relation, equation, data, task,
        dtype, deviation, tolerance, task_number_solver, task_number_layer, passed``. The task
        number is the adjusted Rand index for clustering and the PSNR in dB for vision. A row passes
        if the deviation is within the tolerance and, in float64, the task numbers agree to 0.01. A
        layer or solver that raises fails its row, and the exception stands in a further column
        ``error``.

    Raises
    ------
    ValueError
        If `seed` is negative.

    Examples
    --------
    >>> from twinsolve.bench import check_twins
    >>> table = check_twins()  # doctest: +SKIP
    >>> bool(table.passed.all())  # doctest: +SKIP
    True
    """
    if seed < 0:
        raise ValueError(f"seed: must be >= 0, got {seed}")
    jobs = list(_jobs(catalogue(), check_samples(seed)))
    with _single_thread():
        rows = [_row(*job) for job in (progress(jobs, len(jobs)) if progress else jobs)]
    table = pd.DataFrame(rows)
    return table.reindex(columns=_COLUMNS + [c for c in table if c not in _COLUMNS])


@contextmanager
def _single_thread() -> Iterator[None]:
    """On problems of a few hundred tokens, threads cost far more than they give."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(n_threads)


def _jobs(twins: list[Twin], samples: list[Sample]) -> Iterator[tuple[Twin, Sample, str]]:
    for twin in twins:
        for sample in samples:
            if sample.inputs(twin) is not None:
                for dtype in _DTYPES:
                    yield twin, sample, dtype


def _row(twin: Twin, sample: Sample, dtype: str) -> dict[str, object]:
    row: dict[str, object] = {
        "twin": twin.name,
        "family": twin.family,
        "relation": twin.relation.name,
        "equation": twin.equation,
        "data": sample.name,
        "task": sample.task,
        "dtype": dtype,
    }
    try:
        return row | _measure(twin, sample, _DTYPES[dtype])
    except Exception as error:  # a broken twin must not hide the verdict on the others
        return row | {"passed": False, "error": f"{type(error).__name__}: {error}"}


def _measure(twin: Twin, sample: Sample, dtype: torch.dtype) -> dict[str, object]:
    exact = sample.inputs(twin)
    assert exact is not None
    twin = _remembering(twin)
    layer = twin.build(*(x.numpy() for x in exact)).to(dtype).eval()
    inputs = tuple(x.to(dtype) for x in exact)
    deviation, tolerance = twin.relation.measure(twin, layer, inputs)
    outputs = twin.relation.task_outputs(twin, layer, inputs)
    solver, learned = (
        sample.task_number(twin, output, outputs.tokens)
        for output in (outputs.solver, outputs.layer)
    )
    agree = dtype != torch.float64 or abs(solver - learned) <= _TASK_TOLERANCE
    return {
        "deviation": deviation,
        "tolerance": tolerance,
        "task_number_solver": solver,
        "task_number_layer": learned,
        "passed": bool(deviation <= tolerance and agree),
    }


def _remembering(twin: Twin) -> Twin:
    """The twin, whose layer and solver compute nothing twice on the same inputs."""
    problem = None if twin.problem is None else _remember(twin.problem)
    return replace(twin, apply=_remember(twin.apply), solve=_remember(twin.solve), problem=problem)


def _remember(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results by inputs and number of iterations, all that changes within a row."""
    known: dict[tuple, Any] = {}

    def remembered(layer: Any, *inputs: Any, **options: Any) -> Any:
        contents = (np.asarray(x).tobytes() for x in inputs)
        key = (getattr(layer, "n_iter", None), options.get("head"), *contents)
        if key not in known:
            known[key] = function(layer, *inputs, **options)
        return known[key]

    return remembered
