"""Each fault planted in a copy of the package, and the check or the tests run there."""

import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from ...unrolled import twins
from ..check.checks import check_twins as _imported  # noqa: F401  with what it imports from elsewhere
from .catalogue import Fault

PACKAGE = Path(__file__).parents[2]
_PARTS = ("__init__.py", "bench", "datasets", "solvers", "unrolled")
_ROW = ("twin", "data", "case", "dtype")
_PASSES: tuple[dict[str, Any], ...] = ({"data": ["drawn"]}, {"quick": True})
_LONGEST = 600  # seconds that a process may take for a fault


def check_faults(faults: list[Fault], n_jobs: int = 1) -> Iterator[dict[str, Any]]:
    """What the check says of a package with each of the faults.

    A fault is caught if a row of the check fails that passes without it.

    Yields
    ------
    dict
        ``kind, fault, file, caught, n_failed`` and why it may survive; of the row that exceeds its
        tolerance most ``twin, data, case, dtype, deviation, tolerance, error``.
    """
    names = sorted({twin for fault in faults for twin in fault.twins})
    with multiprocessing.get_context("fork").Pool(n_jobs, maxtasksperchild=1) as pool:
        without = [pool.apply_async(_failures_of, (twin,)) for twin in names]
        jobs = [pool.apply_async(_failures, (fault,)) for fault in faults]
        known = {_place(row) for job in without for row in job.get()}
        for fault, job in zip(faults, jobs, strict=True):
            try:
                failed = [row for row in job.get(_LONGEST) if _place(row) not in known]
            except multiprocessing.TimeoutError:
                failed = [dict.fromkeys(_ROW) | {"error": f"no end within {_LONGEST} s"}]
            yield {
                "kind": fault.kind,
                "fault": fault.name,
                "file": fault.file,
                "caught": bool(failed),
                "survives": fault.survives,
                "n_failed": len(failed),
            } | (max(failed, key=_excess) if failed else {})


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _ROW)


def _excess(row: dict[str, Any]) -> float:
    deviation, tolerance = row.get("deviation"), row.get("tolerance")
    return 0.0 if pd.isna(deviation) or not tolerance else deviation / tolerance


def _failures_of(twin: str) -> list[dict[str, Any]]:
    """Failed rows of the check without a fault."""
    with TemporaryDirectory() as folder:
        check_twins = _check_of(copy_of_package(Path(folder)))
        return [row for settings in _PASSES for row in _failed(check_twins, (twin,), settings)]


def _failures(fault: Fault) -> list[dict[str, Any]]:
    """Failed rows of the check: of the laws, or where these say nothing of the data."""
    with TemporaryDirectory() as folder:
        package = copy_of_package(Path(folder))
        fault.plant(package)
        check_twins = _check_of(package)
        found = (_failed(check_twins, fault.twins, settings) for settings in _PASSES)
        return next((failed for failed in found if failed), [])


def _failed(
    check_twins: Any, twins: tuple[str, ...], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    table = check_twins(twins=twins, n_jobs=1, **settings)
    table = table.reindex(columns=[*_ROW, "deviation", "tolerance", "error", "passed"])
    return table[~table.passed.astype(bool)].drop(columns="passed").to_dict("records")


def copy_of_package(folder: Path) -> Path:
    """The package below a folder, with what Python and numba have compiled."""
    package = folder / "twinsolve"
    package.mkdir()
    for part in _PARTS:
        copy: Any = shutil.copytree if (PACKAGE / part).is_dir() else shutil.copy2
        copy(PACKAGE / part, package / part)
    return package


def _check_of(package: Path) -> Any:
    """`check_twins` of a copy of the package, in a process of its own."""
    for module in [m for m in sys.modules if m.partition(".")[0] == package.name]:
        del sys.modules[module]
    sys.path.insert(0, str(package.parent))
    warnings.simplefilter("ignore")  # faults divide by zero and miss their solutions
    checks = importlib.import_module(f"{package.name}.bench.check.checks")
    assert Path(str(checks.__file__)).is_relative_to(package)
    return checks.check_twins


def is_caught_by_tests(fault: Fault) -> bool:
    """Whether a test of the layers that the fault changes fails with it.

    They are those below ``tests/unrolled`` whose names, or whose files' names, hold that of the
    file or of a layer; tests of the twins, which run the check themselves, are left out.
    """
    layers = {twin.layer.__name__ for twin in twins.catalogue() if twin.name in fault.twins}
    names = sorted({Path(fault.file).stem, *layers, *(layer.lower() for layer in layers)})
    with TemporaryDirectory() as folder:
        package = copy_of_package(Path(folder))
        shutil.copytree(PACKAGE / "tests", package / "tests")
        shutil.copy2(PACKAGE / "setup.cfg", package)
        fault.plant(package)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-k", " or ".join(names)]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests/unrolled",
             "--ignore=tests/unrolled/twins"],
            cwd=package,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            check=False,
        )  # fmt: skip
    return run.returncode == 1
