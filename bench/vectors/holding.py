"""Hold a user's function to vectors that were written."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.files import naming
from ...twins.report import Finding, Report, verdict_of
from .cases import Array, Arrays

Function = Callable[[Arrays, dict[str, Any]], Mapping[str, Array]]


def hold(function: Function, folder: Path | str, subject: str, *, dtype: str = "float64") -> Report:
    """Compare a function with the vectors of a subject.

    Parameters
    ----------
    function : callable
        ``function(inputs, settings)`` gets the input arrays of a case by name, in float64, and the
        settings of the subject, and returns found arrays by name, any of those that are expected:
        ``out``, ``last_...``, ``grad_...``. Cases without ``weights`` among their inputs expect no
        gradients; those that are returned are not compared. It raises a NotImplementedError where
        a case is nothing that it computes.
    folder : path
        What `write_vectors` wrote.
    subject : str
    dtype : {"float64", "float32", "bfloat16"}, default="float64"
        The dtype that the function computes in; it casts the inputs itself.

    Returns
    -------
    Report
        A finding on each array that was compared: ``law`` is the case, ``where`` the array, and
        ``error`` the largest difference. Where the dtype has no tolerance, and for a case that the
        function does not compute, the verdict is "not judged".

    Raises
    ------
    ValueError
        If there is no such subject or dtype, no manifest, or an array has an unexpected name or
        shape; the message names the case.

    Examples
    --------
    >>> from twinsolve.bench.vectors import hold
    >>> print(hold(my_delta_rule, "vectors", "delta-rule", dtype="float32"))  # doctest: +SKIP
    """
    folder = Path(folder)
    with naming(folder / "manifest.json", "JSON"):
        entries = json.loads((folder / "manifest.json").read_text())["subjects"]
    if subject not in entries:
        raise ValueError(f"subject: must be among {', '.join(entries)}, got {subject!r}")
    if dtype not in ("float64", "float32", "bfloat16"):
        raise ValueError(f"dtype: must be float64, float32 or bfloat16, got {dtype!r}")
    entry, findings = entries[subject], []
    with np.load(folder / f"{subject}.npz") as arrays:
        for name, case in entry["cases"].items():
            inputs = {x: arrays[f"{name}/{x}"].astype(np.float64) for x in case["inputs"]}
            expected = {x: arrays[f"{name}/{x}"] for x in case["expected"]}
            try:
                outputs = function(inputs, dict(entry["settings"]))
            except NotImplementedError:
                findings.append(Finding(name, "not judged", why="not computed"))
                continue
            without_gradients = {f"grad_{x}" for x in inputs if "weights" not in inputs}
            for place, output in outputs.items():
                if place in without_gradients:
                    continue
                error = _measure(name, place, output, expected)
                findings.append(_judge(name, place, error, case["expected"][place][dtype]))
    return Report(subject, tuple(findings))


def _measure(case: str, name: str, output: Array, expected: Arrays) -> float:
    if name not in expected:
        allowed = ", ".join(expected)
        raise ValueError(f"{case}: arrays must be among {allowed}, got {name!r}")
    output, shape = np.asarray(output, dtype=np.float64), expected[name].shape
    if output.shape != shape:
        raise ValueError(f"{case}: {name} must have shape {shape}, got {output.shape}")
    return float(np.abs(output - expected[name]).max(initial=0))


def _judge(case: str, array: str, error: float, tolerance: float | None) -> Finding:
    if tolerance is None:
        return Finding(case, "not judged", error, None, "no tolerance in this dtype", array)
    return Finding(case, verdict_of(error <= tolerance), error, tolerance, where=array)
