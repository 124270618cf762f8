"""Compute the vectors, hold the reference to a second form and to differences, and write them."""

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import save
from threadpoolctl import threadpool_limits

from ... import __version__
from ...datasets.files import write_whole
from .cases import Array, Arrays, KernelCase, Subject
from .operators import operators
from .recurrences import recurrences

VERSION = 1
_EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
_LEAST_ROUNDING, _FACTOR = 4, 8
_LEAST_SIZE = 1e-2
_STEP, _SLOPE_TOLERANCE = 1e-6, 1e-6
_TOKENS = {"q", "k", "v", "p", "probe", "weights"}
_GATES = {"beta", "delta", "forget", "step", "momentum", "decay"}
_CONVENTIONS = [
    "Tokens are rows: q and k are (..., heads, tokens, d), v and out (..., heads, tokens, e).",
    "Row t of a recurrence contains token t: it forgets, predicts, writes, then reads.",
    "Nothing is scaled or normalised but by the settings and inputs that a subject lists.",
    "A mask is added to the logits; a row without a key is 0.",
    "grad_X is the gradient of sum(out * weights) in the input X.",
    "Inputs are numbers of bfloat16, but for parameters: a case is the same in every dtype. The "
    "files hold them in float32, and what is expected in float64.",
    "An array passes if max|found - expected| is at most its tolerance, which is absolute.",
    f"Of float64 it is the subject's share of the largest number (at least {_LEAST_SIZE}).",
    f"Of another dtype it is the largest of {_LEAST_ROUNDING} eps of that number, {_FACTOR} times "
    f"the deviation of a literal form that ran in float32, states too, and {_FACTOR} times what it "
    "changes if forget is off by one eps of float32, as its log makes it.",
    f"Of bfloat16 also {_FACTOR} times what it changes if tokens are off by half of its eps, as "
    "where products of them are rounded on the way; states are in float32.",
    "null: rounding in this dtype may be as large as half of the largest number.",
]


def write_vectors(
    folder: Path | str, *, progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None
) -> pd.DataFrame:
    """Write reference vectors of all recurrences and operators, and the manifest that lists them.

    Each subject has ``NAME.npz`` and ``NAME.safetensors`` with the same arrays, ``CASE/ARRAY``:
    inputs, and the expected ``out``, ``last_...`` states and ``grad_...`` gradients in float64.
    ``manifest.json`` says what each is, with shapes and tolerances. Two runs on one machine write
    the same bytes, whatever the number of threads: one thread computes.

    Before a case is written its reference is held to a second form in torch, to a hundredth of the
    tolerance, and the gradients of that form to differences of the reference, to 1e-6.

    Parameters
    ----------
    folder : path
    progress : callable, optional
        Wraps the subjects and their number, as `twinsolve.bench.terminal.progress` does.

    Returns
    -------
    DataFrame
        A row for each expected array: subject, equation, case, array, size, deviation of the second
        form in float64, tolerances.

    Raises
    ------
    ArithmeticError
        If the two forms, or gradients and differences, do not agree.

    Examples
    --------
    >>> from twinsolve.bench.vectors import write_vectors
    >>> table = write_vectors("vectors")  # doctest: +SKIP
    """
    subjects = list(chain(recurrences(), operators()))
    listed, rows = {}, []
    with _one_thread():
        for subject in subjects if progress is None else progress(subjects, len(subjects)):
            listed[subject.name], found = _write_subject(subject, Path(folder))
            rows += found
    manifest = {
        "version": VERSION, "twinsolve": __version__, "conventions": _CONVENTIONS,
        "subjects": listed,
    }  # fmt: skip
    write_whole(Path(folder) / "manifest.json", json.dumps(manifest) + "\n")
    return pd.DataFrame(rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sum in one order, whatever the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _write_subject(subject: Subject, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Write the arrays of a subject; return its entry in the manifest and rows of the table."""
    arrays: dict[str, Any] = {}
    cases, left_out, rows = {}, {}, []
    for case in subject.cases:
        try:
            expected, measured = _evaluate(case, subject.tolerance)
        except (ValueError, ZeroDivisionError) as error:  # what the solver refuses
            left_out[case.name] = f"{type(error).__name__}: {error}"
            continue
        stored = {name: _narrow(x) for name, x in case.inputs.items()} | expected
        arrays |= {f"{case.name}/{name}": x for name, x in stored.items()}
        tolerances = {name: found["tolerance"] for name, found in measured.items()}
        cases[case.name] = {
            "catches": case.catches,
            "inputs": {name: list(x.shape) for name, x in case.inputs.items()},
            "expected": {
                name: {"shape": list(x.shape)} | tolerances[name] for name, x in expected.items()
            },
        }
        about = {"subject": subject.name, "equation": subject.equation, "case": case.name}
        rows += [
            about | {"array": name, "size": found["size"], "deviation": found["deviation"]}
            | found["tolerance"]
            for name, found in measured.items()
        ]  # fmt: skip
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    write_whole(folder / f"{subject.name}.npz", file.getvalue())
    contiguous = {name: np.array(x, order="C") for name, x in arrays.items()}
    write_whole(folder / f"{subject.name}.safetensors", save(contiguous))
    entry = {"equation": subject.equation, "words": subject.words, "settings": subject.settings}
    return entry | {"cases": cases, "left_out": left_out}, rows


def _narrow(x: Array) -> Array:
    """Return `x` in float32 where that loses nothing."""
    narrow = x.astype(np.float32)
    return narrow if np.array_equal(narrow, x) else x


def _evaluate(case: KernelCase, tolerance: float) -> tuple[Arrays, dict[str, dict[str, Any]]]:
    """Return the expected arrays, and the size, deviation and tolerances of each."""
    with np.errstate(all="ignore"):
        expected = case.reference(case.inputs)
    if not all(np.isfinite(x).all() for x in expected.values()):
        raise ValueError("the reference is not finite")
    exact, single = (_run(case, dtype) for dtype in (torch.float64, torch.float32))
    moved = _run(_round_gates(case), torch.float64) if "forget" in case.inputs else exact
    rounded = _run(_round_tokens(case), torch.float64)
    expected |= {name: exact[name] for name in sorted(exact.keys() - expected.keys())}
    measured = {}
    for name, x in expected.items():
        size = max(float(np.abs(x).max(initial=0)), _LEAST_SIZE)
        deviation, in_single, by_gates, by_tokens = (
            float(np.abs(y[name] - x).max(initial=0)) for y in (exact, single, moved, rounded)
        )
        if not deviation <= tolerance * size / 100:
            raise ArithmeticError(f"{case.name}, {name}: two forms differ by {deviation:.1e}")
        least = _FACTOR * max(in_single, by_gates)
        units = _LEAST_ROUNDING * size
        allowed = {"float64": tolerance * size}
        allowed |= {dtype: max(eps * units, least) for dtype, eps in _EPS.items()}
        allowed["bfloat16"] = max(allowed["bfloat16"], _FACTOR * by_tokens)
        found = {"size": size, "deviation": deviation}
        measured[name] = found | {"tolerance": _round_up(allowed, size / 2)}
    _hold_to_differences(case, expected)
    return expected, measured


def _round_gates(case: KernelCase) -> KernelCase:
    gate = case.inputs["forget"] * (1 - _EPS["float32"])
    return replace(case, inputs=case.inputs | {"forget": gate})


def _round_tokens(case: KernelCase) -> KernelCase:
    """The case with tokens that are off by up to half of the eps of bfloat16."""
    rng = np.random.default_rng(0)
    moved = {
        name: x * (1 + _EPS["bfloat16"] / 2 * rng.uniform(-1, 1, x.shape))
        for name, x in case.inputs.items()
        if name in _TOKENS
    }
    return replace(case, inputs=case.inputs | moved)


def _round_up(allowed: dict[str, float], most: float) -> dict[str, float | None]:
    return {
        dtype: float(f"{1.005 * x:.2e}") if math.isfinite(x) and x < most else None
        for dtype, x in allowed.items()
    }


def _run(case: KernelCase, dtype: torch.dtype) -> Arrays:
    """Run the form in torch; return its outputs and the gradients of the weighted sum."""
    tensors = {name: torch.tensor(x, dtype=dtype) for name, x in case.inputs.items()}
    leaves = [tensors[name].requires_grad_() for name in case.by]
    found = case.form(tensors)
    if leaves:
        loss = (found["out"] * tensors["weights"]).sum()
        slopes = torch.autograd.grad(loss, leaves, materialize_grads=True)
        found |= {f"grad_{name}": x for name, x in zip(case.by, slopes, strict=True)}
    return {name: x.detach().double().numpy() for name, x in found.items()}


def _hold_to_differences(case: KernelCase, expected: Arrays) -> None:
    """Compare each gradient, along a direction, with differences of the reference."""
    for name in case.by:
        if not (error := _slope_error(case, name, expected)) <= _SLOPE_TOLERANCE:
            raise ArithmeticError(
                f"{case.name}, grad_{name}: differs from finite differences by {error:.1e} of "
                "its size"
            )


def _slope_error(case: KernelCase, name: str, expected: Arrays) -> float:
    """Difference of a slope from that of the reference, as a share of the size of its terms.

    Three points on one side: gates leave neither [0, 1] nor the sign that the solver asks for.
    """
    x, slope = case.inputs[name], expected[f"grad_{name}"]
    along = np.random.default_rng([*name.encode()]).standard_normal(x.shape)
    if name in _GATES:
        along = np.abs(along) * np.where(x > 0.5, -1, 1)
    moved = (case.inputs | {name: x + i * _STEP * along} for i in (1, 2))
    outputs = (expected["out"], *(case.reference(y)["out"] for y in moved))
    sums = [float((out * case.inputs["weights"]).sum()) for out in outputs]
    found = (4 * sums[1] - 3 * sums[0] - sums[2]) / (2 * _STEP)
    given = float((slope * along).sum())
    return abs(found - given) / max(float(np.abs(slope * along).sum()) + abs(sums[0]), 1)
