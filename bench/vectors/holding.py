"""Hold a user's function to vectors that were written."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...datasets.files import naming
from .cases import Array, Arrays

Function = Callable[[Arrays, dict[str, Any]], Mapping[str, Array]]


def hold(
    function: Function, folder: Path | str, subject: str, *, dtype: str = "float64"
) -> pd.DataFrame:
    """Compare a function with the vectors of a subject.

    Parameters
    ----------
    function : callable
        ``function(inputs, settings)`` gets the input arrays of a case by name, in float64, and the
        settings of the subject, and returns found arrays by name, any of those that are expected:
        ``out``, ``last_...``, ``grad_...``. It raises a NotImplementedError where a case is nothing
        that it computes.
    folder : path
        What `write_vectors` wrote.
    subject : str
    dtype : {"float64", "float32", "bfloat16"}, default="float64"
        The dtype that the function computes in; it casts the inputs itself.

    Returns
    -------
    DataFrame
        A row for each array that was returned: case, array, error (the largest difference),
        tolerance, passed. Where the dtype has no tolerance, and for a case that the function does
        not compute, passed is None.

    Raises
    ------
    ValueError
        If there is no such subject or dtype, no manifest, or an array has an unexpected name or
        shape.

    Examples
    --------
    >>> from twinsolve.bench.vectors import hold
    >>> hold(my_delta_rule, "vectors", "delta-rule", dtype="float32")  # doctest: +SKIP
    """
    folder = Path(folder)
    with naming(folder / "manifest.json", "JSON"):
        entries = json.loads((folder / "manifest.json").read_text())["subjects"]
    if subject not in entries:
        raise ValueError(f"subject: must be among {', '.join(entries)}, got {subject!r}")
    if dtype not in ("float64", "float32", "bfloat16"):
        raise ValueError(f"dtype: must be float64, float32 or bfloat16, got {dtype!r}")
    entry, rows = entries[subject], []
    with np.load(folder / f"{subject}.npz") as arrays:
        for name, case in entry["cases"].items():
            inputs = {x: arrays[f"{name}/{x}"].astype(np.float64) for x in case["inputs"]}
            expected = {x: arrays[f"{name}/{x}"] for x in case["expected"]}
            try:
                found = function(inputs, dict(entry["settings"]))
            except NotImplementedError:
                rows.append({"case": name, "passed": None})
                continue
            rows += [
                {"case": name} | _judge(x, y, expected, case["expected"], dtype)
                for x, y in found.items()
            ]
    return pd.DataFrame(rows, columns=["case", "array", "error", "tolerance", "passed"])


def _judge(
    name: str, found: Array, expected: Arrays, listed: dict[str, Any], dtype: str
) -> dict[str, Any]:
    if name not in expected:
        raise ValueError(f"array: must be among {', '.join(expected)}, got {name!r}")
    found = np.asarray(found, dtype=np.float64)
    if found.shape != expected[name].shape:
        raise ValueError(f"{name}: must have shape {expected[name].shape}, got {found.shape}")
    error = float(np.abs(found - expected[name]).max(initial=0))
    tolerance = listed[name][dtype]
    passed = None if tolerance is None else bool(error <= tolerance)
    return {"array": name, "error": error, "tolerance": tolerance, "passed": passed}
