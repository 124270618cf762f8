"""`twinsolve speed attention`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ...unrolled import make_operator, operator_names
from .attention_cost import profile_run
from .attention_race import REFERENCE, Attending, Setting, race
from .cases import chosen, run_cases
from .contest import threads
from .race import Progress

_TIMES = ("ms", "ms_lowest", "ms_highest", "ratio", "ratio_lowest", "ratio_highest")
COLUMNS = [
    "case", "operator", "form", "dtype", "device", "n_jobs",
    *(f"{mode}_{time}" for mode in ("inference", "training") for time in _TIMES),
    "memory_mib", "memory_exponent", "gflop_inference", "gflop_training", "parameters", "kernel",
    "note",
]  # fmt: skip
FORMS = ("fused", "explicit")
DTYPES = ("float32", "float64", "bfloat16")
DEVICES = ("cpu", "cuda")
_MEMORY_TOKENS = (256, 4096)


@dataclass(frozen=True)
class Case:
    """Tokens of one shape (batch, heads, tokens, head_dim); few enough for `explicit` forms?"""

    name: str
    shape: tuple[int, int, int, int]
    explicit: bool = True


CASES = {
    case.name: case
    for case in (
        Case("images-197", (8, 3, 197, 64)),
        Case("tokens-1024", (1, 4, 1024, 64)),
        Case("tokens-4096", (1, 4, 4096, 64), explicit=False),
        Case("memory", (1, 2, _MEMORY_TOKENS[1], 64), explicit=False),
    )
}


def time_attention(
    *,
    cases: Iterable[str] | None = None,
    operators: Iterable[str] | None = None,
    rounds: int = 5,
    n_jobs: int = 1,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time every operator beside ``scaled_dot_product_attention`` on the same tokens.

    In each round an operator and the reference run in turns: forward alone without gradients
    (inference), and forward with backward (training). So does the operator's explicit form, its
    N x N matrix times the values, where it is linear in them and there are at most 1024 tokens; and
    in inference an operator whose terms of the positions are stored beforehand, where it has them.
    Operators with a grid are given one of as many rows as columns, or nearly so, and class tokens
    for what is left: 14 x 14 and one of 197.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``images-197``, ``tokens-1024``, ``tokens-4096``, of shapes (8, 3, 197, 64),
        (1, 4, 1024, 64) and (1, 4, 4096, 64), and ``memory``, which measures how peak memory grows
        from 256 to 4096 tokens; all by default.
    operators : iterable of str, optional
        Names among `twinsolve.unrolled.operator_names`; all by default.
    rounds : int, default=5
    n_jobs : int, default=1
        Threads.
    seed : int, default=0
    dtype : {"float32", "float64", "bfloat16"}, default="float32"
    device : {"cpu", "cuda"}, default="cpu"
    directory : Path, optional
        Finished cases are kept here and read again while settings and source are the same.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration, as a progress bar does.

    Returns
    -------
    DataFrame
        A row for each case, operator and form. ``inference_*`` and ``training_*``: milliseconds and
        ``ratio`` to the reference in the same round, medians over the rounds, with the lowest and
        highest. ``memory_mib``: peak of forward and backward, gradients included, inputs not;
        ``memory_exponent`` its growth, ``log(peak ratio) / log(token ratio)``. ``gflop_*``: of
        matrix products and fused attention. ``kernel``: implementations of the fused attention that
        the forward pass reached. ``note`` says why a row has no numbers.

    Raises
    ------
    ValueError
        If a name is unknown or a number is out of range.

    Examples
    --------
    >>> from twinsolve.bench import time_attention
    >>> table = time_attention(cases=["tokens-1024"], operators=["twicing"])  # doctest: +SKIP
    >>> table[["operator", "form", "training_ratio", "memory_mib"]]  # doctest: +SKIP
    """
    for name, value, known in (("dtype", dtype, DTYPES), ("device", device, DEVICES)):
        if value not in known:
            raise ValueError(f"{name}: must be one of {', '.join(known)}, got {value!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: no CUDA device is available")
    names = chosen(operators, {name: name for name in operator_names()}, "operators")

    def run(case: Case) -> pd.DataFrame:
        jobs = list(_jobs(names, case))
        setting = Setting(case.shape, dtype, device, seed)
        with threads(n_jobs):
            rows = [
                _row(case, name, form, setting, rounds)
                for name, form in (progress(jobs, len(jobs)) if progress else jobs)
            ]
        about = {"case": case.name, "dtype": dtype, "device": device, "n_jobs": n_jobs}
        return pd.DataFrame([about | row for row in rows]).reindex(columns=COLUMNS)

    return run_cases(
        "attention",
        chosen(cases, CASES, "cases"),
        run,
        peers={"operators": ", ".join(names), "dtype": dtype, "device": device},
        rounds=rounds,
        n_jobs=n_jobs,
        seed=seed,
        directory=directory,
        columns=COLUMNS,
    )


def _jobs(names: list[str], case: Case) -> Iterable[tuple[str, str]]:
    """The reference, then every operator in its forms."""
    yield REFERENCE, "fused"
    for name in names:
        operator = make_operator(name, num_heads=4, head_dim=64)
        yield name, "fused"
        if hasattr(operator, "precompute") and case.name != "memory":
            yield name, "stored"
        if operator.linear_in_values and case.explicit:
            yield name, "explicit"


def _row(case: Case, name: str, form: str, setting: Setting, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"operator": name, "form": form, "note": ""}
    try:
        if case.name == "memory":
            return row | _memory_growth(name, form, setting)
        return row | race(name, form, setting, rounds)
    except (NotImplementedError, RuntimeError) as error:  # a dtype or device without a kernel
        return row | {"note": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def _memory_growth(name: str, form: str, setting: Setting) -> dict[str, float]:
    batch, heads, _, width = setting.shape
    peaks = []
    for tokens in _MEMORY_TOKENS:
        shape = (batch, heads, tokens, width)
        way = Attending(name, form, Setting(shape, setting.dtype, setting.device))
        way.infer()
        peaks.append(profile_run(way.train, setting.device).peak_memory)
    exponent = math.log(peaks[1] / peaks[0]) / math.log(_MEMORY_TOKENS[1] / _MEMORY_TOKENS[0])
    return {"memory_mib": peaks[1] / 2**20, "memory_exponent": exponent}
